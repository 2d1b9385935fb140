// Elements and numbers. Every text becomes a text node: nothing in this page parses HTML.

const SHOWN_MAX = 96;
const TITLE_MAX = 1000;

// An element with attributes and children; children are elements or texts.
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

// A text in place of what was there, if it is another one: unchanged text costs no layout.
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

// Characters that show nothing and change the line, its direction or what is beside them.
const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

// The text with these as \uXXXX, so that a key shows what it contains.
function visible(text) {
  return text.replace(INVISIBLE, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export function cut(text, max = SHOWN_MAX) {
  const characters = Array.from(text.slice(0, 2 * max + 2));
  if (characters.length <= max && text.length <= 2 * max + 2) return visible(text);
  return `${visible(characters.slice(0, max).join(""))}…`;
}

// A name or key of the database. Its direction does not change that of the text around it.
export function foreign(text, isCut = false) {
  const shown = cut(text) + (isCut && text.length <= SHOWN_MAX ? "…" : "");
  const title = shown === text ? null : cut(text, TITLE_MAX);
  return element("bdi", { class: "foreign", title }, shown === "" ? "(empty)" : shown);
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function significant(value) {
  if (value >= 100) return whole.format(value);
  if (value >= 10) return String(Math.round(value * 10) / 10);
  return String(Math.round(value * 100) / 100);
}

export function count(value) {
  if (value == null) return "–";
  if (value < 10_000) return whole.format(value);
  const [size, unit] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([size]) => value >= size);
  return `${significant(value / size)} ${unit}`;
}

export function rate(value) {
  if (value == null) return "–";
  return value < 10_000 ? significant(value) : count(value);
}

export function bytes(value) {
  if (value == null) return "–";
  for (const [size, unit] of [[1 << 30, "GiB"], [1 << 20, "MiB"], [1 << 10, "KiB"]]) {
    if (value >= size) return `${significant(value / size)} ${unit}`;
  }
  return `${whole.format(value)} B`;
}

export function microseconds(value) {
  if (value == null) return "–";
  if (value < 1_000) return `${significant(value)} µs`;
  if (value < 1_000_000) return `${significant(value / 1_000)} ms`;
  return `${significant(value / 1_000_000)} s`;
}

export function percent(share) {
  if (share == null) return "–";
  const value = share * 100;
  if (value > 0 && value < 0.01) return "< 0.01 %";
  // 99.996 % is not 100 %.
  const shown = value > 99.9 && value < 100 ? Math.floor(value * 100) / 100 : Math.round(value * 10) / 10;
  return `${shown} %`;
}

// A time that has passed.
export function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 1) return "< 1 s";
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} days`;
}

export function ago(seconds) {
  return seconds < 1 ? "just now" : `${duration(seconds)} ago`;
}
