// Asks larder for what the page shows.

import { read } from "./api.js";
import { showCharts } from "./charts.js";
import { choose, readLevel, setResources } from "./key.js";
import { poll } from "./live.js";
import { showFacts, showFaults } from "./overview.js";
import { ResourceTable, showRecent } from "./tables.js";

const SAMPLES_MAX = 900;
const RECENT_SAMPLES = 60;
const HISTORY_EVERY = 1_000;
const STATUS_EVERY = 2_000;
// A status of many resources is long.
const MANY_RESOURCES = 200;
const STATUS_OF_MANY_EVERY = 5_000;
const RECENT_EVERY = 3_000;

const table = new ResourceTable((name) => choose(name));
let history = null;
let status = null;

// Appends the lists of `later` to those of `earlier`, which may be lists by place.
function append(earlier, later) {
  for (const [name, list] of Object.entries(later)) {
    if (Array.isArray(list)) {
      earlier[name] = earlier[name].concat(list).slice(-SAMPLES_MAX);
    } else if (typeof list === "object") {
      append(earlier[name], list);
    }
  }
}

async function askHistory() {
  const last = history?.at.at(-1);
  const answer = await read(last == null ? "history" : `history?after=${last}`);
  if (history == null || last == null) history = answer;
  else if (answer.at.length === 0) return;
  else append(history, answer);
  showCharts(history);
}

// Requests per second in the last sample, and hits in the last minute.
function now() {
  const index = (history?.at.length ?? 0) - 1;
  if (index < 0) return {};
  const places = Object.values(history.requests);
  const ratios = history.hit_ratio.slice(-RECENT_SAMPLES);
  const weights = history.at.slice(-RECENT_SAMPLES).map((_, place) => {
    const sample = history.at.length - ratios.length + place;
    return places.reduce((total, list) => total + list[sample], 0);
  });
  let [hits, lookups] = [0, 0];
  ratios.forEach((ratio, place) => {
    if (ratio == null) return;
    hits += ratio * weights[place];
    lookups += weights[place];
  });
  return {
    requests: places.reduce((total, list) => total + list[index], 0),
    hitRatio: lookups > 0 ? hits / lookups : null,
  };
}

async function askStatus() {
  status = await read("status");
  showFaults(status.faults, null);
  showFacts(status, now());
  setResources(status);
  table.show(status.resources);
}

async function askRecent() {
  showRecent(await read("recent"), choose);
}

function statusEvery() {
  return status?.resources.length > MANY_RESOURCES ? STATUS_OF_MANY_EVERY : STATUS_EVERY;
}

function tellLost(lost) {
  showFaults(status?.faults, lost);
}

poll(statusEvery, askStatus, tellLost);
poll(() => HISTORY_EVERY, askHistory, tellLost);
poll(() => RECENT_EVERY, askRecent, tellLost);
readLevel();
