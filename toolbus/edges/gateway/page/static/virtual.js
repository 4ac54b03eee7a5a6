// A list of any length, of which only the visible rows are elements.

import { h } from "./dom.js";

const SPARE = 6;

export class VirtualList {
  constructor({ height, make, update, label, choose }) {
    Object.assign(this, { height, make, update, choose, items: [], rows: [], chosen: -1, first: -1 });
    this.space = h("div", { class: "virtual-space" });
    this.element = h("div", { class: "virtual", tabindex: "0", role: "listbox", "aria-label": label }, this.space);
    this.element.addEventListener("scroll", () => this.draw(), { passive: true });
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.space.addEventListener("click", (event) => {
      const row = event.target.closest("[data-row]");
      if (row) this.choose(this.items[Number(row.dataset.row)], true);
    });
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  show(items, chosen) {
    this.items = items;
    this.chosen = chosen;
    this.space.style.height = `${items.length * this.height}px`;
    this.draw();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.element.scrollTop / this.height) - SPARE);
    const count = Math.min(this.items.length - first, Math.ceil((this.element.clientHeight || 600) / this.height) + 2 * SPARE);
    while (this.rows.length < count) {
      const row = this.make();
      row.setAttribute("role", "option");
      this.space.append(row);
      this.rows.push(row);
    }
    this.rows.forEach((row, at) => {
      row.hidden = at >= count;
      if (row.hidden) return;
      const index = first + at;
      row.dataset.row = index;
      row.id = `row-${index}`;
      row.style.transform = `translateY(${index * this.height}px)`;
      row.classList.toggle("chosen", index === this.chosen);
      row.setAttribute("aria-selected", index === this.chosen);
      this.update(row, this.items[index]);
    });
    if (this.chosen >= 0) this.element.setAttribute("aria-activedescendant", `row-${this.chosen}`);
    else this.element.removeAttribute("aria-activedescendant");
  }

  reveal(index) {
    const top = index * this.height, { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + this.height > scrollTop + clientHeight) this.element.scrollTop = top + this.height - clientHeight;
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.height) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: page, PageUp: -page, Home: -1e9, End: 1e9 };
    if (event.key === "Enter" && this.chosen >= 0) {
      this.choose(this.items[this.chosen], true);
      event.preventDefault();
      return;
    }
    if (!(event.key in steps) || !this.items.length || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const index = Math.min(this.items.length - 1, Math.max(0, this.chosen + steps[event.key]));
    this.reveal(index);
    this.choose(this.items[index], false);
  }
}
