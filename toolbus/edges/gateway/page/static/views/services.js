// Services, their workers and tools, and one of them in detail.

import { post } from "../api.js";
import { empty, h, icon, named, put, visibleLines } from "../dom.js";
import { sure, toast } from "../feedback.js";
import { day, duration, milliseconds, number, rate, short } from "../format.js";
import { store } from "../store.js";
import { Table, nameCell } from "../table.js";

// Whatever the reason, requests that wait without a worker need a person.
const TONES = { live: "ok", asleep: "off", withdrawn: "off", down: "bad" };
const state = (row) => (row.paused ? ["paused", "warn"] : !row.live && row.queued ? ["no worker", "bad"] : [row.state, TONES[row.state] ?? "bad"]);

function nameWithState(row, td) {
  if (!td.parts) {
    td.parts = { dot: h("i", { class: "dot" }), name: named(row.id), word: h("span", { class: "state" }) };
    td.append(h("span", { class: "titled" }, td.parts.dot, td.parts.name, td.parts.word));
  }
  const [word, tone] = state(row);
  td.parts.dot.dataset.tone = tone;
  td.parts.word.hidden = word === "live";
  put(td.parts.word, word);
}

const COLUMNS = [
  { label: "Service", cell: nameWithState, by: (row) => row.id, wide: true },
  { label: "Workers", text: (row) => number(row.workers), by: (row) => row.workers, numeric: true },
  { label: "Queued", text: (row) => number(row.queued), by: (row) => row.queued, numeric: true, tone: (row) => (row.queued ? "queued" : "faint") },
  { label: "In flight", text: (row) => number(row.running), by: (row) => row.running, numeric: true, tone: (row) => (row.running ? "" : "faint") },
  { label: "Calls/s", text: (row) => rate(row.calls_per_s), by: (row) => row.calls_per_s, numeric: true, tone: (row) => (row.calls_per_s ? "" : "faint") },
  { label: "Failures/s", text: (row) => rate(row.failures_per_s), by: (row) => row.failures_per_s, numeric: true, tone: (row) => (row.failures_per_s ? "bad" : "faint") },
  { label: "p50", text: (row) => milliseconds(row.p50_ms), by: (row) => row.p50_ms, numeric: true },
  { label: "p99", text: (row) => milliseconds(row.p99_ms), by: (row) => row.p99_ms, numeric: true },
  { label: "Dead", text: (row) => number(row.dead), by: (row) => row.dead, numeric: true, tone: (row) => (row.dead ? "bad" : "faint") },
  { label: "Tools", text: (row) => number(row.tools), by: (row) => row.tools, numeric: true, kind: "secondary" },
];

const activity = (row) => row.calls_per_s * 1000 + row.queued + row.running + (row.live ? 0.5 : 0);

/** A table of services; of the busiest ones alone when `most` is given. */
export function serviceTable(most = 0) {
  const table = new Table({
    columns: COLUMNS, key: (row) => row.id, label: "services", open: (row) => `#/services/${encodeURIComponent(row.id)}`, most: most || 1000,
  });
  if (!most) return table;
  // The order is that of the names, so that rows do not jump about while they change.
  const show = table.show.bind(table);
  table.show = (rows) => show([...rows].sort((a, b) => activity(b) - activity(a)).slice(0, most));
  return table;
}

const INSTANCE_COLUMNS = [
  {
    label: "Worker", wide: true, by: (row) => row.id,
    cell(row, td) {
      if (!td.parts) {
        td.parts = { dot: h("i", { class: "dot" }), word: h("span", { class: "state" }) };
        td.append(h("span", { class: "titled" }, td.parts.dot, named(row.id, { class: "name mono" }), td.parts.word));
      }
      const silent = !row.unknown && (store.silent.includes(row.id) || !row.answered);
      td.parts.dot.dataset.tone = row.gone || row.unknown ? "off" : silent ? "bad" : "ok";
      td.parts.word.hidden = !row.gone && !silent;
      put(td.parts.word, row.gone ? `gone since ${day(row.gone)}` : "does not answer");
    },
  },
  { label: "Host", text: (row) => (row.host ? `${row.host.slice(0, 60)} · ${row.pid}` : "–"), by: (row) => row.host },
  { label: "Services", text: (row) => (row.services.length > 3 ? number(row.services.length) : row.services.join(", ").slice(0, 120)), by: (row) => row.services.length },
  { label: "Busy", text: (row) => (row.gone ? "–" : row.slots ? `${number(row.running)} of ${number(row.slots)}` : "–"), by: (row) => row.running, numeric: true },
  { label: "Calls/s", text: (row) => (row.gone ? "–" : rate(row.calls_per_s)), by: (row) => row.calls_per_s, numeric: true },
  { label: "Calls", text: (row) => number(row.calls), by: (row) => row.calls, numeric: true },
  { label: "Failures", text: (row) => number(row.failures), by: (row) => row.failures, numeric: true, tone: (row) => (row.failures ? "bad" : "faint") },
  { label: "Up", text: (row) => (row.gone || !row.answered ? "–" : duration(store.now() - row.started)), by: (row) => -row.started, numeric: true },
  { label: "Version", text: (row) => (row.version || "–").slice(0, 30), by: (row) => row.version, kind: "secondary" },
];

const instanceTable = () => new Table({ columns: INSTANCE_COLUMNS, key: (row) => row.id, label: "workers" });

const TOOL_COLUMNS = [
  { label: "Tool", wide: true, by: (row) => row.name, cell: (row, td) => nameCell(td, row.name, (name) => h("a", { href: `#/tools/${encodeURIComponent(name)}` }, named(name))) },
  { label: "Calls/s", text: (row) => rate(row.stats?.calls_per_s ?? 0), by: (row) => row.stats?.calls_per_s, numeric: true },
  { label: "Succeeded", text: (row) => number(row.stats?.succeeded ?? 0), by: (row) => row.stats?.succeeded, numeric: true },
  { label: "Failed", text: (row) => number(row.stats?.failures ?? 0), by: (row) => row.stats?.failures, numeric: true, tone: (row) => (row.stats?.failures ? "bad" : "faint") },
  { label: "p50", text: (row) => milliseconds(row.stats?.p50_ms), by: (row) => row.stats?.p50_ms, numeric: true },
  { label: "p99", text: (row) => milliseconds(row.stats?.p99_ms), by: (row) => row.stats?.p99_ms, numeric: true },
  { label: "Last error", text: (row) => (row.stats?.last_error ? `${row.stats.last_error.type}: ${visibleLines(row.stats.last_error.message || row.stats.last_error.code || "").slice(0, 160)}` : "–") },
];

const instancesOf = (service) => [...store.instances.values(), ...store.gone.values()].filter((row) => !service || row.services.includes(service));

export function list(place, { query, setQuery }) {
  const search = h("input", { type: "search", placeholder: "Find a service", "aria-label": "find a service", value: query, "data-search": "" });
  const services = serviceTable();
  const workers = instanceTable();
  const none = empty("No services yet", "A worker publishes its services when it starts, and they appear here within a second. Type in a terminal:", "toolbus new jokes && toolbus worker jokes.py");
  const nothing = empty("Nothing found", "No service has these letters in its name.");
  const noWorkers = empty("No workers", "Start as many as you like; they share the work of a service.", "toolbus worker jokes.py");
  const count = h("span", { class: "count" }), workerCount = h("span", { class: "count" });
  place.append(
    h("section", { class: "card" }, h("header", {}, h("h2", {}, "Services ", count), search), services.element, none, nothing),
    h("section", { class: "card" }, h("header", {}, h("h2", {}, "Workers ", workerCount)), workers.element, noWorkers));
  const draw = () => {
    const wanted = search.value.trim().toLowerCase();
    const all = [...store.services.values()];
    const rows = all.filter((row) => row.id.toLowerCase().includes(wanted));
    services.show(rows);
    services.element.hidden = !rows.length;
    none.hidden = all.length > 0;
    nothing.hidden = rows.length > 0 || !all.length;
    put(count, number(all.length));
    const instances = instancesOf("");
    workers.show(instances);
    workers.refresh();
    workers.element.hidden = !instances.length;
    noWorkers.hidden = instances.length > 0;
    put(workerCount, number(store.instances.size));
  };
  search.addEventListener("input", () => { setQuery(search.value); draw(); });
  draw();
  return { update: (topics) => { if (["services", "instances", "problems"].some((topic) => topics.has(topic))) draw(); } };
}

export function one(place, { id }) {
  const facts = h("dl", { class: "facts" });
  const workers = instanceTable();
  const tools = new Table({ columns: TOOL_COLUMNS, key: (row) => row.name, label: "tools of the service", open: (row) => `#/tools/${encodeURIComponent(row.name)}` });
  const toggle = h("button", { type: "button", onclick: () => pause() });
  const gone = empty("This service is not there", "Its last worker has left, or it never existed. It appears again when a worker starts that serves it.");
  const noWorkers = empty("No worker serves it now", "Requests wait in its queue until one starts.");
  const noTools = empty("No tools", "Its publication has none, or none that can be used.");
  const word = h("span", { class: "state" });
  const body = h("div", { class: "stack" },
    h("section", { class: "card" }, h("header", {}, h("h2", {}, named(id), " ", word), h("div", { class: "actions" }, toggle)), facts),
    h("section", { class: "card" }, h("header", {}, h("h2", {}, "Workers")), workers.element, noWorkers),
    h("section", { class: "card" }, h("header", {}, h("h2", {}, "Tools")), tools.element, noTools));
  place.append(h("a", { class: "back", href: "#/services" }, icon("back"), "Services"), body, gone);

  async function pause() {
    const row = store.services.get(id);
    if (!row) return;
    if (!row.paused && !(await sure("Pause the service?", "Its workers stop taking requests. What runs goes on, and what comes waits in the queue.", "Pause", ""))) return;
    try {
      await post(row.paused ? "ui/services/resume" : "ui/services/pause", { service: id });
      toast(row.paused ? "It goes on." : "It is paused.");
    } catch (error) {
      toast(error.message, "bad");
    }
  }

  const cells = new Map();
  const fact = (label, text) => {
    if (!cells.has(label)) {
      const made = h("dd");
      cells.set(label, made);
      facts.append(h("div", {}, h("dt", {}, label), made));
    }
    put(cells.get(label), text);
  };
  const draw = () => {
    const row = store.services.get(id);
    body.hidden = !row;
    gone.hidden = Boolean(row);
    if (!row) return;
    const [text, tone] = state(row);
    put(word, text);
    word.dataset.tone = tone;
    toggle.hidden = !store.may("operate");
    put(toggle, row.paused ? "Resume" : "Pause");
    fact("Queued", number(row.queued));
    fact("In flight", number(row.running));
    fact("Calls/s", rate(row.calls_per_s));
    fact("Failures/s", rate(row.failures_per_s));
    fact("p50", milliseconds(row.p50_ms));
    fact("p99", milliseconds(row.p99_ms));
    fact("Dead letters", number(row.dead));
    fact("Owner", row.owner ? visibleLines(row.owner).slice(0, 200) : "anyone");
    fact("Last worker went", row.gone ? day(row.gone) : "–");
    fact("Publication", row.digest ? short(row.digest) : "–");
    const instances = instancesOf(id);
    workers.show(instances);
    workers.refresh();
    workers.element.hidden = !instances.length;
    noWorkers.hidden = instances.length > 0;
    const rows = [...store.catalogue.values()].filter((each) => each.service === id).map((each) => ({ name: each.name, stats: store.tools.get(`${id} ${each.name}`) }));
    tools.show(rows);
    tools.element.hidden = !rows.length;
    noTools.hidden = rows.length > 0;
  };
  draw();
  return { update: draw };
}
