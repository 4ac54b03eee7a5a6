// Draws a toolkit graph into an SVG element, with details under the pointer, a search and a filter by score.
"use strict";
const drawGraph = (data, { svg, details, least, leastValue, find, fit: fitButton, count }) => {
  const NS = "http://www.w3.org/2000/svg";
  const WIDTH = 1.6, HEIGHT = 0.5, NAME_LENGTH = 18;

  // Text of the graph is only set as textContent and attributes, never as markup.
  const element = (name, attributes = {}, text = "") => {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    return made;
  };
  const short = (text) => {
    const line = Array.from(text.trim().split(/\s+/).join(" "));
    return line.length <= NAME_LENGTH ? line.join("") : line.slice(0, NAME_LENGTH - 1).join("") + "…";
  };

  // A name of wide letters is squeezed into its box.
  const squeeze = (text) => {
    const most = WIDTH * 0.92;
    if (!text.getComputedTextLength || text.getComputedTextLength() <= most) return;
    text.setAttribute("textLength", most);
    text.setAttribute("lengthAdjust", "spacingAndGlyphs");
  };

  // -- arrows ---------------------------------------------------------------------------------
  const COLOURS = { next: "#1d4ed8", call: "#15803d", holds: "#b45309" };
  const definitions = svg.appendChild(element("defs"));
  for (const [kind, colour] of Object.entries(COLOURS)) {
    const marker = element("marker", {
      id: "arrow-" + kind, class: "arrow " + kind, viewBox: "0 0 10 10", refX: 9, refY: 5, markerWidth: 8, markerHeight: 8, orient: "auto-start-reverse",
    });
    marker.appendChild(element("path", { d: "M0,1 L10,5 L0,9 z", fill: colour }));
    definitions.appendChild(marker);
  }

  // -- edges and vertices ---------------------------------------------------------------------
  const vertices = new Map(data.vertices.map((vertex) => [vertex.id, { ...vertex, edges: [] }]));
  const edges = data.edges.map((edge) => {
    const from = vertices.get(edge.from), to = vertices.get(edge.to);
    const kind = from.kind === "group" ? "holds" : to.kind === "action" ? "next" : "call";
    const made = { from, to, kind, score: edge.score };
    from.edges.push(made);
    if (to !== from) to.edges.push(made);
    return made;
  });

  const curve = ({ from, to, kind }) => {
    const { x, y } = from, toX = to.x, toY = to.y;
    if (from === to) {
      const top = y - HEIGHT / 2;
      return [[x - 0.3, top], [x - 0.6, top - 0.8], [x + 0.6, top - 0.8], [x + 0.3, top]];
    }
    if (kind === "call" && toX > x && toY > y) return [[x, y + HEIGHT / 2], [x, toY], [x, toY], [toX - WIDTH / 2, toY]];
    if (toX > x) {
      const half = (toX - x) / 2;
      return [[x + WIDTH / 2, y], [x + half, y], [toX - half, toY], [toX - WIDTH / 2, toY]];
    }
    if (toX === x) {
      const side = x - WIDTH / 2;
      return [[side, y], [side - 0.7, y], [side - 0.7, toY], [side, toY]];
    }
    if (kind === "call") {
      const below = Math.max(y, toY) + HEIGHT / 2 + 0.9;
      return [[x, y + HEIGHT / 2], [x, below], [toX, below], [toX, toY + HEIGHT / 2]];
    }
    const above = Math.min(y, toY) - HEIGHT / 2 - 0.9;
    return [[x, y - HEIGHT / 2], [x, above], [toX, above], [toX, toY - HEIGHT / 2]];
  };
  const placeEdge = (edge) => {
    const [a, b, c, d] = curve(edge);
    edge.line.setAttribute("d", `M${a} C${b} ${c} ${d}`);
    edge.label.setAttribute("x", (a[0] + 3 * b[0] + 3 * c[0] + d[0]) / 8);
    edge.label.setAttribute("y", (a[1] + 3 * b[1] + 3 * c[1] + d[1]) / 8);
  };
  const placeVertex = (vertex) => {
    vertex.node.setAttribute("transform", `translate(${vertex.x},${vertex.y})`);
    vertex.edges.forEach(placeEdge);
  };
  const SHAPES = {
    action: () => element("rect", { class: "shape", x: -WIDTH / 2, y: -HEIGHT / 2, width: WIDTH, height: HEIGHT, rx: HEIGHT / 2 }),
    tool: () => element("rect", { class: "shape", x: -WIDTH / 2, y: -HEIGHT / 2, width: WIDTH, height: HEIGHT }),
    group: () => {
      const right = WIDTH / 2, inner = right - HEIGHT / 3, low = HEIGHT / 2;
      return element("polygon", { class: "shape", points: `${-right},0 ${-inner},${-low} ${inner},${-low} ${right},0 ${inner},${low} ${-inner},${low}` });
    },
  };

  const edgeLayer = svg.appendChild(element("g")), vertexLayer = svg.appendChild(element("g"));
  for (const edge of edges) {
    edge.node = edgeLayer.appendChild(element("g", { class: "edge " + edge.kind }));
    edge.line = edge.node.appendChild(element("path", { "marker-end": `url(#arrow-${edge.kind})` }));
    edge.label = edge.node.appendChild(element("text", {}, edge.score.toFixed(2)));
  }
  for (const vertex of vertices.values()) {
    vertex.node = vertexLayer.appendChild(element("g", { class: "vertex " + vertex.kind, tabindex: 0 }));
    vertex.node.appendChild((SHAPES[vertex.kind] || SHAPES.tool)());
    squeeze(vertex.node.appendChild(element("text", {}, short(vertex.name))));
    vertex.node.addEventListener("pointerenter", (event) => show(vertex, event));
    vertex.node.addEventListener("pointermove", follow);
    vertex.node.addEventListener("pointerleave", () => hide(vertex));
    vertex.node.addEventListener("pointerdown", (event) => { event.stopPropagation(); grab(event, vertex); });
  }
  vertices.forEach(placeVertex);

  // -- details --------------------------------------------------------------------------------
  const line = (name, text) => {
    if (!text) return;
    const made = document.createElement(name);
    made.textContent = text;
    details.appendChild(made);
  };
  function show(vertex, event) {
    details.replaceChildren();
    line("b", vertex.name);
    line("small", [vertex.kind, vertex.id, vertex.runs].filter(Boolean).join(" · "));
    line("div", vertex.description);
    for (const edge of vertex.edges.slice(0, 20)) {
      const other = edge.from === vertex ? `${edge.kind} → ${edge.to.name}` : `${edge.kind} ← ${edge.from.name}`;
      line("div", `${other}  ${edge.score.toFixed(2)}`);
    }
    if (vertex.edges.length > 20) line("small", `and ${vertex.edges.length - 20} more`);
    details.hidden = false;
    mark(vertex, true);
    follow(event);
  }
  function follow(event) {
    const right = event.clientX > window.innerWidth / 2, low = event.clientY > window.innerHeight / 2;
    details.style.left = right ? "auto" : `${event.clientX + 14}px`;
    details.style.right = right ? `${window.innerWidth - event.clientX + 14}px` : "auto";
    details.style.top = low ? "auto" : `${event.clientY + 14}px`;
    details.style.bottom = low ? `${window.innerHeight - event.clientY + 14}px` : "auto";
  }
  function hide(vertex) {
    details.hidden = true;
    mark(vertex, false);
  }
  const mark = (vertex, near) => {
    vertex.node.classList.toggle("near", near);
    vertex.edges.forEach((edge) => edge.node.classList.toggle("near", near));
  };

  // -- view: pan, zoom, drag ------------------------------------------------------------------
  let view = { x: 0, y: 0, width: 1, height: 1 };
  const look = () => svg.setAttribute("viewBox", `${view.x} ${view.y} ${view.width} ${view.height}`);
  const fit = () => {
    const xs = data.vertices.map((vertex) => vertices.get(vertex.id).x), ys = data.vertices.map((vertex) => vertices.get(vertex.id).y);
    const left = xs.reduce((a, b) => Math.min(a, b), 0) - WIDTH, top = ys.reduce((a, b) => Math.min(a, b), 0) - 1.5;
    const right = xs.reduce((a, b) => Math.max(a, b), 0) + WIDTH, bottom = ys.reduce((a, b) => Math.max(a, b), 0) + 1;
    view = { x: left, y: top, width: right - left, height: bottom - top };
    look();
  };
  const unit = () => Math.max(view.width / (svg.clientWidth || 1), view.height / (svg.clientHeight || 1));
  const at = (event) => {
    const box = svg.getBoundingClientRect(), scale = unit();
    return {
      x: view.x + view.width / 2 + (event.clientX - box.left - box.width / 2) * scale,
      y: view.y + view.height / 2 + (event.clientY - box.top - box.height / 2) * scale,
    };
  };
  let held = null;
  function grab(event, vertex) {
    held = { vertex, x: event.clientX, y: event.clientY };
    svg.setPointerCapture(event.pointerId);
  }
  svg.addEventListener("pointerdown", (event) => grab(event, null));
  svg.addEventListener("pointermove", (event) => {
    if (!held) return;
    const scale = unit(), dx = (event.clientX - held.x) * scale, dy = (event.clientY - held.y) * scale;
    held.x = event.clientX;
    held.y = event.clientY;
    if (held.vertex) {
      held.vertex.x += dx;
      held.vertex.y += dy;
      placeVertex(held.vertex);
    } else {
      view.x -= dx;
      view.y -= dy;
      look();
    }
  });
  for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, () => { held = null; });
  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    const wanted = Math.exp(event.deltaY * 0.0015), width = Math.min(1e5, Math.max(0.5, view.width * wanted));
    const factor = width / view.width, point = at(event);
    view = { x: point.x + (view.x - point.x) * factor, y: point.y + (view.y - point.y) * factor, width, height: view.height * factor };
    look();
  }, { passive: false });
  fitButton.addEventListener("click", fit);

  // -- filters --------------------------------------------------------------------------------
  const filter = () => {
    const score = Number(least.value), words = find.value.trim().toLowerCase();
    leastValue.textContent = score.toFixed(2);
    for (const edge of edges) edge.node.classList.toggle("away", edge.score < score);
    let shown = 0;
    for (const vertex of vertices.values()) {
      // Hide a tool or group that no visible edge leads to.
      const alone = vertex.kind !== "action" && vertex.edges.length > 0 && vertex.edges.every((edge) => edge.score < score);
      const text = `${vertex.id}\n${vertex.name}\n${vertex.description}`.toLowerCase();
      vertex.node.classList.toggle("away", alone);
      vertex.node.classList.toggle("faint", Boolean(words) && !text.includes(words));
      if (!alone) shown += 1;
    }
    const left = data.left_out ? `; ${data.left_out} more are left out` : "";
    count.textContent = `${shown} of ${vertices.size} vertices${left}`;
  };
  least.addEventListener("input", filter);
  find.addEventListener("input", filter);

  fit();
  filter();
};
