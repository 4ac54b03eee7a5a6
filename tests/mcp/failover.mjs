// A client of the TypeScript SDK (1 or 2, by its package) that calls until the list of tools changes. Its last line says what it saw.
const [name, url] = process.argv.slice(2);
const old = name === "sdk";
const seen = { name, calls: 0, failed: [], heard: "" };
let changed = false;
const hear = () => { changed = true; };
let Client, Transport;
if (old) {
  ({ Client } = await import("@modelcontextprotocol/sdk/client/index.js"));
  ({ StreamableHTTPClientTransport: Transport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js"));
} else ({ Client, StreamableHTTPClientTransport: Transport } = await import("@modelcontextprotocol/client"));
const client = new Client({ name: "test", version: "1" }, { capabilities: {} });
const kind = "notifications/tools/list_changed";
client.setNotificationHandler(old ? (await import("@modelcontextprotocol/sdk/types.js")).ToolListChangedNotificationSchema : kind, hear);
await client.connect(new Transport(new URL(url)));
const call = (tool, args, more = {}) => client.callTool({ name: tool, arguments: args }, ...(old ? [undefined] : []), { timeout: 60000, ...more });
const progress = (each) => {
  if (!seen.heard) console.log("begun");
  seen.heard += each.message ?? "";
};
const job = call("once_job", { name }, { onprogress: progress });
const end = Date.now() + 60000;
while (!changed && Date.now() < end) {
  for (const [tool, args] of [["echo", { text: "x" }], ["pay", { amount: 1 }]]) {
    try {
      const result = await call(tool, args);
      if (result.isError) throw new Error(JSON.stringify(result));
      seen.calls++;
    } catch (error) {
      seen.failed.push(String(error));
    }
  }
}
console.log("changed");
seen.job = await job.then((result) => result.content[0].text, String);
seen.late = (await client.listTools()).tools.some((tool) => tool.name === "late");
console.log(JSON.stringify(seen));
await client.close();
process.exit(0);
