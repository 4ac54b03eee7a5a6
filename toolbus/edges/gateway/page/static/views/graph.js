// The toolkit graph: actions, the tools that they call, and what follows them.

import { ask } from "../api.js";
import { empty, h, s } from "../dom.js";
import { drawGraph } from "../graph-drawing.js";

export default function graph(place) {
  const controller = new AbortController();
  const load = async () => {
    let data;
    try {
      data = await ask("ui/graph", { signal: controller.signal });
    } catch (error) {
      if (!controller.signal.aborted) place.replaceChildren(empty("The graph can't be drawn", error.message));
      return;
    }
    if (data.missing) {
      place.replaceChildren(empty("The gateway can't draw graphs yet", "It lacks the packages of the toolkit. Install them beside the gateway and start it again:", data.missing));
      return;
    }
    if (!data.vertices.length) {
      place.replaceChildren(empty("No toolkit graph is published", "It says which tools make sense at which step of a task, and models are then shown those alone. Publish a preset:", "toolbus toolkit load preset.yml"));
      return;
    }
    const svg = s("svg", { class: "toolkit", role: "img", "aria-label": "the toolkit graph" });
    const details = h("aside", { class: "graph-details", hidden: true });
    const least = h("input", { type: "range", min: "0", max: "1", step: "0.01", value: "0" });
    const leastValue = h("output", {}, "0.00");
    const find = h("input", { type: "search", placeholder: "Find by name, id or text", "aria-label": "find in the graph", "data-search": "" });
    const fit = h("button", { type: "button", class: "small" }, "Fit");
    const count = h("span", { class: "help" });
    place.replaceChildren(h("section", { class: "card graph-card" },
      h("div", { class: "graph-tools" }, find, h("label", {}, "score at least ", least, " ", leastValue), fit, count,
        h("span", { class: "graph-legend" }, ["action", "tool", "group"].map((kind) => h("span", { class: kind }, kind)))), svg, details));
    drawGraph(data, { svg, details, least, leastValue, find, fit, count });
  };
  load();
  return { update: (topics) => { if (topics.has("presets")) load(); }, close: () => controller.abort() };
}
