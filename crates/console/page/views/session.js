// One session: what is said and done as it happens, and its other views as tabs.

import { get, patch, post, remove, startTurn } from "../api.js";
import { ask, button, complain, count, el, empty, failed, number, say, short, state } from "../dom.js";
import { attachments, linesOf } from "../attached.js";
import { follow, onList, sessions as listed } from "../follow.js";
import { show as compare } from "./compare.js";
import { show as context } from "./context.js";
import { show as events } from "./events.js";
import { options as fields } from "./options.js";
import { show as tokens } from "./tokens.js";
import { transcript } from "./transcript.js";

const TAIL = 400;
const PAGE = 300;
const SOON_MS = 60;
const CHANGES = /^(turn_|approval_|call_|compaction_completed|compaction_undone|session_|pinned|unpinned)/;

/** What was written for sessions and is not sent yet: another view must not lose it. */
const drafts = new Map();

const TABS = { "": "Live", context: "Context", tokens: "Tokens", events: "Events", compare: "Compare" };

export async function show(view, place) {
  const { parts, params, signal, title } = place;
  const [, id, tab = ""] = parts;
  let session = await get(`sessions/${id}`, {}, signal);
  const heading = el("h1", {});
  const facts = el("p.facts");
  const actions = el("div.actions");
  const tabs = el("nav.tabs", { "aria-label": "Views of the session" }, Object.entries(TABS).filter(([name]) => name !== "compare" || session.forked_from).map(([name, text]) =>
    el("a", { href: `#/sessions/${id}${name && `/${name}`}`, "aria-current": name === tab ? "page" : null }, text)));
  const body = el("div.body");
  view.append(el("div.head", {}, heading, actions), facts, tabs, body);

  async function fork(turn) {
    const made = await post(`sessions/${id}/fork`, {}, { params: { turn } });
    addEventListener("hashchange", () => say("Forked. This is the fork."), { once: true });
    location.hash = `#/sessions/${made.session_id}`;
  }

  async function rename() {
    const input = el("input", { "aria-label": "Title" });
    input.value = session.title ?? "";
    if (!(await ask("Title of the session", input, [["Save", true, "main"]]))) return;
    await patch(`sessions/${id}`, { title: input.value });
    await refresh();
  }

  const drawHead = () => {
    const name = session.title || `Session ${short(id)}`;
    title(name);
    heading.replaceChildren(...el("span", {}, name, " ", state(session)).childNodes);
    const window = session.context.window_tokens;
    const share = window > 0 ? ` of ${number(window)}` : "";
    facts.replaceChildren(...el("span", {}, short(id), ` · ${session.model} · context ${number(session.context.estimated_tokens)}`,
      `${share} tokens · ${count(session.turn_count, "turn")}`,
      session.workspace && [" · ", el("code", {}, session.workspace)],
      session.parent && [" · ", el("a", { href: `#/sessions/${session.parent.session_id}` }, "sub-agent of this session")],
      session.forked_from && [" · ", el("a", { href: `#/sessions/${session.forked_from}` }, "forked from its parent")],
      Object.entries(session.labels).map(([label, value]) => [" ", el("span.label", {}, `${label}: ${value}`)])).childNodes);
    // A button that a keyboard is on stays.
    if (actions.dataset.archived === String(session.archived)) return;
    actions.dataset.archived = String(session.archived);
    const archive = session.archived ? "unarchive" : "archive";
    actions.replaceChildren(
      button("Fork", () => fork(undefined)),
      button("Rename", rename),
      button(session.archived ? "Unarchive" : "Archive", async () => (await post(`sessions/${id}/${archive}`), refresh())),
    );
  };
  const listeners = [drawHead];
  async function refresh() {
    const now = await get(`sessions/${id}`, {}, signal);
    // Of two answers, the later one may come first.
    if (now.last_seq >= session.last_seq) session = now;
    await Promise.all(listeners.map((draw) => draw()));
  }
  let timer = null;
  const refreshSoon = () => {
    timer ??= setTimeout(() => {
      timer = null;
      refresh().catch((failure) => failure.status >= 400 && complain(failure));
    }, SOON_MS);
  };
  drawHead();
  // Whatever view is shown, the head is not older than the list.
  onList(signal, (ids) => ids.includes(id) && refreshSoon());
  if (listed.get(id)?.last_seq > session.last_seq) refreshSoon();

  const views = { context, tokens, events, compare };
  if (views[tab]) return views[tab](body, { ...place, id, session: () => session, refresh, listeners });
  const at = Number(params.get("at"));
  if (at > 0) return showPlace(body, { id, at, session, fork, signal });
  return showLive(body, { id, session: () => session, refreshSoon, listeners, fork, signal });
}

/** A part of the journal that stands still, around one event. */
async function showPlace(body, { id, at, session, fork, signal }) {
  const from = Math.max(0, at - PAGE / 3);
  const page = await get(`sessions/${id}/events`, { since_seq: Math.floor(from), limit: PAGE }, signal);
  const shown = transcript(id, { onFork: fork, isFixed: true });
  page.items.forEach((event) => shown.take(event));
  const go = (seq, text, isOn) => isOn && el("a.button", { href: `#/sessions/${id}?at=${seq}` }, text);
  const links = () => el("p.actions", {}, go(Math.max(1, Math.floor(at - PAGE)), "Earlier", from > 0),
    go(page.next_seq + PAGE / 3, "Later", page.next_seq < session.last_seq), el("a.button", { href: `#/sessions/${id}` }, "Newest"));
  body.append(links(), shown.node, links());
  const items = [...shown.node.children];
  const found = items.find((item) => Number(item.dataset.seq) >= at) ?? items.at(-1);
  found?.classList.add("found");
  found?.scrollIntoView({ block: "center" });
}

/** The newest part, as it goes on. */
async function showLive(body, { id, session, refreshSoon, listeners, fork, signal }) {
  const link = el("p.connection", { role: "status" });
  const queue = el("div.queue");
  const since = Math.max(0, session().last_seq - TAIL);
  const shown = transcript(id, { onFork: fork });
  const none = el("div", {}, session().turn_count === 0 && empty("Nothing was said yet",
    el("p", {}, "Write a prompt below. Without a model of yours, the scripted one answers.")));
  const earlier = since > 0 && el("a.button", { href: `#/sessions/${id}?at=${since}` }, "Earlier");
  const prompt = el("textarea", { rows: "3", "aria-label": "Prompt", placeholder: "Write a prompt (Enter sends, Shift+Enter is a new line)" });
  prompt.value = drafts.get(id) ?? "";
  const keep = () => (prompt.value ? drafts.set(id, prompt.value) : drafts.delete(id));
  prompt.addEventListener("input", keep);
  const attached = attachments(prompt);
  const asked = fields(id);
  const send = (policy) => async () => {
    const text = prompt.value;
    if (!text.trim() && attached.isEmpty()) return;
    // A running turn goes on as it was started.
    const takesOptions = policy !== "steer";
    if (takesOptions && !asked.areValid()) return;
    // At once, so that nothing is sent twice and nothing is lost that is written meanwhile.
    prompt.value = "";
    keep();
    prompt.focus();
    const files = attached.take();
    try {
      const blocks = await files.blocks();
      const options = takesOptions ? asked.values() : undefined;
      await startTurn(id, blocks.length > 0 ? [...blocks, { type: "text", text }] : text, policy, options);
    } catch (failure) {
      files.back();
      const written = [text, drafts.get(id)].filter(Boolean).join("\n");
      prompt.value = written;
      drafts.set(id, written);
      throw failure;
    }
  };
  const buttons = el("div.actions");
  const isBusy = () => session().state !== "idle";
  const sendNow = () => send(isBusy() ? "queue" : "reject")().catch(complain);
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    sendNow();
  });
  async function edit(item) {
    const text = el("textarea", { rows: "6", "aria-label": "Prompt of the waiting turn" });
    text.value = item.prompt;
    if (!(await ask(`Turn ${item.turn} waits`, text, [["Save", true, "main"]]))) return;
    const kept = (item.blocks ?? []).map(({ type, name, media_type, blob }) => ({ type, name, media_type, blob }));
    const prompt = kept.length > 0 ? [...kept, { type: "text", text: text.value }] : text.value;
    await patch(`sessions/${id}/queue/${item.turn}`, { prompt });
  }
  let drawn = "";
  const drawControls = () => {
    const { state: now, queue: waits, archived } = session();
    prompt.disabled = archived;
    if (drawn !== `${now} ${archived}`) {
      drawn = `${now} ${archived}`;
      buttons.replaceChildren(...(archived ? [] : now === "idle"
        ? [button("Send", send("reject"), { class: "main" })]
        : [button("Queue", send("queue"), { class: "main" }), now !== "queued" && button("Steer", send("steer")),
          button("Send now instead", send("interrupt")),
          button("Interrupt", () => post(`sessions/${id}/interrupt`), { class: "danger" })].filter(Boolean)));
    }
    queue.replaceChildren(...waits.map((item) => el("div.queued", {}, el("span.facts", {}, `Turn ${item.turn} waits`),
      el("span.text", {}, typeof item.prompt === "string" ? item.prompt.slice(0, 200) : item.prompt.head),
      linesOf(item.blocks),
      typeof item.prompt === "string" && button("Edit", () => edit(item), { class: "quiet" }),
      item !== waits[0] && button("Run next", () => patch(`sessions/${id}/queue/${item.turn}`, { position: 0 }), { class: "quiet" }),
      button("Cancel", () => remove(`sessions/${id}/queue/${item.turn}`), { class: "quiet" }))));
  };
  listeners.push(drawControls);
  const composer = el("form.composer", { "aria-label": "Next turn", onsubmit: (event) => event.preventDefault() }, queue,
    session().archived && el("p.hint", {}, "This session is archived. Unarchive it to go on."), prompt,
    attached.node, !session().archived && asked.node, el("div.line", {}, buttons, link));
  body.append(...[earlier, none, shown.node, composer].filter(Boolean));
  drawControls();

  const onEvent = (event) => {
    const isAtEnd = innerHeight + scrollY > document.body.scrollHeight - 160;
    shown.take(event);
    if (shown.node.hasChildNodes()) none.replaceChildren();
    if (event.type === "session_deleted") none.replaceChildren(failed({ code: "SESSION_NOT_FOUND", message: "This session was deleted." }));
    if (CHANGES.test(event.type)) refreshSoon();
    if (isAtEnd) scrollTo({ top: document.body.scrollHeight });
  };
  const onState = (now) => {
    link.className = `connection ${now === "live" ? "held" : "lost"}`;
    link.replaceChildren(now === "live" ? "live" : now === "waiting" ? "reconnecting …" : failed(now));
    if (now === "live") refreshSoon();
  };
  follow(id, since, signal, onEvent, onState).catch(complain);
}
