// Pins: descriptors that a person approved, and those that changed since and are withheld.

import { ask, post } from "../api.js";
import { empty, h, named, visibleLines } from "../dom.js";
import { sure, toast } from "../feedback.js";
import { store } from "../store.js";

async function settle(pin, path, text) {
  try {
    await post(path, { name: pin.name, digest: pin.digest });
    toast(text);
  } catch (error) {
    toast(error.message, "bad");
  }
}

export default function pins(place) {
  const controller = new AbortController();
  const body = h("div", { class: "stack" });
  place.append(body);
  const card = (pin) => h("article", { class: "card" },
    h("header", {}, h("h2", {}, named(pin.name)), h("span", { class: "state", "data-tone": pin.waiting ? "warn" : "ok" }, pin.waiting ? "waits for approval" : "approved")),
    pin.difference ? h("pre", { class: "output" }, visibleLines(pin.difference)) : null,
    h("p", { class: "help" }, "Digest ", named(pin.digest, { class: "name mono" })),
    pin.waiting && store.may("operate") ? h("div", { class: "actions" },
      h("button", { type: "button", class: "primary", onclick: async () => { await settle(pin, "ui/pins/approve", "Approved."); load(); } }, "Approve"),
      h("button", { type: "button", onclick: async () => { if (await sure("Reject this change?", "The tool stays withheld.", "Reject")) { await settle(pin, "ui/pins/reject", "Rejected."); load(); } } }, "Reject")) : null);
  async function load() {
    let found;
    try {
      found = await ask("ui/pins", { signal: controller.signal });
    } catch (error) {
      if (!controller.signal.aborted) body.replaceChildren(empty("Pins can't be read", error.message));
      return;
    }
    if (found.length) body.replaceChildren(...found.map(card));
    else body.replaceChildren(empty("Nothing is pinned", "With approvals required, a tool whose description or schema changes is withheld until a person approves it. Start the gateway and agents with:", "TOOLBUS_REQUIRE_APPROVAL=true"));
  }
  load();
  return { update: (topics) => { if (topics.has("pins") || topics.has("catalogue")) load(); }, close: () => controller.abort() };
}
