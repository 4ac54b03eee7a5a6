// The state of the namespace at a glance: counts, the last hour, and what needs a person.

import { COLUMN, Chart, Sparkline } from "../chart.js";
import { empty, h, named, put } from "../dom.js";
import { milliseconds, number, plural, rate } from "../format.js";
import { store } from "../store.js";
import { serviceTable } from "./services.js";

const last = () => store.history[store.history.length - 1] || [];
const sum = (field) => [...store.services.values()].reduce((total, row) => total + row[field], 0);

const TILES = [
  { label: "Services", value: () => `${[...store.services.values()].filter((row) => row.live).length}`, note: () => `of ${store.services.size} live`, to: "#/services" },
  { label: "Workers", value: () => number(store.instances.size), note: () => (store.silent.length ? `${plural(store.silent.length, "does not", "do not")} answer` : "processes"), column: COLUMN.workers, to: "#/services" },
  { label: "Queued", value: () => number(sum("queued")), note: () => "requests wait", column: COLUMN.queued, kind: "queued", to: "#/services" },
  { label: "In flight", value: () => number(sum("running")), note: () => "at workers", column: COLUMN.running, kind: "running", to: "#/services" },
  { label: "Calls", value: () => rate(last()[COLUMN.calls] ?? 0), note: () => "per second", column: COLUMN.calls, to: "#/calls" },
  { label: "Failures", value: () => rate(last()[COLUMN.failures] ?? 0), note: () => "per second", column: COLUMN.failures, kind: "bad", to: "#/calls", tone: () => (last()[COLUMN.failures] > 0 ? "bad" : "") },
  { label: "Waiting", value: () => number(store.confirmations.size), note: () => "for a person", to: "#/waiting", tone: () => (store.confirmations.size ? "warn" : "") },
  { label: "Dead letters", value: () => number(sum("dead")), note: () => "set aside", to: "#/dead", tone: () => (sum("dead") ? "bad" : "") },
];

class Tile {
  constructor(about) {
    this.about = about;
    this.value = h("strong");
    this.note = h("span", { class: "help" });
    this.spark = about.column ? new Sparkline(about.kind) : null;
    this.element = h("a", { class: "tile", href: about.to }, h("span", { class: "label" }, about.label), this.value, this.note, this.spark?.element);
  }

  show() {
    put(this.value, this.about.value());
    put(this.note, this.about.note());
    this.element.dataset.tone = this.about.tone?.() || "";
    this.spark?.show(store.history, this.about.column, store.now(), 300);
  }
}

function attention() {
  const found = [];
  // What is wrong, the causes first, as `toolbus doctor` says it.
  for (const text of store.problems.slice(0, 10)) found.push(["bad", [named(text)], "#/services"]);
  if (store.confirmations.size) found.push(["warn", `${plural(store.confirmations.size, "call")} ${store.confirmations.size === 1 ? "waits" : "wait"} for a person`, "#/waiting"]);
  for (const row of [...store.refused.values()].slice(0, 5)) found.push(["warn", ["The tool ", named(row.name), " can't be used: ", named(row.reason)], "#/tools"]);
  return found;
}

export default function overview(place, { range }) {
  const tiles = TILES.map((about) => new Tile(about));
  const charts = [
    new Chart("Load", [{ column: COLUMN.queued, label: "queued", kind: "queued", area: true }, { column: COLUMN.running, label: "in flight", kind: "running" }], number, 4),
    new Chart("Calls per second", [{ column: COLUMN.calls, label: "calls", kind: "main", area: true }, { column: COLUMN.failures, label: "failures", kind: "bad" }], rate),
    new Chart("Latency", [{ column: COLUMN.p99, label: "p99", kind: "queued" }, { column: COLUMN.p50, label: "p50", kind: "main" }], milliseconds, 10),
  ];
  const needs = h("ul", { class: "attention" });
  const quiet = h("p", { class: "quiet-note" }, "Nothing needs you");
  const services = serviceTable(10);
  const none = empty("No services yet", "A worker publishes its tools when it starts, and they appear here. Type in a terminal:", "toolbus new jokes && toolbus worker jokes.py");
  const busiest = h("section", { class: "card" }, h("header", {}, h("h2", {}, "Busiest services"), h("a", { href: "#/services", class: "more" }, "All services")), services.element, none);
  place.append(
    h("div", { class: "tiles" }, tiles.map(({ element }) => element)),
    h("div", { class: "charts" }, charts.map(({ element }) => element)),
    h("div", { class: "columns" }, busiest, h("section", { class: "card attention-card" }, h("header", {}, h("h2", {}, "Needs attention"), quiet), needs)));

  let shown = "";
  const drawCharts = () => {
    const now = store.now();
    charts.forEach((chart) => chart.show(store.history, now, range()));
    tiles.forEach((tile) => tile.show());
  };
  const draw = () => {
    drawCharts();
    const rows = [...store.services.values()];
    services.show(rows);
    none.hidden = rows.length > 0;
    services.element.hidden = rows.length === 0;
    const found = attention();
    const key = JSON.stringify(found.map(([kind, text, to]) => [kind, [text].flat().map((each) => each.textContent ?? each), to]));
    if (key !== shown) {
      shown = key;
      needs.replaceChildren(...found.slice(0, 12).map(([kind, text, to]) => h("li", {}, h("a", { href: to, "data-tone": kind }, h("i", { class: "dot" }), h("span", {}, text)))));
      quiet.hidden = found.length > 0;
    }
  };
  draw();
  return { update: draw, range: drawCharts };
}
