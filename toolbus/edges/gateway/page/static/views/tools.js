// Tools: a list of any length with a search, and one of them with its schema and a form to try it.

import { ask } from "../api.js";
import { empty, h, icon, named, put, visible, visibleLines } from "../dom.js";
import { milliseconds, number, plural, rate } from "../format.js";
import { store } from "../store.js";
import { TryOut } from "../tryout.js";
import { VirtualList } from "../virtual.js";

const EFFECTS = { read: "only reads", idempotent: "may be repeated", once: "takes effect each time" };
const ROW = 58;

function makeRow() {
  const row = h("div", { class: "tool-row" });
  row.parts = { dot: h("i", { class: "dot" }), name: h("bdi", { class: "name" }), service: h("bdi", { class: "name service" }), text: h("bdi", { class: "name text" }) };
  row.append(h("div", { class: "first" }, row.parts.dot, row.parts.name, row.parts.service), row.parts.text);
  return row;
}

function updateRow(row, tool) {
  if (row.tool === tool) return;
  row.tool = tool;
  row.parts.dot.dataset.tone = tool.available ? "ok" : "off";
  put(row.parts.name, visible(tool.name));
  put(row.parts.service, visible(tool.service));
  put(row.parts.text, visible(tool.text) || "no description");
}

const matches = (tool, words) => words.every((word) => tool.words.includes(word));

function searched(query) {
  const words = query.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  for (const tool of store.catalogue.values()) {
    tool.words ||= [tool.name, tool.service, tool.category, tool.groups.join(" "), tool.text].join(" ").toLowerCase();
    if (matches(tool, words)) found.push(tool);
  }
  const first = words[0] || "";
  return found.sort((a, b) => Number(!a.name.toLowerCase().includes(first)) - Number(!b.name.toLowerCase().includes(first)) || (a.name < b.name ? -1 : 1));
}

/** The details of one tool. */
function detail(place, name) {
  const controller = new AbortController();
  let tryout = null, digest = null;
  const state = h("span", { class: "state" });
  const facts = h("dl", { class: "facts" });
  const about = h("p", { class: "description" });
  const tags = h("div", { class: "tags" });
  const body = h("div");
  const changed = h("div", { class: "note warn", hidden: true }, "This tool has changed since the page was opened. ", h("button", { type: "button", class: "small", onclick: () => load() }, "Show it anew"));
  place.replaceChildren(h("a", { class: "back", href: "#/tools" }, icon("back"), "Tools"),
    h("section", { class: "card" }, h("header", {}, h("h2", {}, named(name), " ", state)), about, tags, changed, body));

  const stats = () => {
    const tool = store.catalogue.get(name);
    const row = tool && store.tools.get(`${tool.service} ${name}`);
    put(state, tool ? (tool.available ? "live" : "no worker") : "gone");
    state.dataset.tone = tool?.available ? "ok" : "off";
    changed.hidden = !tool || digest === null || tool.digest === digest;
    if (!row) return;
    const shown = { "Calls/s": rate(row.calls_per_s), Succeeded: number(row.succeeded), Failed: number(row.failures), "p50": milliseconds(row.p50_ms), "p99": milliseconds(row.p99_ms) };
    if (!facts.firstChild) for (const label of Object.keys(shown)) facts.append(h("div", {}, h("dt", {}, label), h("dd")));
    Object.values(shown).forEach((text, at) => put(facts.children[at].lastChild, text));
  };

  const tab = (label, panel, chosen) => {
    const button = h("button", { type: "button", role: "tab", "aria-selected": String(chosen), onclick: () => choose(button) }, label);
    button.panel = panel;
    panel.hidden = !chosen;
    return button;
  };
  let tabs = [];
  const choose = (button) => {
    for (const each of tabs) {
      each.setAttribute("aria-selected", each === button);
      each.panel.hidden = each !== button;
    }
  };

  async function load() {
    let tool;
    try {
      tool = await ask(`ui/tools/${encodeURIComponent(name)}`, { signal: controller.signal });
    } catch (error) {
      if (controller.signal.aborted) return;
      body.replaceChildren(empty("This tool can't be shown", error.message));
      return;
    }
    digest = tool.digest;
    about.textContent = visibleLines(tool.description) || "It has no description.";
    const said = [tool.service && h("a", { href: `#/services/${encodeURIComponent(tool.service)}` }, named(tool.service)), tool.category && named(tool.category), ...tool.groups.map((group) => named(group)),
      tool.effect && EFFECTS[tool.effect], tool.confirm && "a person confirms it", tool.external && "external", tool.timeout && `up to ${tool.timeout} s`].filter(Boolean);
    tags.replaceChildren(...said.map((each) => h("span", { class: "tag" }, each)));
    tryout?.close();
    tryout = new TryOut(name, tool.parameters);
    const schema = h("div", {}, h("pre", { class: "output" }, visibleLines(JSON.stringify(tool.parameters, null, 2))), h("p", { class: "help" }, "Published by ", named(tool.owner || "anyone"), ", digest ", named(tool.digest, { class: "name mono" })));
    tabs = [tab("Try", tryout.element, true), tab("Schema", schema, false), tab("Figures", h("div", {}, facts, h("p", { class: "help" }, "Counted by its workers since they started.")), false)];
    body.replaceChildren(h("div", { class: "tabs", role: "tablist" }, tabs), ...tabs.map(({ panel }) => panel));
    stats();
  }
  stats();
  load();
  return { update: stats, close: () => { controller.abort(); tryout?.close(); } };
}

export default function tools(place, { id, query, setQuery }) {
  const search = h("input", { type: "search", placeholder: "Find a tool by name, text, service or group", "aria-label": "find a tool", value: query, "data-search": "" });
  const count = h("span", { class: "count" });
  const nothing = empty("Nothing found", "No tool has all of these words in its name, description, service, category or groups.");
  const none = empty("No tools yet", "Decorate a function with @tool and start a worker; its tools appear here. Type in a terminal:", "toolbus new jokes && toolbus worker jokes.py");
  const list = new VirtualList({ height: ROW, make: makeRow, update: updateRow, label: "tools", choose: (tool) => { location.hash = `#/tools/${encodeURIComponent(tool.name)}`; } });
  const right = h("div", { class: "detail" });
  const split = h("div", { class: "split", "data-open": id ? "" : null },
    h("section", { class: "card list-card" }, h("header", {}, h("h2", {}, "Tools ", count), search), list.element, nothing, none), right);
  place.append(split);
  let found = [], current = null, chosen = null;
  const hint = empty("Choose a tool", "Its schema, its figures and a form to try it are shown here. Press / to search, ↑ and ↓ to move.");

  const draw = () => {
    found = searched(search.value);
    list.show(found, found.findIndex((tool) => tool.name === chosen));
    const total = store.catalogue.size;
    put(count, found.length === total ? number(total) : `${number(found.length)} of ${number(total)}`);
    nothing.hidden = found.length > 0 || total === 0;
    none.hidden = total > 0 || !store.loaded;
    list.element.hidden = found.length === 0;
  };
  const open = (name) => {
    chosen = name;
    current?.close();
    current = name ? detail(right, name) : null;
    if (!name) right.replaceChildren(hint);
    split.toggleAttribute("data-open", Boolean(name));
    list.show(found, found.findIndex((tool) => tool.name === name));
  };
  search.addEventListener("input", () => { setQuery(search.value); list.element.scrollTop = 0; draw(); });
  search.addEventListener("keydown", (event) => { if (event.key === "ArrowDown") { list.element.focus(); event.preventDefault(); } });
  draw();
  open(id);
  if (id) list.reveal(Math.max(0, found.findIndex((tool) => tool.name === id)));
  return {
    update(topics) {
      if (topics.has("catalogue")) draw();
      if (topics.has("catalogue") || topics.has("tools")) current?.update();
    },
    // Going from tool to tool keeps the list where it is.
    open,
    close: () => current?.close(),
    title: () => plural(store.catalogue.size, "tool"),
  };
}
