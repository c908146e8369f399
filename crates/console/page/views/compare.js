// A fork beside its parent: what each of them did after the turn at which they parted.

import { get } from "../api.js";
import { el, empty, number } from "../dom.js";
import { transcript } from "./transcript.js";

const EVENTS = 400;

/** The seq of the last event that a fork has from its parent: those name the session where they happened. */
async function parting(id, last, signal) {
  let [low, high] = [0, last];
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    const { items } = await get(`sessions/${id}/events`, { since_seq: middle, limit: 1 }, signal);
    if (items[0]?.session_id === id) high = middle;
    else low = middle + 1;
  }
  return low;
}

async function side(title, id, since, signal) {
  const page = await get(`sessions/${id}/events`, { since_seq: since, limit: EVENTS }, signal).catch((failure) => {
    if (failure.code === "SESSION_NOT_FOUND") return { items: [], isDeleted: true };
    throw failure;
  });
  const shown = transcript(id, { isFixed: true });
  page.items.forEach((event) => shown.take(event));
  const isEmpty = !page.items.some(({ type }) => type === "turn_started");
  return el("section.side", { "aria-label": title }, el("h2", {}, el("a", { href: `#/sessions/${id}?at=${since + 1}` }, title)),
    isEmpty ? empty(page.isDeleted ? "It was deleted" : "Nothing since", el("p", {}, "No turn ran here after the two parted.")) : shown.node);
}

export async function show(body, { id, session, signal }) {
  const since = await parting(id, session().last_seq, signal);
  body.append(el("p.facts", {}, `They parted after event ${number(since)}. Up to there they are the same.`),
    el("div.sides", {}, await side("This fork", id, since, signal), await side("Its parent", session().forked_from, since, signal)));
}
