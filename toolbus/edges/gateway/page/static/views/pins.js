// Pins: which form of each tool a person approved, and the tools that are withheld because they changed since.

import { ask, post } from "../api.js";
import { empty, h, named, put, visible } from "../dom.js";
import { line, sure, toast } from "../feedback.js";
import { day, number } from "../format.js";
import { store } from "../store.js";
import { Table, nameCell } from "../table.js";

const STATES = {
  pending: ["recorded, waits for approval", "warn"],
  changed: ["changed since it was approved", "bad"], rejected: ["rejected", "off"], unreadable: ["its pin can't be read", "bad"],
  unpinned: ["no decision", "warn"], approved: ["approved", "ok"], gone: ["nobody offers it", "off"],
};
const ORDER = Object.keys(STATES);

export default function pins(place, { query, setQuery }) {
  const controller = new AbortController();
  const search = h("input", { type: "search", placeholder: "Find a tool", "aria-label": "find a pin", value: query, "data-search": "" });
  const count = h("span", { class: "count" });
  let rows = [];

  async function settle(pin, path, body, text) {
    try {
      await post(path, { name: pin.name, ...body });
      toast(text);
      await load();
    } catch (error) {
      toast(error.message, "bad");
    }
  }
  const approve = async (pin) => {
    const what = pin.state === "pending" ? `Hosts will run this: ${pin.changes.map(visible).join("; ").slice(0, 4000)}. \`toolbus secure approve\` shows the files of its code, too.` : pin.changes.length ? `Since it was approved, these have changed: ${pin.changes.map(visible).join(", ")}. Look at its description and schema first.` : "Agents may use it in this form, and it is withheld when it changes.";
    if (await sure("Approve this tool as it is now?", what, "Approve", "")) await settle(pin, "ui/pins/approve", { digest: pin.digest, pending: pin.state === "pending" }, "Approved.");
  };
  const reject = async (pin) => {
    if (pin.state === "pending") {
      if (await sure("Reject this form?", "It is removed. The tool that is served stays as it is.", "Reject", "")) await settle(pin, "ui/pins/reject", { digest: pin.digest, pending: true }, "Rejected.");
      return;
    }
    const reason = await line("Reject this tool?", "It is withheld from every agent, in every form.", "Reason (optional)", "Reject");
    if (reason !== null) await settle(pin, "ui/pins/reject", { reason }, "Rejected.");
  };

  const columns = [
    { label: "Tool", wide: true, by: (pin) => pin.name, cell: (pin, td) => nameCell(td, pin.name, (name) => h("a", { href: `#/tools/${encodeURIComponent(name)}` }, named(name))) },
    {
      label: "State", by: (pin) => ORDER.indexOf(pin.state),
      cell(pin, td) {
        const [text, tone] = STATES[pin.state] || [pin.state, "off"];
        td.replaceChildren(h("span", { class: "titled" }, h("i", { class: "dot", "data-tone": tone }), h("span", {}, text)));
      },
    },
    { label: "Changes", text: (pin) => pin.changes.map(visible).join(", ").slice(0, 200) || visible(pin.reason).slice(0, 200) || "–", kind: "long" },
    { label: "Digest", text: (pin) => pin.digest.slice(0, 12) || "–", kind: "mono secondary" },
    { label: "By", text: (pin) => visible(pin.by || "–").slice(0, 60), by: (pin) => pin.by },
    { label: "When", text: (pin) => (pin.at ? day(pin.at) : "–"), by: (pin) => pin.at, numeric: true },
    {
      label: "", kind: "buttons",
      cell(pin, td) {
        td.replaceChildren();
        if (!store.may("operate")) return;
        td.append(h("div", { class: "actions" },
          pin.digest && pin.state !== "approved" ? h("button", { type: "button", class: "small", onclick: () => approve(pin) }, "Approve") : null,
          pin.state !== "rejected" ? h("button", { type: "button", class: "small danger", onclick: () => reject(pin) }, "Reject") : null));
      },
    },
  ];
  const table = new Table({ columns, key: (pin) => `${pin.state === "pending"}/${pin.name}`, label: "pins", sort: 1, most: 300 });
  const none = empty("No tools to approve", "An operator can approve each tool in the form that it has. It is withheld from agents when it changes, until it is approved again. In a terminal:", "toolbus secure approve NAME");
  const nothing = empty("Nothing found", "No tool has these letters in its name.");
  const card = h("section", { class: "card" }, h("header", {}, h("h2", {}, "Approvals ", count), search), table.element, nothing);
  place.append(card, none);
  card.hidden = none.hidden = true;

  const draw = () => {
    const wanted = search.value.trim().toLowerCase();
    const found = rows.filter((pin) => pin.name.toLowerCase().includes(wanted));
    table.show(found);
    card.hidden = !rows.length;
    none.hidden = rows.length > 0;
    nothing.hidden = found.length > 0;
    table.element.hidden = !found.length;
    put(count, number(rows.length));
  };
  async function load() {
    try {
      rows = await ask("ui/pins", { signal: controller.signal });
      draw();
    } catch (error) {
      if (!controller.signal.aborted) place.replaceChildren(empty("Pins can't be read", error.message));
    }
  }
  search.addEventListener("input", () => { setQuery(search.value); draw(); });
  load();
  // Many tools may change at the same time, and each look reads the whole registry.
  let waiting = null;
  return {
    update(topics) {
      if (!topics.has("catalogue") || waiting) return;
      waiting = setTimeout(() => { waiting = null; load(); }, 1000);
    },
    close() {
      clearTimeout(waiting);
      controller.abort();
    },
  };
}
