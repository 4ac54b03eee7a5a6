// Runs the page's script in a document of a few lines, does what a user would, and prints what came of it.
"use strict";
const fs = require("fs");
const path = require("path");
const folder = process.argv[2];

class Node {
  constructor(name) { Object.assign(this, { name, attributes: {}, children: [], listeners: {}, style: {}, value: "", hidden: false, text: "" }); }
  get textContent() { return this.text + this.children.map((child) => child.textContent).join(""); }
  set textContent(text) { this.children = []; this.text = String(text); }
  setAttribute(key, value) { this.attributes[key] = String(value); }
  appendChild(child) { this.children.push(child); return child; }
  replaceChildren() { this.children = []; this.text = ""; }
  addEventListener(kind, listener) { (this.listeners[kind] ||= []).push(listener); }
  setPointerCapture() {}
  getBoundingClientRect() { return { left: 0, top: 0, width: 800, height: 600 }; }
  get clientWidth() { return 800; }
  get clientHeight() { return 600; }
  get classes() { return (this.attributes.class || "").split(" ").filter(Boolean); }
  get classList() {
    return { toggle: (name, on) => { this.attributes.class = [...this.classes.filter((each) => each !== name), ...(on ? [name] : [])].join(" "); } };
  }
  fire(kind, event = {}) {
    for (const listener of this.listeners[kind] || []) {
      listener({ clientX: 0, clientY: 0, pointerId: 1, preventDefault() {}, stopPropagation() {}, ...event });
    }
  }
  all() { return [this, ...this.children.flatMap((child) => child.all())]; }
}

const parts = Object.fromEntries(["data", "graph", "details", "least", "least-value", "find", "fit", "count"].map((id) => [id, new Node(id)]));
const data = JSON.parse(fs.readFileSync(path.join(folder, "data.json"), "utf8"));
parts.data.textContent = JSON.stringify(data);
parts.least.value = "0";
globalThis.document = { getElementById: (id) => parts[id], createElementNS: (_, name) => new Node(name), createElement: (name) => new Node(name) };
globalThis.window = { innerWidth: 800, innerHeight: 600 };
eval(fs.readFileSync(path.join(folder, "page.js"), "utf8"));

const svg = parts.graph;
const of = (name) => svg.all().filter((node) => node.classes.includes(name));
const vertices = of("vertex"), edges = of("edge");
const vertex = (id) => vertices[data.vertices.findIndex((each) => each.id === id)];
const edge = (from, to) => edges[data.edges.findIndex((each) => each.from === from && each.to === to)];
const squeezed = (text) => Array.from(text.trim().split(/\s+/).join(" "));
const told = {};

const named = (node, about) => {
  const text = node.children[1].textContent, whole = squeezed(about.name);
  return node.children[1].name === "text" && (text === whole.join("") || text === whole.slice(0, 17).join("") + "…");
};
told.drawn = {
  vertices: vertices.length, edges: edges.length, texts_are_names: vertices.every((node, number) => named(node, data.vertices[number])),
};
told.paths_are_numbers = edges.every((node) => /^M[-\d.,e]+ C[-\d.,e]+ [-\d.,e]+ [-\d.,e]+$/.test(node.children[0].attributes.d));

const away = (node) => node.classes.includes("away");
parts.least.value = "0.6";
parts.least.fire("input");
told["least 0.6"] = {
  edges_away: edges.filter(away).length, tool_away: away(vertex("t0")), group_away: away(vertex("g0")), action_away: away(vertex("a1")),
};
parts.least.value = "0";
parts.least.fire("input");
told["least 0"] = { edges_away: edges.filter(away).length };

parts.find.value = "THE A0";
parts.find.fire("input");
told.found = { bright: data.vertices.filter((_, number) => !vertices[number].classes.includes("faint")).map((each) => each.id) };
parts.find.value = "";
parts.find.fire("input");

vertex("a0").fire("pointerenter", { clientX: 10, clientY: 10 });
const shown = !parts.details.hidden, bold = parts.details.children[0].textContent;
vertex("a0").fire("pointerleave");
told.details = { shown, bold, hidden_after: parts.details.hidden };

const view = () => svg.attributes.viewBox;
const before = { place: vertex("a0").attributes.transform, line: edge("a0", "a1").children[0].attributes.d, view: view() };
vertex("a0").fire("pointerdown", { clientX: 100, clientY: 100 });
svg.fire("pointermove", { clientX: 150, clientY: 120 });
svg.fire("pointerup");
told.dragged = {
  moved: vertex("a0").attributes.transform !== before.place, edge_moved: edge("a0", "a1").children[0].attributes.d !== before.line,
  view_stayed: view() === before.view,
};
svg.fire("pointermove", { clientX: 400, clientY: 400 });
const still = view() === before.view;
svg.fire("pointerdown", { clientX: 100, clientY: 100 });
svg.fire("pointermove", { clientX: 150, clientY: 120 });
svg.fire("pointerup");
const panned = view();
told.panned = still && panned !== before.view;
svg.fire("wheel", { deltaY: -100, clientX: 400, clientY: 300 });
told.zoomed = Number(view().split(" ")[2]) < Number(panned.split(" ")[2]);
parts.fit.fire("click");
told.fitted = view() !== panned && view().split(" ").every((number) => Number.isFinite(Number(number)));
process.stdout.write(JSON.stringify(told));
