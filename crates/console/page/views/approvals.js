// What waits for a person, in all sessions.

import { get, post } from "../api.js";
import { ago, button, complain, el, empty, short } from "../dom.js";
import { onList } from "../follow.js";
import { code } from "./transcript.js";

/** Whether the server keeps rules for always, as far as it has not refused one. */
let keepsRules = true;

/** The buttons that decide a call. */
export function decide(session, approval, after) {
  const reason = el("input", { "aria-label": "Reason, which the model reads", placeholder: "Reason (the model reads it)" });
  const answer = approval.form && el("textarea", { rows: "3", "aria-label": "Answer as JSON" }, "{}");
  const send = (decision, scope) => async () => {
    const body = { decision, ...(scope && { scope }), ...(reason.value && { reason: reason.value }) };
    if (answer && decision === "approve") body.answer = JSON.parse(answer.value);
    await post(`sessions/${session}/approvals/${encodeURIComponent(approval.call_id)}`, body).catch((failure) => {
      if (scope === "always" && failure.details.field === "scope") {
        keepsRules = false;
        document.querySelectorAll(".decide .always").forEach((other) => other.remove());
      }
      throw failure;
    });
    await after?.();
  };
  return el("div.decide", {},
    approval.rule && el("p.hint", {}, "Always and for the session allow: ", el("code", {}, approval.rule)),
    answer,
    el("div.actions", {},
      button(approval.form ? "Answer" : "Allow once", send("approve"), { class: "main" }),
      approval.rule && button("For this session", send("approve", "session")),
      approval.rule && keepsRules && button("Always", send("approve", "always"), { class: "always" }),
      reason,
      button("Deny", send("deny"), { class: "danger" })));
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
  view.append(el("div.head", {}, el("h1", {}, "Approvals")), list);
  let drawn = null;
  let [isReading, isBehind] = [false, false];
  const read = async () => {
    const { items, next_cursor: more } = await get("approvals", { limit: PAGE }, signal);
    const key = items.map(({ session_id: id, approval }) => `${id} ${approval.call_id}`).join("\n");
    // What a person is writing must not vanish under their hands.
    if (key === drawn) return;
    drawn = key;
    list.replaceChildren(...items.map(({ session_id: id, title, workspace, waits_since: since, approval }) => el(
      "section.card.waiting", { "aria-label": `Approval of ${approval.name}` },
      el("h2", {}, approval.name),
      el("p", {}, el("a", { href: `#/sessions/${id}?at=${approval.seq}` }, title || `Session ${short(id)}`),
        el("span.facts", {}, " · ", ago(since), workspace && [" · ", el("code", {}, workspace)])),
      asked(approval), decide(id, approval, draw))));
    if (more) list.append(el("p.hint", {}, `Here are the first ${PAGE}. Decide some to see the others.`));
    if (items.length === 0) {
      list.replaceChildren(empty("Nothing waits for you",
        el("p", {}, "A call that needs your word appears here, from every session.")));
    }
  };
  const draw = async () => {
    isBehind = true;
    if (isReading) return;
    isReading = true;
    try {
      for (; isBehind && !signal.aborted; await read()) isBehind = false;
    } finally {
      isReading = false;
    }
  };
  onList(signal, () => draw().catch((failure) => failure.name !== "AbortError" && failure.status > 0 && complain(failure)));
  await draw();
}
