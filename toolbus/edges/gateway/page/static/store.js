// What the page knows, kept up to date by one stream; views hear of changes once per frame at most.

import { events, problemOf, send } from "./api.js";

const KEYS = {
  services: (row) => row.id,
  instances: (row) => row.id,
  tools: (row) => `${row.service} ${row.name}`,
  catalogue: (row) => row.name,
  recent: (row) => row.entry,
  dead: (row) => `${row.queue} ${row.id}`,
  confirmations: (row) => row.id,
  sessions: (row) => `${row.service} ${row.user} ${row.session} ${row.instance}`,
  running: (row) => `${row.instance} ${row.id}`,
  pins: (row) => row.name,
  refused: (row) => `${row.service} ${row.name}`,
};
// Fields that have their usual value are left out on the way.
const USUAL = {
  recent: {
    tool: "", service: "", user: "", session: "", instance: "", attempt: 1, outcome: "succeeded", queued: 0, taken: 0, first: 0, ended: 0,
    error: "", code: "", message: "", by: "", agent: "", arguments: "", trace: "", entry: "",
  },
  running: { tool: "", service: "", user: "", session: "", instance: "", attempt: 1, since: 0, stopped: false },
  confirmations: {
    asker: "agent", service: "", owner: "", user: "", session: "", arguments: "", asked_at: 0, expires_at: 0, digest: "", shortened: false,
    description: "", effect: "", external: false, question: "",
  },
};
const SILENT_AFTER = 12_000;
const MOST_SAMPLES = 4000;
const GONE_FOR = 300;
const FIRST_PAUSE = 300, LONGEST_PAUSE = 5000;

class Store {
  constructor() {
    for (const section of Object.keys(KEYS)) this[section] = new Map();
    // Workers that have gone within the last minutes.
    this.gone = new Map();
    this.history = [];
    this.problems = [];
    this.silent = [];
    // The gateway can't read the state of the namespace: what is known is how it was.
    this.away = false;
    this.me = { name: "", may: [], namespace: "", version: "" };
    this.connection = "connecting";
    this.reason = "";
    this.offset = 0;
    this.loaded = false;
    this.changes = 0;
    this.frames = 0;
    this.listeners = new Set();
    this.pending = new Set();
    this.scheduled = false;
  }

  /** Seconds since 1970 by the server's clock, as far as it is known. */
  now() {
    return Date.now() / 1000 + this.offset;
  }

  may(permission) {
    return this.me.may.includes(permission);
  }

  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  changed(...topics) {
    topics.forEach((topic) => this.pending.add(topic));
    if (this.scheduled) return;
    this.scheduled = true;
    const tell = () => {
      this.scheduled = false;
      this.frames += 1;
      const topicsNow = this.pending;
      this.pending = new Set();
      for (const listener of [...this.listeners]) listener(topicsNow);
    };
    // A page in the background gets no frames.
    if (document.hidden) setTimeout(tell, 500);
    else requestAnimationFrame(tell);
  }

  /** Follow the gateway until the page is closed. */
  async follow() {
    let pause = FIRST_PAUSE;
    for (;;) {
      const before = this.loaded;
      this.loaded = false;
      try {
        await this.read();
      } catch (error) {
        this.reason = error.message || String(error);
      }
      if (this.loaded) pause = FIRST_PAUSE;
      this.loaded ||= before;
      this.state(this.connection === "refused" ? "refused" : "away");
      const wait = pause * (0.75 + Math.random() / 2);
      pause = Math.min(pause * 2, LONGEST_PAUSE);
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }

  async read() {
    const stop = new AbortController();
    let heard = Date.now();
    const guard = setInterval(() => { if (Date.now() - heard > SILENT_AFTER) stop.abort(); }, 2000);
    try {
      const response = await send("ui/events", { headers: { Accept: "text/event-stream" }, signal: stop.signal });
      if (!response.ok) {
        const problem = await problemOf(response);
        this.connection = response.status === 401 || response.status === 403 ? "refused" : "away";
        throw new Error(problem.detail || `the gateway answered ${response.status}`);
      }
      for await (const { event, data } of events(response, () => { heard = Date.now(); })) {
        if (event === "snapshot") this.take(JSON.parse(data));
        else if (event === "change") this.apply(JSON.parse(data));
      }
      throw new Error("the stream ended");
    } finally {
      clearInterval(guard);
    }
  }

  state(connection) {
    if (this.connection === connection) return;
    this.connection = connection;
    this.changed("connection");
  }

  take(snapshot) {
    this.me = snapshot.me;
    this.history = snapshot.history || [];
    for (const section of Object.keys(KEYS)) this[section] = new Map();
    this.apply(snapshot);
    this.loaded = true;
    this.state("live");
    this.changed("me", "history", "problems", ...Object.keys(KEYS));
  }

  apply(change) {
    this.changes += 1;
    if (change.now) this.offset = change.now - Date.now() / 1000;
    for (const [section, key] of Object.entries(KEYS)) {
      const part = change[section];
      if (!part) continue;
      const rows = this[section];
      for (const gone of part.drop || []) {
        if (section === "instances" && rows.has(gone)) this.gone.set(gone, { ...rows.get(gone), gone: this.now() });
        rows.delete(gone);
      }
      const usual = USUAL[section];
      for (const row of part.set || []) {
        const whole = usual ? { ...usual, ...row } : row;
        rows.set(key(whole), whole);
      }
      this.changed(section);
    }
    if (change.presets) this.changed("presets");
    if (change.sample) {
      this.history.push(change.sample);
      if (this.history.length > MOST_SAMPLES) this.history.splice(0, this.history.length - MOST_SAMPLES);
      this.changed("history");
    }
    for (const [id, row] of this.gone) if (this.instances.has(id) || row.gone < this.now() - GONE_FOR) this.gone.delete(id);
    if (change.problems) {
      this.problems = change.problems;
      this.silent = change.silent || [];
      this.changed("problems");
      if (this.away !== Boolean(change.away)) {
        this.away = Boolean(change.away);
        this.changed("connection");
      }
    }
  }
}

export const store = new Store();
