// Sortable tables whose rows are kept by key; on a phone each row becomes a small card.

import { Keyed, h, put } from "./dom.js";

const compare = (a, b) => {
  if (typeof a === "string" || typeof b === "string") return String(a ?? "").localeCompare(String(b ?? ""));
  return (a ?? -1) - (b ?? -1);
};

/**
 * Columns: {label, text(row), cell(row, td), by(row), numeric, wide}. `cell` fills a cell by itself, `text` gives its text.
 * `open(row)` returns the address of a row's details.
 */
export class Table {
  constructor({ columns, key, label, sort = 0, descending = false, open = null, most = 500 }) {
    Object.assign(this, { columns, open, sort, descending, most });
    this.heads = columns.map((column, at) =>
      h("th", { scope: "col", class: column.numeric ? "numeric" : null },
        column.by ? h("button", { type: "button", class: "sort", onclick: () => this.by(at) }, column.label) : column.label));
    this.body = h("tbody");
    this.rest = h("p", { class: "help rest", hidden: true });
    this.table = h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, this.heads)), this.body);
    this.element = h("div", { class: "table-wrap" }, this.table, this.rest);
    this.keyed = new Keyed(this.body, { key, make: () => this.make(), update: (row, item) => this.update(row, item) });
    this.body.addEventListener("click", (event) => this.follow(event));
    this.body.addEventListener("keydown", (event) => this.key(event));
    this.mark();
  }

  make() {
    return h("tr", { tabindex: this.open ? "0" : null, class: this.open ? "opens" : null },
      this.columns.map(({ label, numeric, wide, kind }) => h("td", { class: [numeric ? "numeric" : "", wide ? "wide" : "", kind || ""].join(" ").trim() || null, "data-label": label })));
  }

  update(row, item) {
    row.item = item;
    this.columns.forEach(({ text, cell, tone }, at) => {
      const td = row.cells[at];
      if (cell) cell(item, td);
      else put(td, text(item));
      if (tone) td.dataset.tone = tone(item) || "";
    });
  }

  show(items) {
    this.items = items;
    const { by } = this.columns[this.sort];
    const sign = this.descending ? -1 : 1;
    const sorted = by ? [...items].sort((a, b) => sign * compare(by(a), by(b))) : items;
    this.keyed.show(sorted.slice(0, this.most));
    this.rest.hidden = sorted.length <= this.most;
    put(this.rest, `${(sorted.length - this.most).toLocaleString("en")} more are not shown; narrow the search.`);
  }

  /** Write all rows anew, for what changes with the time. */
  refresh() {
    for (const row of this.body.rows) if (row.item) this.update(row, row.item);
  }

  by(at) {
    this.descending = this.sort === at ? !this.descending : Boolean(this.columns[at].numeric);
    this.sort = at;
    this.mark();
    this.show(this.items || []);
  }

  mark() {
    this.heads.forEach((head, at) => {
      if (at === this.sort && this.columns[at].by) head.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  follow(event) {
    const row = event.target.closest("tr");
    if (!this.open || !row?.item || event.target.closest("a, button, input")) return;
    if (String(getSelection()) !== "") return;
    location.hash = this.open(row.item);
  }

  key(event) {
    const row = event.target.closest("tr");
    if (!row || event.target !== row) return;
    const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling, j: row.nextElementSibling, k: row.previousElementSibling }[event.key];
    if (next) {
      next.focus();
      event.preventDefault();
    } else if (event.key === "Enter" && this.open) location.hash = this.open(row.item);
  }
}

/** Fill a cell with a name, made anew only when the name is another one. */
export function nameCell(td, text, make) {
  if (td.shown === text) return;
  td.shown = text;
  td.replaceChildren(make(text));
}
