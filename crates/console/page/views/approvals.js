// What waits for a person or for its caller, in all sessions.

import { Failure, capabilities, get, post } from "../api.js";
import { ago, button, complain, el, empty, oneAtATime, short } from "../dom.js";
import { onList } from "../follow.js";
import { code } from "./transcript.js";

/** An answer as a person wrote it. */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Failure({ code: "INVALID_REQUEST", message: `The answer is not JSON: ${error.message}` }, 400);
  }
}

/** The buttons that decide a call. */
export function decide(session, approval, after) {
  const reason = el("input", { "aria-label": "Reason, which the model reads", placeholder: "Reason (the model reads it)" });
  const answer = approval.form && el("textarea", { rows: "3", "aria-label": "Answer as JSON" }, "{}");
  const send = (decision, scope) => async () => {
    const body = { decision, ...(scope && { scope }), ...(reason.value && { reason: reason.value }) };
    if (answer && decision === "approve") body.answer = parsed(answer.value);
    await post(`sessions/${session}/approvals/${encodeURIComponent(approval.call_id)}`, body);
    await after?.();
  };
  const isKept = capabilities.keeps_rules;
  return el("div.decide", {},
    approval.rule && el("p.hint", {}, isKept ? "Always and for the session allow: " : "For the session allows: ", el("code", {}, approval.rule)),
    answer,
    el("div.actions", {},
      button(approval.form ? "Answer" : "Allow once", send("approve"), { class: "main", "data-allows": !approval.form }),
      approval.rule && button("For this session", send("approve", "session")),
      approval.rule && isKept && button("Always", send("approve", "always")),
      reason,
      button("Deny", send("deny"), { class: "danger" })));
}

/** The fields that answer a call in place of the program that runs its tool. */
export function answer(session, callId, after) {
  const text = el("textarea", { rows: "2", "aria-label": "What the call returned" });
  const send = (outcome) => async () => {
    const body = { outcome, content: text.value ? [{ type: "text", text: text.value }] : [] };
    await post(`sessions/${session}/calls/${encodeURIComponent(callId)}`, body);
    await after?.();
  };
  return el("div.decide", {},
    el("p.hint", {}, "It waits for the program that runs this tool. You may answer in its place."),
    text,
    el("div.actions", {},
      button("Answer", send("succeeded"), { class: "main" }), button("It failed", send("failed"), { class: "danger" })));
}

/** What a person must see to decide. */
export const asked = (approval) => [
  approval.form && [el("p", {}, `The server ${approval.form.server} asks: ${approval.form.message}`),
    code(JSON.stringify(approval.form.schema, null, 2))],
  approval.preview ? code(approval.preview) : approval.arguments && code(approval.arguments),
];

const PAGE = 100;

export async function show(view, { signal }) {
  const list = el("div.cards");
  const rest = el("div");
  view.append(el("div.head", {}, el("h1", {}, "Approvals")), list, rest);
  // A card stays as long as its call waits: what a person is writing in it must not vanish under their hands.
  const cards = new Map();
  const draw = oneAtATime(async () => {
    const { items, next_cursor: more } = await get("approvals", { limit: PAGE }, signal);
    const now = new Set(items.map(keyOf));
    cards.forEach((card, key) => now.has(key) || (card.remove(), cards.delete(key)));
    items.forEach((item, index) => {
      const card = cards.get(keyOf(item)) ?? cardOf(item, draw);
      cards.set(keyOf(item), card);
      if (list.children[index] !== card) list.insertBefore(card, list.children[index] ?? null);
    });
    rest.replaceChildren(...[more && el("p.hint", {}, `Here are the first ${PAGE}. Decide some to see the others.`),
      items.length === 0 && empty("Nothing waits for you",
        el("p", {}, "A call that needs your word appears here, from every session."))].filter(Boolean));
  });
  onList(signal, () => draw().catch((failure) => failure.name !== "AbortError" && failure.status > 0 && complain(failure)));
  await draw();
}

const keyOf = ({ session_id: id, approval }) => `${id} ${approval.call_id}`;

const cardOf = ({ session_id: id, title, workspace, kind, waits_since: since, approval }, after) => el(
  "section.card.waiting", { "aria-label": `${kind === "call" ? "Call" : "Approval"} of ${approval.name}` },
  el("h2", {}, approval.name),
  el("p", {}, el("a", { href: `#/sessions/${id}?at=${approval.seq}` }, title || `Session ${short(id)}`),
    el("span.facts", {}, " · ", ago(since), workspace && [" · ", el("code", {}, workspace)])),
  asked(approval), kind === "call" ? answer(id, approval.call_id, after) : decide(id, approval, after));
