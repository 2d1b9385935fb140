// One key explained and purged; the log level; the configuration.

import { Refused, forgetToken, hasToken, keyPath, read, request } from "./api.js";
import { EXTENTS, cause } from "./tables.js";
import { ago, bytes, cut, element, foreign, setText } from "./view.js";

const OPTIONS_MAX = 1000;
const BODY_MAX = 200_000;

const form = document.getElementById("explain-form");
const resourceInput = document.getElementById("explain-resource");
const keyInput = document.getElementById("explain-key");
const output = document.getElementById("explanation");

// What larder told of the resources last, by name.
let resources = new Map();
let showsDocuments = false;
let listed = 0;
// The key chosen in a list; an input loses its line breaks. Null after the user has typed another one.
let chosen = null;

export function setResources(status) {
  resources = new Map(status.resources.map((resource) => [resource.name, resource]));
  showsDocuments = status.shows_documents;
  if (listed === resources.size) return;
  listed = resources.size;
  const names = [...resources.keys()].slice(0, OPTIONS_MAX);
  document.getElementById("resource-names").replaceChildren(...names.map((value) => element("option", { value })));
}

function columns() {
  return resources.get(resourceInput.value)?.key ?? [];
}

function showColumns() {
  keyInput.placeholder = cut(columns().join(","), 40);
}

resourceInput.addEventListener("input", showColumns);
keyInput.addEventListener("input", () => { chosen = null; });

// Fills the form; explains the key if one is given.
export function choose(resource, key) {
  resourceInput.value = resource;
  chosen = key;
  keyInput.value = key ?? "";
  showColumns();
  document.getElementById("key").scrollIntoView({ block: "start" });
  if (key == null) keyInput.focus({ preventScroll: true });
  else explain();
}

function path(verb) {
  return keyPath(verb, resourceInput.value, chosen ?? keyInput.value, columns().length);
}

function row(label, ...value) {
  return element("div", {}, element("dt", {}, label), element("dd", {}, ...value));
}

function tierCard(title, entry, age) {
  const rows = entry == null
    ? [row("Entry", "none")]
    : [
      row("Entry", entry.found ? "document" : "remembered absence"),
      row(age, ago(entry.age_seconds)),
      row("Size", entry.found ? bytes(entry.bytes) : "–"),
      row("Entity tag", entry.etag == null ? "–" : element("code", {}, cut(entry.etag))),
      entry.owner == null ? null : row("Owner", foreign(entry.owner)),
    ].filter(Boolean);
  return element("article", {}, element("h3", {}, title), element("dl", {}, ...rows));
}

function lastInvalidation(invalidated) {
  if (invalidated == null) return "not that larder remembers";
  const extent = EXTENTS[invalidated.extent];
  return `${ago(invalidated.seconds_ago)}: ${cause(invalidated.via)}${extent ? ` (${extent})` : ""}`;
}

function keyCard(explained) {
  const served = explained.uncached != null
    ? element("bdi", {}, cut(`from PostgreSQL each time: ${explained.uncached}`, 400))
    : explained.fresh ? "by the tiers" : "by PostgreSQL: the tiers are not fresh";
  return element(
    "article",
    {},
    element("h3", {}, "This key"),
    element(
      "dl",
      {},
      row("Key", foreign(explained.key)),
      row("Answered", served),
      row("Last invalidated", lastInvalidation(explained.invalidated)),
      row("Generation", String(explained.generation)),
    ),
  );
}

function showError(error) {
  const text = error instanceof Refused ? error.message : "larder does not answer.";
  output.replaceChildren(element("p", { class: "wrong" }, cut(text, 400)));
}

// Counts what is asked for, so that a late answer replaces no newer one.
let asked = 0;

async function explain() {
  const number = (asked += 1);
  output.replaceChildren(element("p", { class: "weak" }, "Asking…"));
  try {
    const explained = await read(path("explain"));
    if (number === asked) showExplanation(explained);
  } catch (error) {
    if (number === asked) showError(error);
  }
}

function showExplanation(explained) {
  const purge = element("button", { type: "button", class: "danger", id: "purge" }, "Purge…");
  const note = element("span", { class: "weak", role: "status", id: "purge-outcome" });
  purge.addEventListener("click", () => askToPurge(explained, note));
  const actions = element("div", { class: "actions start" }, purge);
  const body = element("div");
  if (showsDocuments) {
    const show = element("button", { type: "button", class: "quiet", id: "show-document" }, "Show document");
    show.addEventListener("click", () => showDocument(explained, body));
    actions.append(show);
  } else {
    actions.append(element("span", { class: "weak" }, "Documents are shown where an admin token is configured."));
  }
  actions.append(note);
  output.replaceChildren(
    element(
      "div",
      { class: "cards three" },
      keyCard(explained),
      tierCard("Memory", explained.memory, "Read"),
      tierCard("Disk", explained.disk, "Written"),
    ),
    actions,
    body,
  );
}

function explainedPath(verb, explained) {
  return keyPath(verb, explained.resource, explained.key, resources.get(explained.resource)?.key?.length ?? 1);
}

function askToPurge(explained, note) {
  const dialog = document.getElementById("purge-dialog");
  document.getElementById("purge-what").replaceChildren(
    foreign(explained.resource), " / ", foreign(explained.key));
  dialog.returnValue = "";
  dialog.addEventListener("close", async () => {
    if (dialog.returnValue !== "purge") return;
    try {
      await request(explainedPath("purge", explained), { method: "POST" });
      await explain();
      const outcome = document.getElementById("purge-outcome");
      if (outcome) setText(outcome, "Purged.");
    } catch (error) {
      setText(note, error instanceof Refused ? cut(error.message, 400) : "larder does not answer.");
    }
  }, { once: true });
  dialog.showModal();
}

async function showDocument(explained, parent) {
  let text;
  try {
    text = await (await request(explainedPath("document", explained))).text();
  } catch (error) {
    text = error instanceof Refused ? error.message : "larder does not answer.";
  }
  try {
    // Numbers that JavaScript can't hold would change, so these documents stay as they are.
    if (!/\d{16}/.test(text)) text = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // No JSON: a message.
  }
  const shown = text.length > BODY_MAX ? `${text.slice(0, BODY_MAX)}…` : text;
  parent.replaceChildren(element("pre", { class: "document", dir: "ltr", id: "document" }, shown));
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  explain();
});

const levelForm = document.getElementById("level-form");
const level = document.getElementById("level");
const levelOutcome = document.getElementById("level-outcome");

export async function readLevel() {
  try {
    level.value = (await (await request("log-level")).text()).trim();
  } catch (error) {
    // 404: another program has set up the log.
    levelForm.hidden = error instanceof Refused;
  }
  document.getElementById("forget-token").hidden = !hasToken();
}

levelForm.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await request("log-level", { method: "PUT", body: level.value, headers: { "Content-Type": "text/plain" } });
    setText(levelOutcome, "Applied.");
  } catch (error) {
    setText(levelOutcome, error instanceof Refused ? cut(error.message, 300) : "larder does not answer.");
  }
});
level.addEventListener("input", () => setText(levelOutcome, ""));

const config = document.getElementById("config");
config.addEventListener("toggle", async () => {
  if (!config.open) return;
  const text = document.getElementById("config-text");
  try {
    setText(text, await (await request("config")).text());
  } catch (error) {
    setText(text, error instanceof Refused ? error.message : "larder does not answer.");
  }
});

document.getElementById("forget-token").addEventListener("click", forgetToken);

