// The charts of the last 15 minutes. Colours come from the style sheet, so that they follow light and dark.

import { bytes, count, element, microseconds, percent, rate, setText } from "./view.js";

const SECONDS = 15 * 60;
const HEIGHT = 148;
const PLACES = [
  ["memory", "Memory"],
  ["disk", "Disk"],
  ["postgres", "PostgreSQL"],
  ["other", "Other"],
];

function byPlace(member, places = PLACES) {
  return places.map(([place, label]) => ({ label, color: place, values: (history) => history[member][place] }));
}

// `values`: the list of a series out of the history. `format`: a value with its unit.
const CHARTS = [
  { title: "Requests", unit: "per second", format: rate, series: byPlace("requests") },
  { title: "Latency, median", format: microseconds, logarithmic: true, series: byPlace("p50_microseconds") },
  { title: "Latency, 99th percentile", format: microseconds, logarithmic: true, series: byPlace("p99_microseconds") },
  {
    title: "Hit ratio", format: percent, max: 1,
    series: [{ label: "Hits", color: "memory", values: (history) => history.hit_ratio }],
  },
  {
    title: "Invalidation lag", unit: "99th percentile", format: microseconds, logarithmic: true,
    series: [{ label: "Lag", color: "postgres", values: (history) => history.invalidation_lag_microseconds }],
  },
  {
    title: "Bytes held", format: bytes, binary: true,
    series: [
      { label: "Memory", color: "memory", values: (history) => history.memory_bytes },
      { label: "Disk", color: "disk", values: (history) => history.disk_bytes },
    ],
  },
  {
    title: "Keys that wait for PostgreSQL", format: count, whole: true,
    series: [{ label: "Keys", color: "postgres", values: (history) => history.waiting_keys }],
  },
  {
    title: "Failed requests", unit: "per second", format: rate,
    series: [
      { label: "5xx", color: "error", values: (history) => history.server_errors },
      { label: "429", color: "disk", values: (history) => history.too_many_requests },
    ],
  },
];

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function clock(seconds) {
  const time = new Date(seconds * 1000);
  return time.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

// The decades around all values, so that the scale has whole ones.
function decades(low, high) {
  if (low == null || !(low > 0)) return [10, 10_000];
  const least = 10 ** Math.floor(Math.log10(low));
  return [least, Math.max(10 ** Math.ceil(Math.log10(high)), 10 * least)];
}

function fromZero(chart, high) {
  if (chart.max) return [0, chart.max];
  return [0, high > 0 ? high * 1.1 : chart.binary ? 1024 : 1];
}

function powers(low, high) {
  const [first, last] = [Math.round(Math.log10(low)), Math.round(Math.log10(high))];
  return Array.from({ length: last - first + 1 }, (_, index) => 10 ** (first + index));
}

// The distances that labels may have: whole numbers, or round ones of bytes, where the default would split them.
function steps(chart) {
  if (chart.binary) return Array.from({ length: 50 }, (_, power) => 2 ** power);
  if (chart.whole) return Array.from({ length: 24 }, (_, place) => [1, 2, 5][place % 3] * 10 ** Math.floor(place / 3));
  return undefined;
}

// The values without neighbours, which no line shows.
function isolated(plot, series) {
  const values = plot.data[series];
  const found = [];
  values.forEach((value, index) => {
    if (value != null && values[index - 1] == null && values[index + 1] == null) found.push(index);
  });
  return found;
}

// The newest value of the last minute.
function newest(values) {
  return values.slice(-60).findLast((value) => value != null);
}

class Chart {
  constructor(parent, chart) {
    this.chart = chart;
    this.legend = chart.series.map(({ label, color }) => {
      const value = element("span", { class: "value" }, "–");
      const name = chart.series.length > 1 ? element("span", { class: "label" }, label) : null;
      const item = element("span", { class: "item" }, element("i", { class: `dot ${color}` }), name, value);
      return { item, value };
    });
    const frame = element("div", { class: "plot" });
    parent.append(element(
      "figure",
      {},
      element("figcaption", {},
        element("span", { class: "title" }, chart.title),
        chart.unit ? element("span", { class: "unit" }, chart.unit) : null),
      element("div", { class: "legend" }, ...this.legend.map(({ item }) => item)),
      frame,
    ));
    this.plot = new uPlot(this.options(frame.clientWidth), [[], ...chart.series.map(() => [])], frame);
    new ResizeObserver(() => {
      const width = frame.clientWidth;
      if (width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
    }).observe(frame);
  }

  options(width) {
    const { chart } = this;
    const axis = {
      stroke: () => color("faint"),
      font: "11px system-ui, sans-serif",
      ticks: { show: false },
    };
    return {
      width: Math.max(width, 100),
      height: HEIGHT,
      legend: { show: false },
      padding: [8, 8, 0, 0],
      cursor: { sync: { key: "larder" }, drag: { x: false, y: false }, points: { size: 5 }, y: false },
      scales: {
        x: { time: true, range: () => this.window ?? [0, SECONDS] },
        y: {
          distr: chart.logarithmic ? 3 : 1,
          range: (_, low, high) => (chart.logarithmic ? decades(low, high) : fromZero(chart, high)),
        },
      },
      axes: [
        {
          ...axis,
          size: 24,
          grid: { show: false },
          space: 70,
          values: (_, splits) => splits.map(clock),
        },
        {
          ...axis,
          size: 58,
          grid: { stroke: () => color("grid"), width: 1 },
          space: 28,
          splits: chart.logarithmic ? (_, __, low, high) => powers(low, high) : undefined,
          incrs: steps(chart),
          values: (_, splits) => splits.map((value) => (value == null ? "" : chart.format(value))),
        },
      ],
      series: [
        {},
        ...chart.series.map((series) => ({
          stroke: () => color(series.color),
          width: 1.5,
          points: { show: true, size: 4, fill: () => color(series.color), filter: isolated },
        })),
      ],
      hooks: { setCursor: [() => this.showValues()] },
    };
  }

  show(times, history) {
    const last = times.at(-1) ?? Date.now() / 1000;
    this.window = [last - SECONDS, last];
    this.plot.setData([times, ...this.chart.series.map((series) => series.values(history))]);
    this.showValues();
  }

  // The values at the cursor, else the newest.
  showValues() {
    if (!this.plot) return;
    const lists = this.plot.data.slice(1);
    const index = this.plot.cursor.idx;
    this.legend.forEach(({ item, value }, place) => {
      const shown = index == null ? newest(lists[place]) : lists[place][index];
      setText(value, this.chart.format(shown));
      item.classList.toggle("empty", shown == null);
    });
  }
}

let charts = null;

// Draws all charts; `history` has lists of equal length, `history.at` in milliseconds.
export function showCharts(history) {
  const grid = document.getElementById("chart-grid");
  charts ??= CHARTS.map((chart) => new Chart(grid, chart));
  const times = history.at.map((at) => at / 1000);
  charts.forEach((chart) => chart.show(times, history));
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  charts?.forEach((chart) => chart.plot.redraw(false, true));
});
