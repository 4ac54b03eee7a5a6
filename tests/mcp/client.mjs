// A client of the TypeScript SDK: list, call, progress, cancel, hot plug. Its last line says what it saw.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ToolListChangedNotificationSchema } from "@modelcontextprotocol/sdk/types.js";

const seen = { progress: [] };
const client = new Client({ name: "test", version: "1" }, { capabilities: {} });
const changed = new Promise((heard) => client.setNotificationHandler(ToolListChangedNotificationSchema, () => heard(true)));
await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));
seen.tools = (await client.listTools()).tools.map((tool) => tool.name);
seen.echo = (await client.callTool({ name: "echo", arguments: { text: "hello" } })).content[0].text;
seen.sum = (await client.callTool({ name: "add", arguments: { a: 1, b: 2 } })).structuredContent.sum;
seen.failed = (await client.callTool({ name: "broken", arguments: {} })).isError;
seen.unknown = await client.callTool({ name: "nobody", arguments: {} }).catch((error) => error.code);
await client.callTool({ name: "count", arguments: { to: 3 } }, undefined, { onprogress: (each) => seen.progress.push(each.message) });
const stop = new AbortController();
const waiting = client.callTool({ name: "wait", arguments: { name: "typescript" } }, undefined, { signal: stop.signal }).catch(() => "stopped");
setTimeout(() => stop.abort(), 500);
seen.cancelled = await waiting;
console.log("ready");
seen.changed = await changed;
seen.after = (await client.listTools()).tools.map((tool) => tool.name);
console.log(JSON.stringify(seen));
await client.close();
process.exit(0);
