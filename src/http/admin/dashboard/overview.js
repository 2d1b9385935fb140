// The first things to know: what is wrong, and how larder, PostgreSQL and the change log are.

import { ago, bytes, count, cut, duration, element, foreign, percent, rate, setText } from "./view.js";

const LISTED_NODES = 4;

// What stands between backticks is code.
function withCode(text) {
  return text.split("`").map((part, index) => (index % 2 ? element("code", {}, part) : part));
}

function faultItem(fault) {
  return element(
    "li",
    { class: `fault ${fault.severity}` },
    element(
      "div",
      { class: "what" },
      element("strong", {}, fault.severity === "error" ? "Error" : "Warning"),
      element("bdi", { class: "message" }, cut(fault.message, 600)),
      element("span", { class: "since" }, fault.seconds == null ? "" : `for ${duration(fault.seconds)}`),
    ),
    fault.remedy ? element("p", { class: "remedy" }, ...withCode(cut(fault.remedy, 600))) : null,
  );
}

// `lost`: since when this page gets no answers, in milliseconds; null while it does.
export function showFaults(faults, lost) {
  const list = document.getElementById("faults");
  const shown = [...(faults ?? [])];
  if (lost != null) {
    shown.unshift({
      severity: "error",
      message: "This page gets no answer from larder; what it shows is old.",
      remedy: "Check that larder runs and that the network reaches its admin address. The page tries again by itself.",
      seconds: (Date.now() - lost) / 1000,
    });
  }
  if (shown.length === 0) {
    list.replaceChildren(element("li", { class: "calm" }, "Nothing is wrong."));
  } else {
    list.replaceChildren(...shown.map(faultItem));
  }
}

// A list of facts under a title. The values are replaced, not the elements.
export class Card {
  constructor(parent, title, labels, note = "") {
    this.values = labels.map(() => element("dd"));
    const rows = labels.map((label, index) =>
      element("div", {}, element("dt", {}, label), this.values[index]));
    this.article = element("article", {}, element("h3", {}, title, element("span", {}, note)), element("dl", {}, ...rows));
    parent.append(this.article);
  }

  show(...values) {
    values.forEach((value, index) => {
      const target = this.values[index];
      if (value instanceof Node) target.replaceChildren(value);
      else setText(target, value);
    });
  }
}

let cards = null;

function makeCards() {
  const parent = document.getElementById("facts");
  return {
    traffic: new Card(parent, "Requests", ["Per second", "Hit ratio", "Bypassed", "Failed (5xx)", "Limited (429)"], "counted since the start"),
    source: new Card(parent, "PostgreSQL", ["Reads", "Writes", "Feed", "Connections", "Waiting keys"]),
    log: new Card(parent, "Change log", ["Rows", "Size", "Oldest transaction", "Kept for larder", "Other larders"]),
    process: new Card(parent, "This larder", ["Version", "Started", "Definition changed", "Memory tier", "Disk tier"]),
  };
}

// Of reads or writes; while the feed is lost, they may be lost, too, and no request has noticed it yet.
function reachable(lost, isFeedLost) {
  if (lost != null) return element("span", { class: "bad" }, "lost");
  return isFeedLost ? "not known to fail" : "reachable";
}

function feed(status) {
  const { age_seconds: age, fresh, lost } = status.feed;
  if (lost != null) return element("span", { class: "bad" }, "lost");
  if (!fresh) return element("span", { class: "bad" }, "behind");
  return age == null ? "fresh" : `fresh, ${Math.round(age * 1000)} ms ago`;
}

function connections(source) {
  const pools = source.connections;
  if (pools == null) return "–";
  const sum = (member) => pools.reduce((total, pool) => total + pool[member], 0);
  return `${sum("used")} in use, ${sum("idle")} idle`;
}

function transaction(log) {
  const oldest = log?.oldest_transaction;
  if (oldest == null) return "none";
  const which = oldest.pid == null ? "prepared" : `process ${oldest.pid}`;
  return `${which}, ${duration(oldest.age_seconds)}`;
}

function nodeName(name) {
  return element("bdi", { class: "foreign", title: cut(name) }, name.slice(0, 8));
}

function oldestNode(log) {
  const node = log?.oldest_node;
  if (node == null) return "none";
  return element("span", {}, nodeName(node.name), `, ${ago(node.seen_seconds_ago)}`);
}

function otherNodes(log) {
  const nodes = log?.other_nodes ?? [];
  if (nodes.length === 0) return "none";
  const lines = nodes.slice(0, LISTED_NODES).map((node) =>
    element("div", {}, nodeName(node.name), node.version ? ` ${cut(node.version, 20)}` : "", `, ${ago(node.seen_seconds_ago)}`));
  const more = nodes.length - lines.length;
  if (more > 0) lines.push(element("div", {}, `and ${more} more`));
  return element("div", {}, ...lines);
}

function tier(tier) {
  if (tier == null) return "not used";
  const most = tier.bytes_max == null ? "" : ` of ${bytes(tier.bytes_max)}`;
  const size = `${bytes(tier.bytes)}${most}, ${count(tier.entries)} keys`;
  return tier.in_use ? size : element("span", {}, size, element("span", { class: "bad" }, " off"));
}

function changed(change) {
  if (change == null) return "not since the start";
  return element("span", {}, foreign(change.resource), `, ${ago(change.seconds_ago)}`);
}

// `now`: requests per second and the hit ratio of the last samples.
export function showFacts(status, now) {
  cards ??= makeCards();
  const sum = (member) => status.resources.reduce((total, resource) => total + resource[member], 0);
  const lookups = sum("lookups");
  const bypassed = sum("bypassed");
  cards.traffic.show(
    rate(now.requests),
    now.hitRatio == null ? "–" : `${percent(now.hitRatio)}, last minute`,
    lookups > 0 ? percent(bypassed / lookups) : "–",
    count(sum("server_errors")),
    count(sum("too_many_requests") + status.requests_refused),
  );
  const { source, feed: { log } } = status;
  const isFeedLost = status.feed.lost != null;
  cards.source.show(
    reachable(source.reads_lost, isFeedLost),
    reachable(source.writes_lost, isFeedLost),
    feed(status),
    connections(source),
    count(status.source_waiting_keys),
  );
  const rows = log?.rows_estimated;
  cards.log.show(
    rows == null ? "not known yet" : `about ${count(rows)}`,
    bytes(log?.bytes),
    transaction(log),
    oldestNode(log),
    otherNodes(log),
  );
  cards.process.show(
    status.version,
    ago(status.started_seconds_ago),
    changed(status.definition_changed),
    tier(status.memory),
    tier(status.disk),
  );
  setText(document.getElementById("version"), status.version);
}
