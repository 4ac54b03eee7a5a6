// Dialogs and short messages.

import { h } from "./dom.js";

const SHOWN = 5000;

export function toast(text, kind = "") {
  const region = document.getElementById("toasts");
  const made = h("div", { class: `toast ${kind}` }, String(text).slice(0, 500));
  region.append(made);
  setTimeout(() => made.remove(), SHOWN);
}

/** Show a dialog; returns what `content(close)` closes it with, or null. */
export function dialog(title, content) {
  return new Promise((resolve) => {
    const before = document.activeElement;
    let result = null;
    const box = h("dialog", { "aria-label": title });
    const close = (value = null) => {
      result = value;
      box.close();
    };
    box.append(h("h2", {}, title), content(close));
    box.addEventListener("close", () => {
      box.remove();
      before?.focus?.();
      resolve(result);
    });
    box.addEventListener("click", (event) => { if (event.target === box) close(); });
    document.body.append(box);
    box.showModal();
  });
}

/** Ask before something that can't be undone. */
export const sure = (title, text, action, kind = "danger") =>
  dialog(title, (close) =>
    h("form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); close(true); } },
      h("p", {}, text),
      h("div", { class: "actions end" },
        h("button", { type: "button", onclick: () => close(null) }, "Cancel"),
        h("button", { type: "submit", class: `primary ${kind}`, autofocus: true }, action))));

/** Ask for one line of text; null when it was cancelled. */
export const line = (title, text, label, action, { secret = false } = {}) =>
  dialog(title, (close) => {
    const field = h("input", { type: secret ? "password" : "text", id: "dialog-line", autocomplete: "off", spellcheck: "false", autofocus: true });
    return h("form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); close(field.value); } },
      text && h("p", {}, text),
      h("div", { class: "field" }, h("label", { for: "dialog-line" }, label), field),
      h("div", { class: "actions end" },
        h("button", { type: "button", onclick: () => close(null) }, "Cancel"),
        h("button", { type: "submit", class: "primary" }, action)));
  });
