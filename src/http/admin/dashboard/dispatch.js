// The page of `larder dispatch`: what is wrong, and how each dispatch is.

import { Refused, forgetToken, hasToken, read, request } from "./api.js";
import { poll } from "./live.js";
import { Card, showFaults } from "./overview.js";
import { count, cut, duration, element, foreign, percent, rate, setText } from "./view.js";

const STATUS_EVERY = 2_000;
const LABELS = [
  "State", "Rows per second", "Delivered", "Lag", "Breaker", "Slots", "Dead letters", "HOT updates", "Dead rows",
  "Oldest snapshot",
];

const parent = document.getElementById("dispatches");
const forget = document.getElementById("forget-token");
// By the name of the dispatch.
const cards = new Map();
let status = null;

function faults({ name, gone, breaker, paused, database }) {
  const letters = database?.dead_letters ?? 0;
  return [
    gone && ["error", `The sink of ${name} has answered that it takes nothing any more (410).`, "Start larder again once it takes requests."],
    breaker !== "closed" && ["error", `Requests of ${name} fail; its rows wait.`, "Check the sink. larder tries one request at a time, at the latest every 60 s."],
    paused && ["warning", `${name} is paused in all processes, also after a restart.`, "Resume it when its rows may be sent."],
    !database && ["error", `PostgreSQL does not answer ${name}.`, "See larder's log."],
    letters > 0 && ["warning", `${name} has dead letters: ${count(letters)}.`, `\`larder dispatch --dead-letters ${name}\` lists them; \`--replay\` sends them again, \`--discard\` deletes them.`],
  ].filter(Boolean).map(([severity, message, remedy]) => ({ severity, message, remedy }));
}

function marked(text, isBad) {
  return isBad ? element("span", { class: "bad" }, text) : text;
}

class DispatchCard extends Card {
  constructor(name) {
    super(parent, foreign(name), LABELS);
    this.button = element("button", { type: "button", class: "quiet" });
    this.outcome = element("span", { class: "wrong", role: "status" });
    this.article.append(element("div", { class: "actions start" }, this.button, this.outcome));
    this.button.addEventListener("click", async () => {
      this.button.disabled = true;
      const verb = this.isPaused ? "resume" : "pause";
      try {
        await request(`dispatch/${encodeURIComponent(name)}/${verb}`, { method: "POST" });
        setText(this.outcome, "");
        await askStatus();
      } catch (error) {
        setText(this.outcome, error instanceof Refused ? cut(error.message, 300) : "larder does not answer.");
      }
      this.button.disabled = false;
    });
  }

  showStatus(dispatch) {
    const { database } = dispatch;
    this.isPaused = dispatch.paused;
    setText(this.button, this.isPaused ? "Resume" : "Pause");
    this.show(
      marked(dispatch.gone ? "sink gone" : dispatch.paused ? "paused" : "running", dispatch.gone),
      rate(dispatch.rate),
      count(dispatch.delivered),
      dispatch.due_indexed ? duration(dispatch.lag_seconds) : "not known without an index on the due moment",
      marked(dispatch.breaker, dispatch.breaker !== "closed"),
      count(dispatch.slots),
      marked(count(database?.dead_letters), database?.dead_letters > 0),
      percent(database?.hot_share),
      count(database?.dead_rows),
      database && database.oldest_snapshot_seconds == null ? "none" : duration(database?.oldest_snapshot_seconds),
    );
  }
}

async function askStatus() {
  status = await read("status");
  forget.hidden = !hasToken();
  setText(document.getElementById("version"), status.version);
  showWrong(null);
  const names = status.dispatches.map((dispatch) => dispatch.name);
  // larder may have been started again, with others.
  if (names.join() !== [...cards.keys()].join()) {
    parent.replaceChildren();
    cards.clear();
    names.forEach((name) => cards.set(name, new DispatchCard(name)));
  }
  status.dispatches.forEach((dispatch) => cards.get(dispatch.name).showStatus(dispatch));
}

// Errors first.
function showWrong(lost) {
  const wrong = status?.dispatches.flatMap(faults);
  showFaults(wrong?.sort((a, b) => a.severity.localeCompare(b.severity)), lost);
}

forget.addEventListener("click", forgetToken);
poll(() => STATUS_EVERY, askStatus, showWrong);
