// Open sessions at workers: whose they are, where their state is, and how long nobody used them.

import { empty, h, named, visible } from "../dom.js";
import { duration, number, short } from "../format.js";
import { store } from "../store.js";
import { Table, nameCell } from "../table.js";

const COLUMNS = [
  { label: "Session", wide: true, by: (row) => row.session, cell: (row, td) => nameCell(td, row.session || "–", (name) => named(name)) },
  { label: "User", text: (row) => visible(row.user || "–").slice(0, 80), by: (row) => row.user },
  { label: "Service", by: (row) => row.service, cell: (row, td) => nameCell(td, row.service, (name) => h("a", { href: `#/services/${encodeURIComponent(name)}` }, named(name))) },
  { label: "Worker", text: (row) => visible(short(row.instance || "–")), by: (row) => row.instance, kind: "mono" },
  { label: "Calls now", text: (row) => number(row.running), by: (row) => row.running, numeric: true },
  { label: "Idle", text: (row) => duration(store.now() - row.since), by: (row) => -row.since, numeric: true },
];

export default function sessions(place) {
  const table = new Table({ columns: COLUMNS, key: (row) => `${row.service} ${row.user} ${row.session} ${row.instance}`, label: "sessions", sort: 5 });
  const none = empty("No open sessions", "A service with `sticky_sessions` keeps a state for each conversation in one worker. Sessions that are open appear here. In Python:", 'async with bus.session("chat-1") as view:\n    await view.call("add_item", {"item": "tea"})');
  const card = h("section", { class: "card" }, table.element);
  place.append(card, none);
  const draw = () => {
    const rows = [...store.sessions.values()];
    table.show(rows);
    card.hidden = !rows.length;
    none.hidden = rows.length > 0;
  };
  draw();
  return { update: (topics) => { if (topics.has("sessions")) draw(); else table.refresh(); } };
}
