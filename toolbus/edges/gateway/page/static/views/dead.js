// Dead letters: requests that were set aside, to be run again or dropped.

import { ask, post } from "../api.js";
import { empty, h, named, visible, visibleLines } from "../dom.js";
import { dialog, sure, toast } from "../feedback.js";
import { day, number } from "../format.js";
import { store } from "../store.js";
import { Table, nameCell } from "../table.js";

const REASONS = {
  max_deliveries: "ended its workers too often", retries_exhausted: "failed at its last retry", failed: "failed without a caller to tell", malformed: "can't be read",
};

async function change(row, path, text) {
  try {
    await post(path, { queue: row.queue, id: row.id });
    toast(text);
    return true;
  } catch (error) {
    toast(error.message, "bad");
    return false;
  }
}

async function redrive(row) {
  if (await sure("Run this request again?", "It becomes a new call with a new deadline and without a caller. If it fails again, it becomes a dead letter again.", "Run again", "")) await change(row, "ui/dead/redrive", "It runs again as a new call.");
}

async function drop(row) {
  if (await sure("Drop this dead letter?", "The request is deleted and can't be brought back.", "Drop")) await change(row, "ui/dead/drop", "It is dropped.");
}

async function look(row) {
  let found;
  try {
    found = await ask(`ui/dead/${encodeURIComponent(row.queue)}/${encodeURIComponent(row.id)}`);
  } catch (error) {
    toast(error.message, "bad");
    return;
  }
  await dialog("Dead letter", (close) => h("div", {},
    h("p", {}, named(row.tool || row.queue), " ", REASONS[row.reason] || visible(row.reason)),
    row.error ? h("div", { class: "note bad" }, visibleLines(row.error).slice(0, 8000)) : null,
    h("pre", { class: "output" }, visibleLines(typeof found.request === "string" ? found.request : JSON.stringify(found.request, null, 2))),
    h("div", { class: "actions end" },
      store.may("operate") && h("button", { type: "button", class: "danger", onclick: () => { close(); drop(row); } }, "Drop"),
      store.may("operate") && h("button", { type: "button", class: "primary", onclick: () => { close(); redrive(row); } }, "Run again"),
      h("button", { type: "button", onclick: () => close() }, "Close"))));
}

const COLUMNS = [
  { label: "Request", wide: true, by: (row) => row.tool, cell: (row, td) => nameCell(td, row.tool || row.service || row.queue, (name) => h("button", { type: "button", class: "link", onclick: () => look(row) }, named(name))) },
  { label: "Reason", text: (row) => REASONS[row.reason] || visible(row.reason).slice(0, 60), by: (row) => row.reason, kind: "long" },
  { label: "Last error", text: (row) => visible(row.error || "–").slice(0, 160), by: (row) => row.error, kind: "long" },
  { label: "Attempts", text: (row) => number(row.attempts), by: (row) => row.attempts, numeric: true },
  { label: "User", text: (row) => visible(row.user || "–").slice(0, 60), by: (row) => row.user },
  { label: "When", text: (row) => day(row.at), by: (row) => row.at, numeric: true },
  {
    label: "", kind: "buttons",
    cell(row, td) {
      if (td.firstChild || !store.may("operate")) return;
      td.append(h("div", { class: "actions" },
        h("button", { type: "button", class: "small", onclick: () => redrive(row) }, "Run again"),
        h("button", { type: "button", class: "small danger", onclick: () => drop(row) }, "Drop")));
    },
  },
];

export default function dead(place) {
  const table = new Table({ columns: COLUMNS, key: (row) => `${row.queue} ${row.id}`, label: "dead letters", sort: 5, descending: true });
  const none = empty("No dead letters", "A request comes here when it ended its workers too often, failed at its last retry, or could not be read. It stays for a week, to be run again or dropped. In a terminal:", "toolbus operate dead list");
  const card = h("section", { class: "card" }, table.element);
  place.append(card, none);
  const draw = () => {
    const rows = [...store.dead.values()];
    table.show(rows);
    card.hidden = !rows.length;
    none.hidden = rows.length > 0;
  };
  draw();
  return { update: (topics) => { if (topics.has("dead")) draw(); } };
}
