// What waits for a person, in all sessions.

import { get, post } from "../api.js";
import { ago, button, complain, el, empty, every, short } from "../dom.js";
import { code } from "./transcript.js";

/** The sessions that wait for a decision. A waiting session changed when it began to wait. */
export async function waiting(signal) {
  let found = [];
  let cursor;
  do {
    const page = await get("sessions", { limit: 1000, cursor }, signal);
    found = found.concat(page.items.filter((session) => session.state === "waiting"));
    cursor = page.next_cursor;
  } while (cursor);
  return found;
}

/** The buttons that decide a call. */
export function decide(session, approval, after) {
  const reason = el("input", { "aria-label": "Reason, which the model reads", placeholder: "Reason (the model reads it)" });
  const answer = approval.form && el("textarea", { rows: "3", "aria-label": "Answer as JSON" }, "{}");
  const send = (decision, scope) => async () => {
    const body = { decision, ...(scope && { scope }), ...(reason.value && { reason: reason.value }) };
    if (answer && decision === "approve") body.answer = JSON.parse(answer.value);
    await post(`sessions/${session}/approvals/${encodeURIComponent(approval.call_id)}`, body);
    await after?.();
  };
  return el("div.decide", {},
    approval.rule && el("p.hint", {}, "Always and for the session allow: ", el("code", {}, approval.rule)),
    answer,
    el("div.actions", {},
      button(approval.form ? "Answer" : "Allow once", send("approve"), { class: "main" }),
      approval.rule && button("For this session", send("approve", "session")),
      approval.rule && button("Always", send("approve", "always")),
      reason,
      button("Deny", send("deny"), { class: "danger" })));
}

/** What a person must see to decide. */
export const asked = (approval) => [
  approval.form && [el("p", {}, `The server ${approval.form.server} asks: ${approval.form.message}`),
    code(JSON.stringify(approval.form.schema, null, 2))],
  approval.preview ? code(approval.preview) : approval.arguments && code(approval.arguments),
];

export async function show(view, { signal }) {
  const list = el("div.cards");
  view.append(el("div.head", {}, el("h1", {}, "Approvals")), list);
  let drawn = null;
  const draw = async () => {
    const sessions = await Promise.all((await waiting(signal)).slice(0, 50).map(({ session_id: id }) =>
      get(`sessions/${id}`, {}, signal)));
    const calls = sessions.flatMap((session) => session.pending_approvals.map((approval) => ({ session, approval })));
    const key = calls.map(({ session, approval }) => `${session.session_id} ${approval.call_id}`).join("\n");
    // What a person is writing must not vanish under their hands.
    if (key === drawn) return;
    drawn = key;
    list.replaceChildren(...calls.map(({ session, approval }) => el(
      "section.card.waiting", { "aria-label": `Approval of ${approval.name}` },
      el("h2", {}, approval.name),
      el("p", {}, el("a", { href: `#/sessions/${session.session_id}?at=${approval.seq}` },
        session.title || `Session ${short(session.session_id)}`), el("span.facts", {}, " · ", ago(session.updated_at))),
      asked(approval), decide(session.session_id, approval, draw))));
    if (calls.length === 0) {
      list.replaceChildren(empty("Nothing waits for you",
        el("p", {}, "A call that needs your word appears here, from every session.")));
    }
  };
  await draw();
  every(1.5, signal, () => draw().catch(complain));
}
