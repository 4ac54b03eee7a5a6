// Build elements. Text from tools and services only ever becomes text nodes and attributes that hold text, never markup.

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "open", "selected", "readOnly", "indeterminate"]);

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (PROPERTIES.has(key)) element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  // Browsers want a name for each field, and none of these is ever sent as a form.
  if ((element.localName === "input" || element.localName === "select" || element.localName === "textarea") && !element.name) element.name = element.id || "field";
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.appendChild(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** Return an element; keys that begin with "on" are listeners. */
export const h = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);

/** Return an SVG element. */
export const s = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

/** Set the text of an element unless it has it already, so that an unchanged value costs no layout. */
export function put(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]/gu;
const HIDDEN_IN_LINES = /[\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]|(?![\n\t])\p{Cc}/gu;
const escaped = (character) => `\\u{${character.codePointAt(0).toString(16)}}`;

/** Return a text on one line, with characters that hide or reorder others written out. */
export const visible = (text) => String(text).replace(HIDDEN, escaped);

/** The same with line breaks kept; the joiners that emoji and many languages need stay, too. */
export const visibleLines = (text) =>
  String(text).replace(/\r\n/g, "\n").replace(HIDDEN_IN_LINES, (found) => (found === "\u200d" || found === "\u200c" ? found : escaped(found)));

/** Return an element for a name that somebody else chose: cut to fit, isolated from the direction of what is around it. */
export function named(text, attributes = {}) {
  const shown = visible(text);
  return h("bdi", { class: "name", title: shown.length > 24 ? shown.slice(0, 400) : null, ...attributes }, shown.slice(0, 400));
}

/** Keep the children of an element equal to a list: made, updated and moved by key, never made anew without need. */
export class Keyed {
  constructor(parent, { key, make, update = () => {} }) {
    Object.assign(this, { parent, key, make, update, kept: new Map() });
  }

  show(items) {
    const left = new Map(this.kept);
    let place = this.parent.firstChild;
    for (const item of items) {
      const key = this.key(item);
      let entry = this.kept.get(key);
      if (!entry) {
        entry = { element: this.make(item), item: null };
        this.kept.set(key, entry);
      }
      left.delete(key);
      if (entry.item !== item) {
        entry.item = item;
        this.update(entry.element, item);
      }
      if (entry.element === place) place = place.nextSibling;
      else this.parent.insertBefore(entry.element, place);
    }
    for (const [key, entry] of left) {
      entry.element.remove();
      this.kept.delete(key);
    }
  }
}

const ICONS = {
  overview: "M3 13h8V3H3zM13 21h8V11h-8zM3 21h8v-6H3zM13 3v6h8V3z",
  services: "M4 4h16v6H4zM4 14h16v6H4zM8 7h.01M8 17h.01",
  tools: "M14.7 6.3a4 4 0 0 0 5 5L12 19a2.8 2.8 0 0 1-4-4l7.7-7.7M14.7 6.3 17 4a5 5 0 0 1 3 3l-2.3 2.3",
  calls: "M3 12h4l3-8 4 16 3-8h4",
  waiting: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM12 7v5l3 2",
  dead: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13M10 11v5M14 11v5",
  sessions: "M8 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM2 20c0-3.3 2.7-6 6-6s6 2.7 6 6M16 5a4 4 0 0 1 0 6.5M18 14.5c2.4.8 4 3 4 5.5",
  graph: "M6 8a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM18 10a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM12 20a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM7.9 6.3l8.2 1.4M7 7.8l4 8.4M17 9.7l-4 6.6",
  pins: "M9 4h6l-1 6 4 4H6l4-4zM12 14v6",
  more: "M4 6h16M4 12h16M4 18h16",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM20 20l-4-4",
  back: "M15 5l-7 7 7 7",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M4.9 4.9l1.4 1.4M17.7 17.7l1.4 1.4M2 12h2M20 12h2M4.9 19.1l1.4-1.4M17.7 6.3l1.4-1.4",
  key: "M15 4a5 5 0 1 0 0 10 5 5 0 0 0 0-10zM11.5 12.5 4 20v-3M7 17l2 2",
  check: "M5 12l5 5 9-10",
  cross: "M6 6l12 12M18 6L6 18",
};

export const icon = (name) =>
  s("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, s("path", { d: ICONS[name] || ICONS.more }));

/** An empty state that says what to do: a title, a sentence, and a command to type. */
export const empty = (title, text, command = "") =>
  h("div", { class: "empty" }, h("h3", {}, title), h("p", {}, text), command && h("pre", { class: "command" }, command));
