// A form for a JSON Schema: as many kinds of fields as tools use, and a field of JSON for everything else.

import { h, icon, named, visibleLines } from "./dom.js";

const DEEPEST = 5;
const MOST_CHOICES = 200;
const LEFT_OUT = Symbol("left out");

export class Unfinished extends Error {}

/** Return a schema with its `$ref` followed, within the document. */
function followed(schema, root, steps = 0) {
  if (!schema || typeof schema !== "object" || Array.isArray(schema)) return {};
  if (typeof schema.$ref !== "string" || steps > 8) return schema;
  let found = root;
  for (const part of schema.$ref.replace(/^#\/?/, "").split("/").filter(Boolean)) {
    const name = decodeURIComponent(part).replace(/~1/g, "/").replace(/~0/g, "~");
    found = found && typeof found === "object" && Object.hasOwn(found, name) ? found[name] : undefined;
  }
  const { $ref: _, ...rest } = schema;
  return found ? { ...followed(found, root, steps + 1), ...rest } : rest;
}

/** Split a schema that allows null from the rest of it. */
function withoutNull(schema, root) {
  const choices = schema.anyOf || schema.oneOf;
  if (Array.isArray(choices)) {
    const left = choices.map((each) => followed(each, root)).filter((each) => each.type !== "null");
    const { anyOf: _, oneOf: __, ...rest } = schema;
    if (left.length === 1) return { schema: { ...left[0], ...rest }, nullable: left.length < choices.length };
    return { schema: { ...rest, choices: left }, nullable: left.length < choices.length };
  }
  if (Array.isArray(schema.type)) {
    const left = schema.type.filter((each) => each !== "null");
    const one = left.length === 1 ? { ...schema, type: left[0] } : { ...schema, type: undefined, choices: left.map((type) => ({ ...schema, type })) };
    return { schema: left.length ? one : schema, nullable: left.length < schema.type.length };
  }
  return { schema, nullable: false };
}

const kindOf = (schema) => {
  if (schema.const !== undefined) return "const";
  if (Array.isArray(schema.enum) && schema.enum.length && schema.enum.length <= MOST_CHOICES) return "enum";
  if (schema.choices) return "choices";
  if (schema.type === "array" && schema.items && typeof schema.items === "object") return "array";
  if (schema.type === "object" && schema.properties) return "object";
  if (["string", "number", "integer", "boolean"].includes(schema.type)) return schema.type;
  return "json";
};

const said = (value) => (typeof value === "string" ? value : JSON.stringify(value));
let ids = 0;

/** Each maker returns {element, control, get, set}: get returns LEFT_OUT for what was not filled in. */
const MAKERS = {
  string(schema, { id, required }) {
    const long = (schema.maxLength ?? 0) > 200 || ["text", "markdown", "code"].includes(schema.format) || schema.contentMediaType;
    const types = { email: "email", uri: "url", date: "date", "date-time": "text", time: "time", password: "password" };
    const control = long ? h("textarea", { id, rows: "4", spellcheck: "false" }) : h("input", { id, type: types[schema.format] || "text", spellcheck: "false", autocomplete: "off" });
    const example = schema.examples?.[0] ?? schema.default;
    if (example !== undefined) control.placeholder = said(example).slice(0, 80);
    return { element: control, control, get: () => (control.value === "" && !(required && schema.minLength !== 0 && control.dataset.touched) ? LEFT_OUT : control.value), set: (value) => { control.value = said(value ?? ""); } };
  },
  number(schema, { id }) {
    const control = h("input", { id, type: "number", step: schema.type === "integer" ? "1" : "any", min: schema.minimum ?? schema.exclusiveMinimum, max: schema.maximum ?? schema.exclusiveMaximum });
    const example = schema.examples?.[0] ?? schema.default;
    if (example !== undefined) control.placeholder = String(example);
    const get = () => {
      if (control.validity.badInput) throw new Unfinished("not a number");
      return control.value === "" ? LEFT_OUT : Number(control.value);
    };
    return { element: control, control, get, set: (value) => { control.value = value ?? ""; } };
  },
  boolean(schema, { id, required }) {
    const options = required ? [] : [h("option", { value: "" }, schema.default === undefined ? "not given" : `default: ${schema.default}`)];
    const control = h("select", { id }, options, h("option", { value: "true" }, "true"), h("option", { value: "false" }, "false"));
    if (required && schema.default === false) control.value = "false";
    return { element: control, control, get: () => (control.value === "" ? LEFT_OUT : control.value === "true"), set: (value) => { control.value = String(value ?? ""); } };
  },
  enum(schema, { id, required }) {
    const first = required && schema.default === undefined ? "choose …" : schema.default === undefined ? "not given" : `default: ${said(schema.default)}`;
    const control = h("select", { id }, h("option", { value: "" }, first), schema.enum.map((each, at) => h("option", { value: at }, visibleLines(said(each)).slice(0, 120))));
    return { element: control, control, get: () => (control.value === "" ? LEFT_OUT : schema.enum[Number(control.value)]), set: (value) => { const at = schema.enum.findIndex((each) => said(each) === said(value)); control.value = at < 0 ? "" : String(at); } };
  },
  const(schema, { id }) {
    const control = h("input", { id, readOnly: true, value: said(schema.const) });
    return { element: control, control, get: () => schema.const, set: () => {} };
  },
  json(schema, { id, required }) {
    const control = h("textarea", { id, rows: "3", class: "mono", spellcheck: "false", placeholder: schema.default === undefined ? "JSON" : JSON.stringify(schema.default) });
    const get = () => {
      if (control.value.trim() === "") return LEFT_OUT;
      try {
        return JSON.parse(control.value);
      } catch (error) {
        // A field of any type takes a plain word as a text.
        if (!schema.type && !/^[[{"]/.test(control.value.trim())) return control.value;
        throw new Unfinished(`no JSON: ${error.message}`);
      }
    };
    return { element: control, control, get, set: (value) => { control.value = value === undefined ? "" : JSON.stringify(value, null, 2); } };
  },
  array(schema, context) {
    const rows = h("div", { class: "items" });
    let fields = [];
    const add = (value) => {
      const field = make(schema.items, { ...context, id: `f${(ids += 1)}`, required: true, depth: context.depth + 1 });
      const row = h("div", { class: "item" }, field.element, h("button", { type: "button", class: "icon-button", "aria-label": "remove", onclick: () => { fields = fields.filter((each) => each !== entry); row.remove(); } }, icon("cross")));
      const entry = { field, row };
      fields.push(entry);
      rows.append(row);
      if (value !== undefined) field.set(value);
      return field;
    };
    const button = h("button", { type: "button", class: "small", id: context.id, onclick: () => add().control.focus() }, "Add an item");
    const get = () => {
      const found = fields.map(({ field }) => field.get()).filter((each) => each !== LEFT_OUT);
      return found.length || (context.required && schema.minItems === undefined) ? found : LEFT_OUT;
    };
    const set = (value) => {
      rows.replaceChildren();
      fields = [];
      if (Array.isArray(value)) value.slice(0, MOST_CHOICES).forEach(add);
    };
    return { element: h("div", {}, rows, button), control: button, get, set };
  },
  object(schema, context) {
    const fields = fieldsOf(schema, context);
    const element = h("div", { class: "nested" }, fields.map(({ row }) => row));
    const get = () => {
      // What an optional object requires is only required when something of it is filled in.
      if (!context.required && !fields.some(filledIn)) return LEFT_OUT;
      return valuesOf(fields);
    };
    return { element, control: fields[0]?.field.control || element, get, set: (value) => setValues(fields, value) };
  },
  choices(schema, context) {
    const names = schema.choices.map((each, at) => each.title || each.type || (each.const !== undefined ? said(each.const) : `form ${at + 1}`));
    const select = h("select", { id: context.id, "aria-label": "which form" }, names.map((name, at) => h("option", { value: at }, visibleLines(String(name)).slice(0, 80))));
    const place = h("div");
    let field = null;
    const choose = () => {
      field = make(schema.choices[Number(select.value)], { ...context, id: `f${(ids += 1)}`, depth: context.depth + 1 });
      place.replaceChildren(field.element);
    };
    select.addEventListener("change", choose);
    choose();
    const set = (value) => {
      const type = Array.isArray(value) ? "array" : value === null ? "null" : typeof value;
      const at = schema.choices.findIndex((each) => each.type === type || (type === "number" && each.type === "integer"));
      select.value = String(Math.max(0, at));
      choose();
      field.set(value);
    };
    return { element: h("div", { class: "choices" }, select, place), control: select, get: () => field.get(), set };
  },
};
MAKERS.integer = MAKERS.number;

function make(given, context) {
  const { schema } = withoutNull(followed(given, context.root), context.root);
  const kind = context.depth > DEEPEST ? "json" : kindOf(schema);
  return { ...MAKERS[kind](schema, context), schema, kind };
}

function fieldsOf(schema, context) {
  const required = new Set(Array.isArray(schema.required) ? schema.required : []);
  const names = Object.keys(schema.properties || {});
  // What must be filled in comes first; the rest keeps its order.
  names.sort((a, b) => Number(required.has(b)) - Number(required.has(a)));
  return names.map((name) => {
    const id = `f${(ids += 1)}`;
    const field = make(schema.properties[name], { ...context, id, required: required.has(name), depth: context.depth + 1 });
    const about = schema.properties[name]?.description ?? field.schema.description;
    const error = h("p", { class: "field-error", id: `${id}-error`, hidden: true });
    // A label names a field; the fields of an object have labels of their own.
    const group = field.kind === "object";
    const row = h("div", { class: "field", role: group ? "group" : null, "aria-label": group ? visibleLines(name).slice(0, 100) : null },
      h(group ? "div" : "label", { class: "label", for: group ? null : id }, named(name), required.has(name) ? h("span", { class: "required" }, "required") : null, h("span", { class: "type" }, typeName(field))),
      field.element,
      about ? h("p", { class: "help", id: `${id}-help` }, visibleLines(String(about)).slice(0, 1000)) : null,
      error);
    if (about) field.control.setAttribute("aria-describedby", `${id}-help ${id}-error`);
    field.control.addEventListener?.("input", () => { field.control.dataset.touched = "1"; error.hidden = true; });
    return { name, field, row, error, required: required.has(name) };
  });
}

const typeName = ({ kind, schema }) => {
  if (kind === "json") return schema.type || "any JSON";
  if (kind === "array") return "list";
  return { enum: "one of", choices: "one of", const: "fixed" }[kind] || schema.format || kind;
};

function valuesOf(fields) {
  const found = {};
  let first = null;
  for (const { name, field, error, required } of fields) {
    let value = LEFT_OUT, problem = "";
    try {
      value = field.get();
      if (value === LEFT_OUT && required) problem = "required";
    } catch (failure) {
      if (!(failure instanceof Unfinished)) throw failure;
      problem = failure.message;
    }
    error.hidden = !problem;
    error.textContent = problem;
    if (problem) first ||= field.control;
    // Assigning a key such as __proto__ would change the object instead.
    if (value !== LEFT_OUT) Object.defineProperty(found, name, { value, enumerable: true, configurable: true, writable: true });
  }
  if (first) {
    first.focus();
    throw new Unfinished("some fields are not filled in");
  }
  return found;
}

function filledIn({ field }) {
  try {
    return field.get() !== LEFT_OUT && field.kind !== "const";
  } catch (failure) {
    if (!(failure instanceof Unfinished)) throw failure;
    return true;
  }
}

function setValues(fields, value) {
  for (const { name, field } of fields) {
    if (value && typeof value === "object" && Object.hasOwn(value, name)) field.set(value[name]);
    else field.set(undefined);
  }
}

/** A form of a tool's arguments, as fields or as JSON. */
export class ArgumentsForm {
  constructor(schema) {
    this.schema = schema && typeof schema === "object" ? schema : {};
    const root = followed(this.schema, this.schema);
    this.fields = fieldsOf(root, { root: this.schema, depth: 0, required: true });
    this.open = this.fields.length === 0 && !("properties" in root && root.additionalProperties === false);
    this.text = h("textarea", { class: "mono", rows: "8", spellcheck: "false", "aria-label": "arguments as JSON" });
    this.problem = h("p", { class: "field-error", hidden: true });
    this.form = h("div", { class: "fields" }, this.fields.length ? this.fields.map(({ row }) => row) : h("p", { class: "help" }, "This tool takes no arguments."));
    this.json = h("div", { class: "field", hidden: true }, this.text, this.problem);
    this.element = h("div", {}, this.form, this.json);
    this.asJson = false;
    if (this.open) this.switch(true);
  }

  /** Show the fields or the JSON; what was filled in goes over. */
  switch(asJson) {
    if (asJson === this.asJson) return;
    if (asJson) {
      let values = {};
      try {
        values = valuesOf(this.fields);
      } catch {
        values = Object.fromEntries(this.fields.flatMap(({ name, field, error }) => {
          error.hidden = true;
          try { const value = field.get(); return value === LEFT_OUT ? [] : [[name, value]]; } catch { return []; }
        }));
      }
      this.text.value = JSON.stringify(values, null, 2);
    } else {
      setValues(this.fields, this.values());
    }
    this.asJson = asJson;
    this.form.hidden = asJson;
    this.json.hidden = !asJson;
  }

  /** Return the arguments; raises Unfinished after showing what is missing. */
  values() {
    if (!this.asJson) return valuesOf(this.fields);
    this.problem.hidden = true;
    try {
      const value = JSON.parse(this.text.value.trim() || "{}");
      if (!value || typeof value !== "object" || Array.isArray(value)) throw new SyntaxError("arguments are a JSON object");
      return value;
    } catch (error) {
      this.problem.hidden = false;
      this.problem.textContent = error.message;
      this.text.focus();
      throw new Unfinished(error.message);
    }
  }

  /** Show what the gateway said about one argument, if it names one. */
  refuse(message) {
    const found = this.fields.find(({ name }) => message.includes(`$.${name}`) || message.includes(`'${name}'`));
    if (!found || this.asJson) return false;
    found.error.hidden = false;
    found.error.textContent = visibleLines(message).slice(0, 500);
    found.field.control.focus?.();
    return true;
  }
}
