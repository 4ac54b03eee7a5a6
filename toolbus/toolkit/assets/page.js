(() => {
  const byId = (id) => document.getElementById(id);
  const parts = { svg: "graph", details: "details", least: "least", leastValue: "least-value", find: "find", fit: "fit", count: "count" };
  drawGraph(JSON.parse(byId("data").textContent), Object.fromEntries(Object.entries(parts).map(([name, id]) => [name, byId(id)])));
})();
