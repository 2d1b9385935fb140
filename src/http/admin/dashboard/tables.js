// The tables: resources, sorted and searched; the last invalidations; the slowest loads.

import { ago, bytes, count, cut, element, foreign, microseconds, percent, rate, setText } from "./view.js";

const SHOWN_ROWS = 25;
const AGES_EVERY = 10_000;

function hits(resource) {
  return resource.hits_memory + resource.hits_disk;
}

function state(resource) {
  if (resource.unfit != null) return ["unfit", "bad", resource.unfit];
  if (!resource.ready) return ["being checked", "weak", "its definition is being checked against the database"];
  if (resource.uncached != null) return ["not cached", "weak", resource.uncached];
  return ["ready", "", ""];
}

// `order`: what a column is sorted by; `text`: what it shows.
const COLUMNS = [
  { title: "Resource", order: (resource) => resource.name, text: null },
  { title: "State", order: (resource) => state(resource)[0], text: null },
  { title: "Lookups/s", number: true, order: (resource) => resource.rate ?? 0, text: (resource) => rate(resource.rate) },
  { title: "Lookups", number: true, order: (resource) => resource.lookups, text: (resource) => count(resource.lookups) },
  {
    title: "Hits", number: true,
    order: (resource) => (resource.lookups ? hits(resource) / resource.lookups : -1),
    text: (resource) => (resource.lookups ? percent(hits(resource) / resource.lookups) : "–"),
  },
  { title: "In memory", number: true, order: (resource) => resource.memory_entries, text: (resource) => count(resource.memory_entries) },
  {
    title: "Bypass", number: true,
    order: (resource) => (resource.lookups ? resource.bypassed / resource.lookups : 0),
    text: (resource) => (resource.bypassed ? percent(resource.bypassed / resource.lookups) : "–"),
  },
  { title: "429", number: true, order: (resource) => resource.too_many_requests, text: (resource) => (resource.too_many_requests ? count(resource.too_many_requests) : "–") },
  { title: "5xx", number: true, alarming: true, order: (resource) => resource.server_errors, text: (resource) => (resource.server_errors ? count(resource.server_errors) : "–") },
];

export class ResourceTable {
  // `choose`: called with the name of a resource that is clicked.
  constructor(choose) {
    this.choose = choose;
    this.resources = [];
    this.sorted = { column: COLUMNS[3], descending: true };
    this.showsAll = false;
    this.rows = new Map();
    this.before = new Map();
    this.head = element("tr");
    this.body = element("tbody");
    document.getElementById("resource-table").append(element("thead", {}, this.head), this.body);
    this.makeHead();
    this.search = document.getElementById("resource-search");
    this.search.addEventListener("input", () => this.draw());
    this.more = document.getElementById("resource-more");
    this.more.addEventListener("click", () => {
      this.showsAll = !this.showsAll;
      this.draw();
    });
  }

  makeHead() {
    const cells = COLUMNS.map((column) => {
      const button = element("button", { type: "button" }, column.title);
      button.addEventListener("click", () => {
        const isSame = this.sorted.column === column;
        this.sorted = { column, descending: isSame ? !this.sorted.descending : Boolean(column.number) };
        this.draw();
      });
      column.head = element("th", { scope: "col", class: column.number ? "number" : null }, button);
      return column.head;
    });
    this.head.replaceChildren(...cells);
  }

  show(resources) {
    const now = performance.now();
    for (const resource of resources) {
      const before = this.before.get(resource.name);
      const difference = before && resource.lookups - before.lookups;
      // After a restart larder counts from 0.
      resource.rate = difference >= 0 ? difference / ((now - before.now) / 1000) : null;
      this.before.set(resource.name, { lookups: resource.lookups, now });
    }
    this.resources = resources;
    this.draw();
  }

  draw() {
    const wanted = this.search.value.trim().toLowerCase();
    const found = this.resources.filter((resource) => resource.name.toLowerCase().includes(wanted));
    const { column, descending } = this.sorted;
    const sign = descending ? -1 : 1;
    found.sort((a, b) => {
      const [first, second] = [column.order(a), column.order(b)];
      if (first !== second) return first < second ? -sign : sign;
      return a.name < b.name ? -1 : 1;
    });
    for (const { head, ...other } of COLUMNS) {
      const order = other.title === column.title ? (descending ? "descending" : "ascending") : "none";
      head.setAttribute("aria-sort", order);
    }
    const shown = this.showsAll ? found : found.slice(0, SHOWN_ROWS);
    this.place(shown.map((resource) => this.row(resource)));
    const all = this.resources.length;
    setText(document.getElementById("resource-count"), wanted ? `${count(found.length)} of ${count(all)}` : count(all));
    this.more.hidden = found.length <= SHOWN_ROWS;
    setText(this.more, this.showsAll ? `Show ${SHOWN_ROWS}` : `Show all ${count(found.length)}`);
  }

  // Puts these rows into the table, and moves only those that are elsewhere.
  place(rows) {
    if (rows.length === 0) {
      const text = this.resources.length ? "No resource has such a name." : "There are no resources.";
      const cell = element("td", { colspan: COLUMNS.length, class: "none" }, text);
      this.body.replaceChildren(element("tr", {}, cell));
      return;
    }
    rows.forEach((row, index) => {
      const there = this.body.children[index];
      if (there !== row) this.body.insertBefore(row, there ?? null);
    });
    while (this.body.children.length > rows.length) this.body.lastChild.remove();
  }

  row(resource) {
    let row = this.rows.get(resource.name);
    if (!row) {
      row = element("tr", {}, ...COLUMNS.map((column) => element("td", { class: column.number ? "number" : null })));
      const link = element("button", { type: "button", class: "link" }, foreign(resource.name));
      link.addEventListener("click", () => this.choose(resource.name));
      row.cells[0].append(link);
      this.rows.set(resource.name, row);
    }
    const [name, kind, reason] = state(resource);
    setText(row.cells[1], name);
    row.cells[1].className = kind;
    row.cells[1].title = cut(reason, 600);
    COLUMNS.forEach((column, index) => {
      if (column.text) setText(row.cells[index], column.text(resource));
      if (column.alarming) row.cells[index].classList.toggle("bad", column.order(resource) > 0);
    });
    return row;
  }
}

const CAUSES = {
  bell: "rows changed",
  poll: "rows changed, found by a poll",
  purge: "purged",
  audit: "found stale by the audit",
  definition: "definition checked",
  reset: "the feed began anew",
};

export function cause(via) {
  return CAUSES[via] ?? via;
}

export const EXTENTS = {
  ranges: "ranges of keys",
  absences: "absences",
  all: "all keys",
};

function fill(id, titles, rows, none) {
  const cells = titles.map(([title, isNumber]) => element("th", { scope: "col", class: isNumber ? "number" : null }, title));
  const body = rows.length
    ? rows
    : [element("tr", {}, element("td", { colspan: titles.length, class: "none" }, none))];
  document.getElementById(id).replaceChildren(
    element("thead", {}, element("tr", {}, ...cells)),
    element("tbody", {}, ...body),
  );
}

function keyCell(event, explain) {
  if (event.is_cut) return element("td", { class: "key" }, foreign(event.key, true));
  const link = element("button", { type: "button", class: "link" }, foreign(event.key));
  link.addEventListener("click", () => explain(event.resource, event.key));
  return element("td", { class: "key" }, link);
}

// What the tables show, by the id of the table.
const drawn = new Map();

// Whether the table has to be made anew. Ages change all the time, but somebody may be reading, or about to click.
function isOutdated(id, signature) {
  const now = `${signature}/${Math.floor(performance.now() / AGES_EVERY)}`;
  const before = drawn.get(id);
  drawn.set(id, now);
  return before !== now;
}

// `explain`: called with resource and key of a row that is clicked.
export function showRecent(recent, explain) {
  if (isOutdated("invalidation-table", recent.invalidations[0]?.number)) {
    fill(
      "invalidation-table",
      [["When"], ["Resource"], ["Key"], ["Cause"]],
      recent.invalidations.map((event) => element(
        "tr",
        {},
        element("td", { class: "when" }, ago(event.seconds_ago)),
        element("td", { class: "name" }, foreign(event.resource)),
        event.key == null ? element("td", { class: "weak" }, EXTENTS[event.extent] ?? event.extent) : keyCell(event, explain),
        element("td", {}, cause(event.via)),
      )),
      "Nothing was invalidated yet.",
    );
  }
  if (isOutdated("load-table", recent.slow_loads.map((load) => load.seconds).join())) {
    fill(
      "load-table",
      [["Took", true], ["Waited", true], ["Resource"], ["Key"], ["Result"], ["When"]],
      recent.slow_loads.map((load) => element(
        "tr",
        {},
        element("td", { class: "number" }, microseconds(load.seconds * 1e6)),
        element("td", { class: "number" }, microseconds(load.waiting_seconds * 1e6)),
        element("td", { class: "name" }, foreign(load.resource)),
        keyCell(load, explain),
        load.error != null
          ? element("td", { class: "bad", title: cut(load.error, 600) }, cut(load.error, 40))
          : element("td", {}, load.bytes == null ? "absent" : bytes(load.bytes)),
        element("td", { class: "when" }, ago(load.seconds_ago)),
      )),
      "No document was loaded in the last 15 minutes.",
    );
  }
}
