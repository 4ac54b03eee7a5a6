// Try a tool: a form of its arguments, and its answer as it streams in.

import { events, post, problemOf, send } from "./api.js";
import { h, icon, named, visibleLines } from "./dom.js";
import { toast } from "./feedback.js";
import { milliseconds, plural } from "./format.js";
import { ArgumentsForm, Unfinished } from "./form.js";
import { store } from "./store.js";

const MOST_TEXT = 400_000;
const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

const words = (parts) => parts.map((part) => `'${part.replaceAll("'", "'\\''")}'`);

/** Return whether a text is the JSON of a value. */
function same(text, value) {
  try {
    return JSON.stringify(JSON.parse(text)) === JSON.stringify(value);
  } catch {
    return false;
  }
}

function bytesOf(base64) {
  const text = atob(base64);
  return Uint8Array.from(text, (character) => character.charCodeAt(0));
}

/** The answer of one call. */
class Answer {
  constructor() {
    this.text = document.createTextNode("");
    this.length = 0;
    this.note = h("span", { class: "status" });
    this.output = h("pre", { class: "output", tabindex: "0", "aria-label": "output" }, this.text);
    this.progress = h("progress", { hidden: true });
    this.told = h("p", { class: "help", hidden: true });
    this.extras = h("div", { class: "extras" });
    this.urls = [];
    this.element = h("section", { class: "answer", "aria-live": "polite" },
      h("header", {}, h("h3", {}, "Answer"), this.note), this.progress, this.told, this.output, this.extras);
    this.output.hidden = true;
  }

  status(text, kind = "") {
    this.note.className = `status ${kind}`;
    this.note.textContent = text;
  }

  add(text) {
    this.output.hidden = false;
    const left = MOST_TEXT - this.length;
    if (left <= 0) return;
    const atEnd = this.output.scrollHeight - this.output.scrollTop - this.output.clientHeight < 40;
    const shown = visibleLines(text);
    this.text.appendData(shown.slice(0, left));
    this.length += shown.length;
    if (this.length >= MOST_TEXT) this.extra(h("p", { class: "help" }, `Only the first ${MOST_TEXT.toLocaleString("en")} characters are shown.`));
    if (atEnd) this.output.scrollTop = this.output.scrollHeight;
  }

  reset(attempt) {
    this.text.data = "";
    this.length = 0;
    this.extra(h("p", { class: "note warn" }, `Attempt ${attempt || "2"} said something else, so the text begins anew.`));
  }

  extra(element) {
    this.extras.append(element);
  }

  blob({ media_type: kind = "", data = "" }) {
    const bytes = bytesOf(data);
    const known = PICTURES.has(kind);
    const url = URL.createObjectURL(new Blob([bytes], { type: known ? kind : "application/octet-stream" }));
    this.urls.push(url);
    const link = h("a", { href: url, download: `answer.${kind.split("/").pop().replace(/[^a-z0-9]/gi, "").slice(0, 8) || "bin"}` },
      `Save ${visibleLines(kind).slice(0, 60)} (${plural(bytes.length, "byte")})`);
    this.extra(h("figure", {}, known ? h("img", { src: url, alt: "an image that the tool returned" }) : null, h("figcaption", {}, link)));
  }

  advance({ done, total, message }) {
    this.progress.hidden = false;
    if (total) {
      this.progress.max = total;
      this.progress.value = done;
    } else {
      this.progress.removeAttribute("value");
    }
    this.told.hidden = !message;
    this.told.textContent = visibleLines(message || "").slice(0, 500);
  }

  end(result) {
    this.progress.hidden = true;
    this.told.hidden = true;
    const meta = result.meta || {};
    const facts = [meta.ms !== undefined ? milliseconds(meta.ms) : "", meta.attempts > 1 ? plural(meta.attempts, "attempt") : ""].filter(Boolean).join(" · ");
    this.status(result.success ? `Done${facts ? ` · ${facts}` : ""}` : `Failed${facts ? ` · ${facts}` : ""}`, result.success ? "ok" : "bad");
    this.results(result);
    if (result.error) this.failed(result.error.type, result.error.message || result.error.code || "the tool failed");
    if (meta.worker) this.extra(h("p", { class: "help" }, "Answered by ", named(meta.worker, { class: "name mono" }), " · call ", h("a", { href: `#/calls/${encodeURIComponent(meta.id || "")}` }, named(meta.id || "", { class: "name mono" }))));
  }

  /** Show the text and the data, but not the same thing twice. */
  results({ output, data }) {
    const isText = data === null || data === undefined || typeof data === "string";
    if (isText) {
      if (!this.length) this.add(output || data || "");
      return;
    }
    const asText = JSON.stringify(data, null, 2);
    if (!this.length && output && !same(output, data)) this.add(output);
    this.extra(h("details", { open: !this.length }, h("summary", {}, "Data"), h("pre", { class: "output", tabindex: "0" }, visibleLines(asText).slice(0, MOST_TEXT))));
  }

  failed(type, message) {
    this.extra(h("div", { class: "note bad" }, h("b", {}, type), " ", visibleLines(message).slice(0, 4000)));
  }

  asked({ id, question }) {
    const box = h("div", { class: "note warn ask" }, h("p", {}, visibleLines(question || "This call waits for a person.").slice(0, 2000)));
    if (store.may("operate")) {
      const answer = async (allowed) => {
        try {
          await post("ui/confirmations/answer", { id, allowed });
          box.remove();
        } catch (error) {
          toast(error.message, "bad");
        }
      };
      box.append(h("div", { class: "actions" },
        h("button", { type: "button", class: "primary small", onclick: () => answer(true) }, icon("check"), "Allow"),
        h("button", { type: "button", class: "small", onclick: () => answer(false) }, icon("cross"), "Deny")));
    } else {
      box.append(h("p", { class: "help" }, "Your token may not answer it; somebody with the permission to operate can."));
    }
    this.question = box;
    this.extra(box);
  }

  close() {
    this.urls.forEach((url) => URL.revokeObjectURL(url));
  }
}

export class TryOut {
  constructor(tool, schema) {
    this.tool = tool;
    this.form = new ArgumentsForm(schema);
    this.place = h("div");
    this.run = h("button", { type: "submit", class: "primary" }, "Run");
    this.stop = h("button", { type: "button", hidden: true, onclick: () => this.stopping?.abort() }, "Stop");
    this.as = h("button", { type: "button", class: "quiet", hidden: this.form.open, onclick: () => this.switch() }, "Edit as JSON");
    this.copy = h("button", { type: "button", class: "quiet", onclick: () => this.curl() }, "Copy as curl");
    this.element = h("form", { class: "tryout", novalidate: true, onsubmit: (event) => { event.preventDefault(); this.start(); } },
      this.form.element, h("div", { class: "actions" }, this.run, this.stop, h("span", { class: "spacer" }), this.as, this.copy), this.place);
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.start();
      }
    });
  }

  switch() {
    try {
      this.form.switch(!this.form.asJson);
      this.as.textContent = this.form.asJson ? "Edit as form" : "Edit as JSON";
    } catch (error) {
      if (!(error instanceof Unfinished)) throw error;
    }
  }

  path() {
    return `v1/tools/${encodeURIComponent(this.tool)}/invoke`;
  }

  async curl() {
    let values;
    try {
      values = this.form.values();
    } catch (error) {
      if (error instanceof Unfinished) return;
      throw error;
    }
    const lines = ["curl -N", ...words([new URL(this.path(), document.baseURI).href]), `-H ${words(["Accept: text/event-stream"])}`];
    if (sessionStorage.getItem("toolbus.token")) lines.push('-H "Authorization: Bearer $TOKEN"');
    lines.push(`--json ${words([JSON.stringify(values)])}`);
    try {
      await navigator.clipboard.writeText(lines.join(" \\\n  "));
      toast("Copied. Type it in a terminal.");
    } catch {
      toast("The browser does not let this page copy.", "bad");
    }
  }

  async start() {
    let values;
    try {
      values = this.form.values();
    } catch (error) {
      if (error instanceof Unfinished) return;
      throw error;
    }
    this.stopping?.abort();
    this.answer?.close();
    const stopping = (this.stopping = new AbortController());
    const answer = (this.answer = new Answer());
    this.place.replaceChildren(answer.element);
    answer.status("Waiting for a worker", "busy");
    this.stop.hidden = false;
    try {
      await this.read(answer, values, stopping.signal);
    } catch (error) {
      if (stopping.signal.aborted) answer.status("Stopped", "");
      else {
        answer.status("Failed", "bad");
        answer.failed("connection", error.message);
      }
    } finally {
      if (this.stopping === stopping) this.stop.hidden = true;
    }
  }

  async read(answer, values, signal) {
    const response = await send(this.path(), { method: "POST", body: values, headers: { Accept: "text/event-stream" }, signal });
    if (!response.ok) {
      const problem = await problemOf(response);
      answer.status("Refused", "bad");
      const text = problem.detail || `the gateway answered ${response.status}`;
      if (!this.form.refuse(text)) answer.failed(problem.title || String(response.status), text);
      else answer.failed(problem.title || "invalid_arguments", text);
      return;
    }
    let ended = false;
    for await (const { event, data } of events(response)) {
      const value = JSON.parse(data);
      if (event === "started") answer.status(value.attempt > 1 ? `Running, attempt ${value.attempt}` : "Running", "busy");
      else if (event === "text") { answer.status("Running", "busy"); answer.add(value.text); }
      else if (event === "progress") answer.advance(value);
      else if (event === "blob") answer.blob(value);
      else if (event === "reset") answer.reset(value.attempt);
      else if (event === "confirm") { answer.status("Waiting for a person", "busy"); answer.asked(value); }
      else if (event === "answered") { answer.question?.remove(); answer.status("Running", "busy"); }
      else if (event === "end") { ended = true; answer.question?.remove(); answer.end(value); }
    }
    if (!ended) throw new Error("the connection was lost before the end");
  }

  close() {
    this.stopping?.abort();
    this.answer?.close();
  }
}
