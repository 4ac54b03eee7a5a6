// The page: its frame, which view is shown, and the keyboard.

import { forget, onToken, token } from "./api.js";
import { h, icon, named, put, s } from "./dom.js";
import { dialog, line } from "./feedback.js";
import { number } from "./format.js";
import { store } from "./store.js";
import * as calls from "./views/calls.js";
import dead from "./views/dead.js";
import graph from "./views/graph.js";
import overview from "./views/overview.js";
import pins from "./views/pins.js";
import * as services from "./views/services.js";
import sessions from "./views/sessions.js";
import tools from "./views/tools.js";
import waiting from "./views/waiting.js";

const VIEWS = [
  { name: "", label: "Overview", icon: "overview", list: overview, key: "o" },
  { name: "services", label: "Services", icon: "services", list: services.list, one: services.one, key: "s" },
  { name: "tools", label: "Tools", icon: "tools", list: tools, one: tools, key: "t", callers: true },
  { name: "calls", label: "Calls", icon: "calls", list: calls.list, one: calls.one, key: "c" },
  { name: "waiting", label: "Waiting", icon: "waiting", list: waiting, key: "w", count: () => store.confirmations.size, tone: "warn" },
  { name: "dead", label: "Dead letters", icon: "dead", list: dead, key: "d", count: () => store.dead.size, tone: "bad" },
  { name: "sessions", label: "Sessions", icon: "sessions", list: sessions, key: "e" },
  { name: "graph", label: "Toolkit graph", icon: "graph", list: graph, key: "g" },
  { name: "pins", label: "Pins", icon: "pins", list: pins, key: "p" },
];
const ON_PHONE = 4;
const RANGES = [[300, "5 min"], [900, "15 min"], [3600, "1 hour"]];
const THEMES = { auto: "as the system", light: "light", dark: "dark" };

const queries = {};
let range = Number(localStorage.getItem("toolbus.range")) || 900;
let current = { close() {}, update() {} };
let place = { name: null, id: null };

// -- frame ------------------------------------------------------------------------------------

const mark = () => s("svg", { class: "mark", viewBox: "0 0 32 32", "aria-hidden": "true" },
  s("rect", { width: 32, height: 32, rx: 8 }), s("path", { d: "M6 16h20M10 16V9.5M16 16v6.5M22 16V9.5" }),
  s("circle", { cx: 10, cy: 9, r: 2.6 }), s("circle", { cx: 16, cy: 23, r: 2.6 }), s("circle", { cx: 22, cy: 9, r: 2.6 }));

const links = VIEWS.map((view, at) => {
  view.badge = h("span", { class: "badge", hidden: true, "data-tone": view.tone });
  view.link = h("a", { href: `#/${view.name}`, class: at < ON_PHONE ? null : "on-wide" }, icon(view.icon), h("span", {}, view.label), view.badge);
  return view.link;
});
const moreBadge = h("span", { class: "badge", hidden: true });
const more = h("button", { type: "button", class: "on-phone", onclick: () => showMore() }, icon("more"), h("span", {}, "More"), moreBadge);
const connection = h("button", { type: "button", class: "connection", onclick: () => account() }, h("i", { class: "dot" }), h("span"));
document.getElementById("nav").append(h("a", { class: "brand", href: "#/" }, mark(), h("span", {}, "toolbus")), h("div", { class: "links" }, links, more), connection);

const title = h("h1");
const namespace = h("span", { class: "namespace" });
const ranges = h("div", { class: "segments", role: "group", "aria-label": "time range" }, RANGES.map(([seconds, label]) =>
  h("button", { type: "button", "aria-pressed": String(seconds === range), onclick: (event) => {
    range = seconds;
    localStorage.setItem("toolbus.range", seconds);
    for (const each of event.target.parentNode.children) each.setAttribute("aria-pressed", String(each === event.target));
    current.range?.();
  } }, label)));
const themeButton = h("button", { type: "button", class: "icon-button", onclick: () => nextTheme() }, icon("sun"));
const phoneConnection = h("button", { type: "button", class: "connection small-connection", "aria-label": "connection", onclick: () => account() }, h("i", { class: "dot" }), h("span"));
document.getElementById("top").append(title, namespace, h("span", { class: "spacer" }), ranges, phoneConnection, themeButton);

function nextTheme() {
  const names = Object.keys(THEMES);
  theme(names[(names.indexOf(localStorage.getItem("toolbus.theme") || "auto") + 1) % names.length]);
}

function theme(name) {
  const known = name in THEMES ? name : "auto";
  localStorage.setItem("toolbus.theme", known);
  document.documentElement.dataset.theme = known;
  themeButton.title = `Colours: ${THEMES[known]}`;
  themeButton.setAttribute("aria-label", `colours: ${THEMES[known]}`);
}

// -- views ------------------------------------------------------------------------------------

const allowed = (view) => store.connection !== "live" || store.may("observe") || view.callers;

function where() {
  const [name = "", ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  let id = null;
  try {
    id = rest.length ? decodeURIComponent(rest.join("/")) : null;
  } catch {
    id = rest.join("/");
  }
  return { view: VIEWS.find((each) => each.name === name) || VIEWS[0], id };
}

function show() {
  let { view, id } = where();
  if (!allowed(view)) view = VIEWS.find((each) => each.callers);
  for (const each of VIEWS) {
    if (each === view) each.link.setAttribute("aria-current", "page");
    else each.link.removeAttribute("aria-current");
  }
  more.toggleAttribute("data-current", VIEWS.indexOf(view) >= ON_PHONE);
  put(title, view.label);
  document.title = `${id ? `${id.slice(0, 60)} · ` : ""}${view.label} · toolbus`;
  ranges.hidden = view.name !== "";
  if (place.name === view.name && place.id === id) return;
  if (place.name === view.name && current.open) {
    place.id = id;
    current.open(id);
    return;
  }
  current.close?.();
  const main = document.getElementById("main");
  main.replaceChildren();
  main.dataset.view = view.name || "overview";
  place = { name: view.name, id };
  const make = id !== null && view.one ? view.one : view.list;
  current = make(main, { id, range: () => range, query: queries[view.name] || "", setQuery: (text) => { queries[view.name] = text; } });
  window.scrollTo(0, 0);
}

function badges() {
  let hidden = 0, tone = "warn";
  VIEWS.forEach((view, at) => {
    const count = view.count?.() || 0;
    view.badge.hidden = !count;
    put(view.badge, count > 99 ? "99+" : count);
    if (at >= ON_PHONE && count) {
      hidden += count;
      if (view.tone === "bad") tone = "bad";
    }
  });
  moreBadge.hidden = !hidden;
  moreBadge.dataset.tone = tone;
  put(moreBadge, hidden > 99 ? "99+" : hidden);
}

function showMore() {
  dialog("More", (close) => h("div", { class: "sheet" }, VIEWS.slice(ON_PHONE).filter(allowed).map((view) =>
    h("a", { href: `#/${view.name}`, onclick: () => close() }, icon(view.icon), h("span", {}, view.label), view.count?.() ? h("span", { class: "badge", "data-tone": view.tone }, number(view.count())) : null))));
}

// -- connection -------------------------------------------------------------------------------

const STATES = { connecting: ["Connecting", "warn"], live: ["Live", "ok"], stale: ["Server is away", "bad"], away: ["Gateway is away", "bad"], refused: ["Not admitted", "bad"] };

function tellConnection() {
  const state = store.connection === "live" && store.away ? "stale" : store.connection;
  const [text, tone] = STATES[state];
  for (const each of [connection, phoneConnection]) {
    each.firstChild.dataset.tone = tone;
    put(each.lastChild, text);
    each.title = text;
  }
  document.body.dataset.connection = state;
  const banner = document.getElementById("banner");
  banner.hidden = state === "live" || state === "connecting";
  if (!banner.hidden) {
    const what = store.connection === "refused" ? "The gateway does not admit you." : `The ${state === "stale" ? "server" : "gateway"} is away. What you see is how it was; the page goes on when it is back.`;
    banner.replaceChildren(h("span", {}, what), " ", named(state === "stale" ? store.problems[0] || "" : store.reason), " ", store.connection === "refused" ? h("button", { type: "button", class: "small", onclick: () => signIn("") }, "Give a token") : null);
  }
  for (const view of VIEWS) view.link.hidden = !allowed(view);
}

async function signIn(why) {
  const given = await line("This gateway wants a token", why || "It is kept until this tab is closed, and sent with each request.", "Token", "Go on", { secret: true });
  if (given) {
    sessionStorage.setItem("toolbus.token", given.trim());
    location.reload();
  }
}

function account() {
  dialog("Connection", (close) => h("div", {},
    h("dl", { class: "facts" },
      [["Gateway", location.host], ["Namespace", store.me.namespace], ["You are", store.me.name], ["You may", store.me.may.join(", ")], ["Version", store.me.version]]
        .filter(([, value]) => value).map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, named(value))))),
    h("div", { class: "actions end" },
      token() ? h("button", { type: "button", onclick: () => { forget(); location.reload(); } }, "Forget the token") : h("button", { type: "button", onclick: () => { close(); signIn(""); } }, "Use a token"),
      h("button", { type: "button", class: "primary", onclick: () => close() }, "Close"))));
}

onToken(async (why) => (await line("This gateway wants a token", why || "It is kept until this tab is closed, and sent with each request.", "Token", "Go on", { secret: true }))?.trim() || "");

// -- keyboard ---------------------------------------------------------------------------------

function help() {
  const keys = [["/", "search"], ["↑ ↓ or j k", "move in a list"], ["Enter", "open"], ["Esc", "go back, or leave the search"], ["Ctrl Enter", "run the tool"],
    ...VIEWS.map((view) => [`g ${view.key}`, view.label]), ["r", "next time range"], ["x", "light or dark"], ["?", "this list"]];
  dialog("Keyboard", (close) => h("div", {}, h("dl", { class: "keys" }, keys.map(([key, text]) => h("div", {}, h("dt", {}, key.split(" ").map((each) => h("kbd", {}, each))), h("dd", {}, text)))),
    h("div", { class: "actions end" }, h("button", { type: "button", class: "primary", onclick: () => close() }, "Close"))));
}

let going = 0;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.closest("input, textarea, select");
  if (event.key === "Escape") {
    // The address is newer than the place, which follows it when the browser tells of the change.
    const [, name, id] = location.hash.split("/");
    if (typing) typing.blur();
    else if (id) location.hash = `#/${name}`;
    return;
  }
  if (typing) return;
  const search = document.querySelector("[data-search]");
  if (Date.now() < going) {
    const view = VIEWS.find((each) => each.key === event.key);
    going = 0;
    if (view) location.hash = `#/${view.name}`;
  } else if (event.key === "g") going = Date.now() + 1500;
  else if (event.key === "/" && search) search.focus();
  else if (event.key === "?") help();
  else if (event.key === "x") nextTheme();
  else if (event.key === "r") ranges.children[(RANGES.findIndex(([seconds]) => seconds === range) + 1) % RANGES.length].click();
  else return;
  event.preventDefault();
});

// -- start ------------------------------------------------------------------------------------

theme(localStorage.getItem("toolbus.theme") || "auto");
tellConnection();
show();
window.addEventListener("hashchange", show);
store.listen((topics) => {
  if (topics.has("connection") || topics.has("me")) {
    tellConnection();
    put(namespace, store.me.namespace);
    namespace.hidden = !store.me.namespace;
    show();
  }
  badges();
  current.update(topics);
});
// Charts and ages move on without news.
setInterval(() => { if (!document.hidden && store.connection === "live") store.changed("time"); }, 2000);
store.follow();

// For tests and measurements.
globalThis.toolbusPage = store;
