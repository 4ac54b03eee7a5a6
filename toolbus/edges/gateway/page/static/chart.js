// Small charts of time series, drawn as SVG.

import { h, put, s } from "./dom.js";
import { clock } from "./format.js";

const HEIGHT = 150, LEFT = 50, RIGHT = 6, TOP = 8, BOTTOM = 22;

/** Samples are rows of numbers; this names their columns. */
export const COLUMN = {
  at: 0, queued: 1, running: 2, calls: 3, failures: 4, p50: 5, p99: 6, workers: 7, services: 8, dead: 9, waiting: 10,
};

/** A round number that is not below a value, and not below `least`. */
function ceiling(value, least) {
  if (value <= least) return least;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 6, 8, 10].map((step) => step * power).find((each) => each >= value * 0.999);
}

function paths(points) {
  const lines = [];
  let open = [];
  for (const point of points) {
    if (point) open.push(point);
    else if (open.length) { lines.push(open); open = []; }
  }
  if (open.length) lines.push(open);
  return lines;
}

// A point alone is a line of no length, which has round ends.
const written = (line) => (line.length === 1 ? [line[0], line[0]] : line).map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

/** Keep at most so many rows, each the highest of those that it stands for, so that no peak is lost. */
function thinned(rows, column, most) {
  if (rows.length <= most) return rows;
  const step = rows.length / most, kept = [];
  for (let at = 0; at < most; at += 1) {
    let best = null;
    for (const row of rows.slice(Math.floor(at * step), Math.floor((at + 1) * step))) {
      if (!best || (row[column] ?? -1) > (best[column] ?? -1)) best = row;
    }
    if (best) kept.push(best);
  }
  return kept;
}

/** A chart of some series: [{column, label, kind, area}]; `format` writes a value. */
export class Chart {
  constructor(title, series, format, least = 2) {
    this.series = series;
    this.least = least;
    this.width = 460;
    this.format = format;
    this.rows = [];
    this.legend = h("div", { class: "legend" });
    this.values = series.map(({ label, kind }) => {
      const value = h("b", {});
      this.legend.append(h("span", { class: `key ${kind}` }, h("i"), `${label} `, value));
      return value;
    });
    this.grid = s("g", { class: "grid" });
    this.areas = series.map(({ kind, area }) => s("path", { class: `area ${kind}`, d: "", visibility: area ? "visible" : "hidden" }));
    this.lines = series.map(({ kind }) => s("path", { class: `line ${kind}`, d: "" }));
    this.cursor = s("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    this.when = s("text", { class: "when", y: HEIGHT - 6, "text-anchor": "middle" });
    this.svg = s("svg", { viewBox: `0 0 ${this.width} ${HEIGHT}`, class: "chart", role: "img", "aria-label": title },
      this.grid, this.areas, this.lines, this.cursor, this.when);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    this.element = h("section", { class: "card chart-card" }, h("header", {}, h("h2", {}, title), this.legend), this.svg);
    // The drawing is as wide as its place, so that text keeps its size.
    this.resized = new ResizeObserver(() => {
      const width = Math.round(this.svg.clientWidth);
      if (!width || width === this.width) return;
      this.width = width;
      this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
      this.gridKey = "";
      if (this.shown) this.show(...this.shown);
    });
    this.resized.observe(this.svg);
  }

  show(history, now, seconds) {
    this.shown = [history, now, seconds];
    const { width } = this;
    const from = now - seconds;
    const rows = history.filter((row) => row[COLUMN.at] >= from - 20);
    this.rows = rows;
    const top = ceiling(rows.reduce((most, row) => Math.max(most, ...this.series.map(({ column }) => row[column] ?? 0)), 0), this.least);
    const x = (at) => LEFT + Math.min(1, Math.max(0, (at - from) / seconds)) * (width - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
    this.scale = { x, from, seconds };
    const gap = Math.max(45, seconds / 40);
    this.series.forEach(({ column, area }, at) => {
      const points = [];
      let last = null;
      for (const row of thinned(rows, column, 300)) {
        // A time without samples is a gap, not a line.
        if (last !== null && row[COLUMN.at] - last > gap) points.push(null);
        points.push(row[column] === null ? null : [x(row[COLUMN.at]), y(row[column])]);
        last = row[COLUMN.at];
      }
      const lines = paths(points);
      this.lines[at].setAttribute("d", lines.map(written).join(""));
      const base = HEIGHT - BOTTOM;
      this.areas[at].setAttribute("d", area
        ? lines.map((line) => `${written(line)}L${line[line.length - 1][0].toFixed(1)} ${base}L${line[0][0].toFixed(1)} ${base}Z`).join("")
        : "");
    });
    this.drawGrid(top, from, seconds, x, y);
    if (!this.pointed) this.tell(rows[rows.length - 1]);
  }

  drawGrid(top, from, seconds, x, y) {
    const key = `${top} ${Math.round(from / 5)} ${seconds}`;
    if (key === this.gridKey) return;
    this.gridKey = key;
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      parts.push(s("line", { x1: LEFT, x2: this.width - RIGHT, y1: y(top * share), y2: y(top * share) }));
      parts.push(s("text", { x: LEFT - 6, y: y(top * share) + 3.5, "text-anchor": "end" }, share ? this.format(top * share) : "0"));
    }
    for (const share of this.width < 400 ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1]) {
      const anchor = share === 1 ? "end" : share === 0 ? "start" : "middle";
      parts.push(s("text", { x: x(from + share * seconds), y: HEIGHT - 6, "text-anchor": anchor, class: "at" }, clock(from + share * seconds, seconds < 600)));
    }
    this.grid.replaceChildren(...parts);
  }

  point(event) {
    this.pointed = null;
    if (event && this.rows.length && this.scale) {
      const box = this.svg.getBoundingClientRect();
      const at = this.scale.from + ((((event.clientX - box.left) / box.width) * this.width - LEFT) / (this.width - LEFT - RIGHT)) * this.scale.seconds;
      this.pointed = this.rows.reduce((best, row) => (Math.abs(row[0] - at) < Math.abs(best[0] - at) ? row : best));
    }
    const shown = this.pointed ? "visible" : "hidden";
    this.cursor.setAttribute("visibility", shown);
    this.when.setAttribute("visibility", shown);
    this.svg.classList.toggle("pointed", Boolean(this.pointed));
    if (this.pointed) {
      const x = this.scale.x(this.pointed[0]);
      this.cursor.setAttribute("x1", x);
      this.cursor.setAttribute("x2", x);
      this.when.setAttribute("x", Math.min(Math.max(x, LEFT + 24), this.width - RIGHT - 24));
      this.when.textContent = clock(this.pointed[0], true);
    }
    this.tell(this.pointed || this.rows[this.rows.length - 1]);
  }

  tell(row) {
    this.series.forEach(({ column }, at) => put(this.values[at], row ? this.format(row[column]) : "–"));
  }
}

/** A line without axes, for one column of the newest samples. */
export class Sparkline {
  constructor(kind = "main") {
    this.line = s("path", { class: `line ${kind}`, d: "" });
    this.element = s("svg", { class: "sparkline", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" }, this.line);
  }

  show(history, column, now, seconds) {
    const rows = thinned(history.filter((row) => row[0] >= now - seconds), column, 60);
    const most = Math.max(1, ...rows.map((row) => row[column] ?? 0));
    this.element.classList.toggle("still", rows.every((row) => !row[column]));
    const points = rows.map((row) => [100 - ((now - row[0]) / seconds) * 100, 22 - ((row[column] ?? 0) / most) * 20]);
    this.line.setAttribute("d", points.length > 1 ? written(points) : "");
  }
}
