// What waits for a person: each request with everything that is known of it, to be allowed or denied.

import { ask, post } from "../api.js";
import { Keyed, empty, h, icon, named, put, visibleLines } from "../dom.js";
import { line, toast } from "../feedback.js";
import { duration } from "../format.js";
import { store } from "../store.js";

const EFFECTS = { read: "It only reads.", idempotent: "It may be repeated without harm.", once: "It takes effect each time it runs." };

async function answer(request, allowed, reason = "") {
  try {
    await post("ui/confirmations/answer", { id: request.id, allowed, reason, digest: request.digest || "" });
    toast(allowed ? "Allowed." : "Denied.");
  } catch (error) {
    toast(error.message, "bad");
  }
}

async function deny(request) {
  const reason = await line("Deny this call?", "The caller gets an error, with your reason if you give one.", "Reason (optional)", "Deny");
  if (reason !== null) await answer(request, false, reason);
}

function whole(request, place) {
  return h("button", {
    type: "button", class: "small",
    async onclick(event) {
      try {
        const found = await ask(`ui/confirmations/${encodeURIComponent(request.id)}`);
        place.textContent = visibleLines(found.whole || found.arguments);
        event.target.remove();
      } catch (error) {
        toast(error.message, "bad");
      }
    },
  }, "Show all of it");
}

function card(request) {
  const left = h("span", { class: "help" });
  const made = h("article", { class: "card request" },
    h("header", {}, h("h2", {}, named(request.tool || request.service)), left),
    h("p", { class: "question" }, visibleLines(request.question)),
    request.description ? h("p", { class: "help" }, visibleLines(request.description)) : null);
  if (request.arguments) {
    const text = h("pre", { class: "output" }, visibleLines(request.arguments));
    made.append(text, request.shortened ? h("p", { class: "note warn" }, "Parts are left out. ", whole(request, text)) : "");
  }
  const effect = request.asker === "agent" && request.digest ? EFFECTS[request.effect] || "It does not say what it does to the world." : "";
  const facts = { User: request.user, Session: request.session, Service: request.service, Publisher: request.owner, Digest: request.digest.slice(0, 16) };
  if (effect || request.external) made.append(h("p", {}, [effect, request.external ? "It is external." : ""].join(" ")));
  made.append(h("dl", { class: "facts" }, Object.entries(facts).filter(([, value]) => value).map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, named(value))))));
  if (store.may("operate")) {
    made.append(h("div", { class: "actions" },
      h("button", { type: "button", class: "primary", onclick: () => answer(request, true) }, icon("check"), "Allow"),
      h("button", { type: "button", onclick: () => deny(request) }, icon("cross"), "Deny")));
  } else {
    made.append(h("p", { class: "help" }, "Your token may look, but not answer."));
  }
  made.tell = () => put(left, `waits ${duration(store.now() - request.asked_at)}, ${duration(request.expires_at - store.now())} left`);
  return made;
}

export default function waiting(place) {
  const cards = h("div", { class: "stack" });
  const none = empty("Nobody waits for you", "Tools that declare `confirm`, and handlers that ask while they run, appear here. Whoever answers first counts, here or in a terminal:", "toolbus confirm list");
  place.append(cards, none);
  const keyed = new Keyed(cards, { key: (request) => request.id, make: card });
  const draw = () => {
    const rows = [...store.confirmations.values()].sort((a, b) => a.asked_at - b.asked_at);
    keyed.show(rows);
    none.hidden = rows.length > 0;
    for (const element of cards.children) element.tell();
  };
  draw();
  return { update: draw };
}
