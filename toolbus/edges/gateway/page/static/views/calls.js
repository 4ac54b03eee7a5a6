// Recent calls with their attempts and errors, and the timeline of one of them.

import { empty, h, icon, named, put, visible, visibleLines } from "../dom.js";
import { clock, day, duration, milliseconds, number, plural, short } from "../format.js";
import { store } from "../store.js";
import { Table, nameCell } from "../table.js";

const TONES = { succeeded: "ok", failed: "bad", dead: "bad", lost: "bad", cancelled: "off", retried: "warn" };
const TOLD = {
  succeeded: "succeeded", failed: "failed", dead: "became a dead letter", lost: "was lost with its worker", cancelled: "was cancelled",
  retried: "failed and is tried again",
};

/** The attempts that are known, as calls with the newest first. */
function calls() {
  const found = new Map();
  for (const row of store.recent.values()) {
    if (!found.has(row.id)) found.set(row.id, []);
    found.get(row.id).push(row);
  }
  return [...found.values()].map(callOf);
}

function callOf(attempts) {
  attempts.sort((a, b) => a.attempt - b.attempt || a.ended - b.ended);
  const last = attempts[attempts.length - 1];
  const times = attempts.flatMap(({ queued, taken, ended }) => [queued, taken, ended]).filter(Boolean);
  return { ...last, attempts, began: Math.min(...times), total: (last.ended - Math.min(...times)) * 1000, count: Math.max(last.attempt, attempts.length) };
}

const waited = ({ queued, taken }) => (queued && taken ? Math.max(0, (taken - queued) * 1000) : null);
const ran = ({ taken, ended }) => (taken && ended ? Math.max(0, (ended - taken) * 1000) : null);

const outcome = (row, td) => {
  const key = `${row.outcome} ${row.error}`;
  if (td.shown === key) return;
  td.shown = key;
  td.replaceChildren(h("span", { class: "titled" }, h("i", { class: "dot", "data-tone": TONES[row.outcome] || "off" }), row.error ? visible(row.error).slice(0, 60) : row.outcome));
};

const COLUMNS = [
  { label: "Tool", wide: true, by: (row) => row.tool, cell: (row, td) => nameCell(td, row.tool || row.service, (name) => named(name)) },
  { label: "Outcome", by: (row) => row.outcome, cell: outcome },
  { label: "When", text: (row) => day(row.ended), by: (row) => row.ended, numeric: true },
  { label: "Queued", text: (row) => milliseconds(waited(row.attempts[0])), by: (row) => waited(row.attempts[0]), numeric: true },
  { label: "Ran", text: (row) => milliseconds(ran(row)), by: (row) => ran(row), numeric: true },
  { label: "Attempts", text: (row) => number(row.count), by: (row) => row.count, numeric: true, tone: (row) => (row.count > 1 ? "warn" : "faint") },
  { label: "User", text: (row) => visible(row.user || "–").slice(0, 60), by: (row) => row.user },
  { label: "Worker", text: (row) => visible(short(row.instance || "–")), by: (row) => row.instance, kind: "mono secondary" },
];

const RUNNING = [
  { label: "Tool", wide: true, by: (row) => row.tool, cell: (row, td) => nameCell(td, row.tool || row.service, (name) => named(name)) },
  { label: "Runs for", text: (row) => (row.stopped ? "stopping" : row.since ? duration(store.now() - row.since) : "waits"), by: (row) => -row.since, numeric: true },
  { label: "Attempt", text: (row) => number(row.attempt), by: (row) => row.attempt, numeric: true, tone: (row) => (row.attempt > 1 ? "warn" : "faint") },
  { label: "User", text: (row) => visible(row.user || "–").slice(0, 60), by: (row) => row.user },
  { label: "Worker", text: (row) => visible(short(row.instance || "–")), by: (row) => row.instance, kind: "mono secondary" },
  { label: "Call", text: (row) => visible(short(row.id)), by: (row) => row.id, kind: "mono secondary" },
];

const FILTERS = { all: () => true, failed: (row) => ["failed", "dead"].includes(row.outcome), again: (row) => row.count > 1 };

export function list(place, { query, setQuery }) {
  const search = h("input", { type: "search", placeholder: "Find by tool, user, error or id", "aria-label": "find a call", value: query, "data-search": "" });
  const select = h("select", { "aria-label": "which calls" }, h("option", { value: "all" }, "All calls"), h("option", { value: "failed" }, "Failed"), h("option", { value: "again" }, "More than one attempt"));
  const table = new Table({ columns: COLUMNS, key: (row) => row.id, label: "recent calls", sort: 2, descending: true, open: (row) => `#/calls/${encodeURIComponent(row.id)}`, most: 300 });
  const none = empty("No calls yet", "The last calls of the namespace are listed here, whoever makes them. Try a tool on this page, or type in a terminal:", "toolbus call NAME argument=value");
  const nothing = empty("Nothing found", "None of the recent calls fits.");
  const count = h("span", { class: "count" });
  const running = new Table({ columns: RUNNING, key: (row) => `${row.instance} ${row.id}`, label: "running calls", sort: 1, descending: true, most: 300 });
  const held = h("span", { class: "count" });
  const now = h("section", { class: "card" }, h("header", {}, h("h2", {}, "Running now ", held)), running.element);
  const drawRunning = () => {
    const rows = [...store.running.values()];
    running.show(rows);
    now.hidden = !rows.length;
    put(held, number(rows.length));
  };
  place.append(now, h("section", { class: "card" }, h("header", {}, h("h2", {}, "Recent calls ", count), h("div", { class: "actions" }, select, search)), table.element, none, nothing));
  const draw = () => {
    const all = calls();
    const words = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const rows = all.filter((row) => {
      if (!FILTERS[select.value](row)) return false;
      const text = `${row.id} ${row.tool} ${row.service} ${row.user} ${row.session} ${row.error} ${row.code} ${row.instance}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    table.show(rows);
    table.element.hidden = !rows.length;
    none.hidden = all.length > 0;
    nothing.hidden = rows.length > 0 || !all.length;
    put(count, number(all.length));
  };
  search.addEventListener("input", () => { setQuery(search.value); draw(); });
  select.addEventListener("change", draw);
  draw();
  drawRunning();
  return {
    update: (topics) => {
      if (topics.has("recent")) draw();
      if (topics.has("running")) drawRunning();
      else running.refresh();
    },
  };
}

function bar(kind, from, to, scale, title) {
  const made = h("i", { class: `bar ${kind}`, title });
  made.style.left = `${scale(from)}%`;
  made.style.width = `${Math.max(0.4, scale(to) - scale(from))}%`;
  return made;
}

function track(attempt, previous, scale) {
  const parts = [];
  const unknown = attempt.attempt > 1 && !previous;
  const from = previous ? previous.ended : attempt.queued;
  if (unknown && from && attempt.taken > from) parts.push(bar("unknown", from, attempt.taken, scale, "earlier attempts, which are not among the recent calls"));
  else if (from && attempt.taken && attempt.taken > from) parts.push(bar("queued", from, attempt.taken, scale, `waited ${milliseconds((attempt.taken - from) * 1000)}`));
  const began = attempt.taken || previous?.ended || attempt.queued || attempt.ended;
  parts.push(bar(attempt.taken ? TONES[attempt.outcome] || "off" : "unknown", began, attempt.ended, scale, `${TOLD[attempt.outcome]} after ${milliseconds((attempt.ended - began) * 1000)}`));
  if (attempt.first) {
    const mark = h("i", { class: "first-text", title: `first text after ${milliseconds((attempt.first - began) * 1000)}` });
    mark.style.left = `${scale(attempt.first)}%`;
    parts.push(mark);
  }
  return h("div", { class: "track" }, parts);
}

function timeline(call) {
  const end = Math.max(...call.attempts.map(({ ended }) => ended));
  const span = Math.max(end - call.began, 0.0005);
  const scale = (at) => Math.min(100, Math.max(0, ((at - call.began) / span) * 100));
  const rows = call.attempts.map((attempt, at) =>
    h("div", { class: "lane" },
      h("div", { class: "lane-name" }, h("b", {}, `Attempt ${attempt.attempt}`), h("span", { class: "help" }, named(short(attempt.instance || "unknown worker"), { class: "name mono", title: visible(attempt.instance) }))),
      track(attempt, call.attempts[at - 1], scale)));
  const axis = h("div", { class: "lane axis" }, h("div"), h("div", { class: "track-axis" }, [0, 0.25, 0.5, 0.75, 1].map((share) => h("span", {}, share ? milliseconds(span * share * 1000) : "0"))));
  const keys = [["queued", "waits for a worker"], ["ok", "runs"], ["bad", "fails or is lost"], ["first", "first text"]];
  return h("div", { class: "timeline" }, rows, axis, h("div", { class: "legend" }, keys.map(([kind, text]) => h("span", { class: `bar-key ${kind}` }, h("i"), text))));
}

function steps(attempt) {
  const lines = [];
  const line = (at, text) => { if (at) lines.push([at, text]); };
  if (attempt.attempt === 1) line(attempt.queued, "published");
  line(attempt.taken, ["taken by ", named(attempt.instance, { class: "name mono" })]);
  line(attempt.first, "sent its first text");
  line(attempt.ended, attempt.by ? [TOLD[attempt.outcome] || attempt.outcome, ", taken over by ", named(attempt.by, { class: "name mono" })] : TOLD[attempt.outcome] || attempt.outcome);
  return h("ol", { class: "steps" }, lines.map(([at, text]) => h("li", {}, h("time", {}, `${clock(at, true)}.${String(Math.floor((at % 1) * 1000)).padStart(3, "0")}`), h("span", {}, text))));
}

function attemptCard(attempt) {
  return h("section", { class: "attempt" },
    h("h3", {}, h("i", { class: "dot", "data-tone": TONES[attempt.outcome] || "off" }), `Attempt ${attempt.attempt} ${TOLD[attempt.outcome] || attempt.outcome}`),
    attempt.error || attempt.message ? h("div", { class: "note bad" }, h("b", {}, [attempt.error, attempt.code].filter(Boolean).map(visible).join(" · ")), " ", visibleLines(attempt.message).slice(0, 4000)) : null,
    steps(attempt));
}

export function one(place, { id }) {
  const body = h("div", { class: "stack" });
  place.append(h("a", { class: "back", href: "#/calls" }, icon("back"), "Calls"), body);
  let shown = "";
  const draw = () => {
    const attempts = [...store.recent.values()].filter((row) => row.id === id);
    const key = attempts.map(({ entry }) => entry).join(" ");
    if (key === shown && shown) return;
    shown = key;
    if (!attempts.length) {
      body.replaceChildren(empty("This call is not among the recent ones", "It may still run, or it ended too long ago: only the last calls of a namespace are kept."));
      return;
    }
    const call = callOf(attempts);
    const facts = { Call: call.id, Service: call.service, User: call.user, Session: call.session, Trace: call.trace, Caller: call.agent };
    body.replaceChildren(
      h("section", { class: "card" },
        h("header", {}, h("h2", {}, call.tool ? h("a", { href: `#/tools/${encodeURIComponent(call.tool)}` }, named(call.tool)) : named(call.service), " ",
          h("span", { class: "state", "data-tone": TONES[call.outcome] || "off" }, call.outcome)), h("span", { class: "help" }, `${plural(call.count, "attempt")} · ${milliseconds(call.total)} · ${day(call.ended)}`)),
        timeline(call),
        h("dl", { class: "facts wide-facts" }, Object.entries(facts).filter(([, value]) => value).map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, named(value, { class: "name mono" }))))),
        call.arguments ? h("details", {}, h("summary", {}, "Arguments"), h("pre", { class: "output" }, visibleLines(call.arguments))) : null),
      h("section", { class: "card" }, h("header", {}, h("h2", {}, "Attempts")), call.attempts.map(attemptCard)));
  };
  draw();
  drawRunning();
  return {
    update: (topics) => {
      if (topics.has("recent")) draw();
      if (topics.has("running")) drawRunning();
      else running.refresh();
    },
  };
}
