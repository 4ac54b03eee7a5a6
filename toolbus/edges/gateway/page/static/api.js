// Speak with the gateway: a bearer token that is asked for once, JSON, and server-sent events over fetch.

const KEPT = "toolbus.token";

export class Refusal extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `the gateway answered ${status}`);
    this.status = status;
    this.problem = problem;
  }
}

let askForToken = async () => "";
export const onToken = (ask) => { askForToken = ask; };

export const token = () => sessionStorage.getItem(KEPT) || "";
export const forget = () => sessionStorage.removeItem(KEPT);

let asking = null;

async function newToken(why) {
  // Several requests are refused at the same time, and a person is asked once.
  asking ||= askForToken(why).finally(() => { asking = null; });
  const given = await asking;
  if (given) sessionStorage.setItem(KEPT, given);
  return given;
}

/** Send a request; a token is asked for when the gateway wants one. */
export async function send(path, { method = "GET", body, headers = {}, signal, ask = true } = {}) {
  for (;;) {
    const used = token();
    const all = { ...headers };
    if (used) all.Authorization = `Bearer ${used}`;
    if (body !== undefined) all["Content-Type"] = "application/json";
    const response = await fetch(path, {
      method, headers: all, signal, cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body),
    });
    if (response.status !== 401 || !ask) return response;
    await response.body?.cancel();
    if (token() === used && !(await newToken(used ? "The gateway did not accept this token." : ""))) return response;
  }
}

export async function problemOf(response) {
  try {
    return await response.json();
  } catch {
    return {};
  }
}

/** Send a request and return its JSON; raises a Refusal. */
export async function ask(path, options = {}) {
  const response = await send(path, options);
  if (!response.ok) throw new Refusal(response.status, await problemOf(response));
  return response.status === 204 ? null : response.json();
}

export const post = (path, body, options = {}) => ask(path, { ...options, method: "POST", body });

/** Read the events of a response as they come: {event, data, id}. */
export async function* events(response, heard = () => {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = "message", data = [], id = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      heard();
      rest += value;
      const lines = rest.split(/\r\n|\n|\r/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield { event, data: data.join("\n"), id };
          event = "message";
          data = [];
          continue;
        }
        const colon = line.indexOf(":");
        if (colon === 0) continue;
        const field = colon < 0 ? line : line.slice(0, colon);
        const text = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (field === "event") event = text;
        else if (field === "data") data.push(text);
        else if (field === "id") id = text;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
