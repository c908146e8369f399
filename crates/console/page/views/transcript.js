// A session's events as people read them: prompts, answers as they stream, calls with their output, and how a turn ended.

import { blob } from "../api.js";
import { linesOf } from "../attached.js";
import { button, el, money, number } from "../dom.js";
import { markdown } from "../markdown.js";
import { answer, asked, decide } from "./approvals.js";

const SHOWN_MAX = 4000;
const NODES_MAX = 500;

/** A text as a block; the lines of a diff are marked. */
export function code(text) {
  const isDiff = /^(@@|--- |diff )/m.test(text) && /^[+-]/m.test(text);
  if (!isDiff) return el("pre", { tabindex: "0" }, text);
  const kinds = { "+": "added", "-": "removed", "@": "place" };
  const lines = text.trimEnd().split("\n").map((line) => el(`span.${kinds[line[0]] ?? "same"}`, {}, `${line}\n`));
  return el("pre.diff", { tabindex: "0" }, lines);
}

/** A text of an event, at first only its beginning; a long one is a blob, which "Show all" reads piece by piece. */
export function bounded(session, body, show = code) {
  if (typeof body === "string" && body.length <= SHOWN_MAX) return show(body);
  const isBlob = typeof body !== "string";
  const size = isBlob ? `${number(body.bytes)} bytes` : `${number(body.length)} characters`;
  const begin = isBlob ? `${body.head}\n…\n${body.tail}` : `${body.slice(0, SHOWN_MAX)}\n…`;
  const place = el("div.bounded", {}, show(begin));
  const read = async (offset) => {
    const piece = isBlob ? await blob(session, body.blob, offset) : { text: body, next: null };
    if (offset === 0) place.replaceChildren();
    more.remove();
    place.append(show(piece.text));
    if (piece.next) {
      more = button(`Show more of ${size}`, () => read(piece.next), { class: "quiet" });
      place.append(more);
    }
  };
  let more = button(`Show all ${size}`, () => read(0), { class: "quiet" });
  place.append(more);
  return place;
}

const OUTCOMES = { succeeded: "succeeded", failed: "failed", not_run: "did not run", unknown: "unknown" };
const argumentsOf = (call) =>
  typeof call.arguments === "string" ? call.arguments : JSON.stringify(call.arguments ?? {}, null, 2);

/** A turn's model, and how it is asked. */
const terms = ({ model, options }) =>
  [model, ...Object.entries(options ?? {}).map(([name, value]) => `${name} ${value}`)].join(", ");

/** One line for an event that is not a part of the conversation; `null` if it is. */
function note(event) {
  const notes = {
    session_forked: () => ["Forked from ", el("a", { href: `#/sessions/${event.parent}?at=${event.at}` }, "its parent")],
    session_imported: () => (event.had_client_tools
      ? "Imported: no workspace, allowed rules or tools of its caller any more; calls that wait for it do not run"
      : "Imported: no workspace and no allowed rules any more"),
    session_archived: () => "Archived",
    session_unarchived: () => "No longer archived",
    turn_dequeued: () => `Left the queue: ${event.reason}`,
    tool_allowed: () => ["Allowed in this session: ", el("code", {}, event.rule)],
    reminder_set: () => !event.automatic && `Reminder ${event.kind}: ${textOf(event.text)}`,
    pinned: () => `Pinned: ${textOf(event.text)}`,
    unpinned: () => `Pin ${event.pin} removed`,
    budget_warning: () => (event.budget === "cost"
      ? `Budget nearly used up: ${money(event.used)} of ${money(event.limit)}`
      : `Budget nearly used up: ${number(event.used)} of ${number(event.limit)} ${event.budget}`),
    output_refused: () => `Answer refused: ${event.errors.map(({ path, message }) => (path ? `${path}: ` : "") + message).join("; ")}`,
    compaction_started: () => `Compacting ${number(event.message_count)} messages …`,
    compaction_completed: () => `Context compacted: ${event.messages_before} to ${event.messages_after} messages`,
    compaction_failed: () => `Not compacted: ${event.code}, ${event.message}`,
    compaction_undone: () => `Compaction ${event.compaction} undone`,
    log_tail_repaired: () => `The journal's end was repaired: ${event.bytes} bytes cut off`,
    records_lost: () => `Events were lost to damage: ${event.ranges.map(([from, to]) => `${from} to ${to}`).join(", ")}`,
    pruned: () => `Events ${event.from} to ${event.to} are gone`,
    session_deleted: () => "This session was deleted",
    retrying: () => `Attempt ${event.attempt} failed (${event.error.code}); the next one follows`,
  };
  return notes[event.type]?.() || null;
}

const textOf = (body) => (typeof body === "string" ? body : `${body?.head ?? ""} …`).slice(0, 300);

/** Shows events one after another. `take(event)` adds one; at most NODES_MAX stay in the page. */
export function transcript(session, { onFork, isFixed }) {
  const node = el("div.transcript", { role: "log", "aria-label": "Transcript" });
  const live = new Map();
  const calls = new Map();
  const queued = new Map();
  const steered = new Map();
  /** True while a turn answers by a schema: its JSON is no Markdown. */
  let answersByJson = false;
  const promptOf = ({ prompt, blocks }) => el("div.prompt", {}, linesOf(blocks),
    prompt !== "" && bounded(session, prompt, (text) => el("p.text", {}, text)));
  /** Takes an item out of the page, and what is known of its call. */
  const forget = (item) => {
    if (calls.get(item.dataset.callId)?.item === item) calls.delete(item.dataset.callId);
    item.remove();
  };
  const add = (event, ...children) => {
    const item = el("div.item", { "data-seq": event.seq, "data-type": event.type }, children);
    node.append(item);
    while (!isFixed && node.children.length > NODES_MAX) forget(node.firstChild);
    return item;
  };
  const clearLive = () => {
    live.forEach(({ item }) => item.remove());
    live.clear();
  };

  function delta(event) {
    const key = `${event.step} ${event.block} ${event.type}`;
    if (!live.has(key) || event.offset === 0) {
      live.get(key)?.item.remove();
      const text = document.createTextNode("");
      const kind = event.type === "text_delta" ? "answer" : "reasoning";
      live.set(key, { item: add(event, el(`div.live.${kind}`, {}, text)), text: "" });
    }
    const block = live.get(key);
    block.text += event.text;
    const shown = block.item.firstChild;
    // As text until it is whole: half a link is no link.
    shown.replaceChildren(...el("p", {}, block.text.slice(-SHOWN_MAX * 4)).childNodes);
  }

  function card(event, call) {
    const status = el("span.status", {}, "called");
    const more = el("div.more");
    const output = el("div.output");
    const given = argumentsOf(call);
    const item = add(event, el("section.card.call", { "aria-label": `Call of ${call.name}` },
      el("h3", {}, call.name, " ", status),
      given !== "{}" && el("details", { open: given.length < 300 }, el("summary", {}, "Arguments"), bounded(session, given)),
      more, output));
    item.dataset.callId = call.call_id;
    calls.set(call.call_id, { item, status, more, output });
  }

  const stateOf = (id, text, kind) => {
    const call = calls.get(id);
    if (!call) return null;
    call.status.textContent = text;
    call.item.firstChild.className = `card call ${kind}`;
    return call;
  };

  function addBlocks(event, blocks) {
    for (const block of blocks) {
      if (block.type === "text") add(event, el("div.answer", {}, bounded(session, block.text, answersByJson ? undefined : markdown)));
      if (block.type === "reasoning") {
        add(event, el("details.reasoning", {}, el("summary", {}, "Reasoning"), bounded(session, block.text)));
      }
      if (block.type === "tool_call") card(event, block);
    }
  }

  const takes = {
    history_given: (event) => {
      const { content, blocks = [], results = [] } = event.message;
      // It follows the session's first event.
      if (event.seq === 2) add(event, el("div.turn-head", {}, el("h2", {}, "Before the first turn")));
      if (content !== undefined) add(event, promptOf({ prompt: content }));
      addBlocks(event, blocks);
      for (const result of results) {
        const outcome = result.is_error ? "failed" : "succeeded";
        const call = stateOf(result.call_id, OUTCOMES[outcome] ?? outcome, outcome);
        call?.output.replaceChildren(bounded(session, result.content));
      }
    },
    turn_queued: (event) => queued.set(event.turn, event),
    turn_edited: (event) => event.prompt !== null && queued.set(event.turn, event),
    turn_started: (event) => {
      const said = event.prompt === null ? queued.get(event.turn) : event;
      queued.delete(event.turn);
      answersByJson = Boolean(event.output);
      const fork = onFork && button("Fork from here", () => onFork(event.turn), { class: "quiet" });
      add(event, el("div.turn-head", {}, el("h2", {}, `Turn ${event.turn}`), el("span.facts", {}, terms(event)), fork),
        said
          ? promptOf(said)
          : el("p.hint", {}, event.continues === null ? "Its prompt is in an earlier event." : "Goes on with an earlier turn."));
    },
    turn_steered: (event) => {
      steered.set(event.seq, event);
      add(event, el("p.note", {}, `Steered: ${textOf(event.prompt)}`), linesOf(event.blocks));
    },
    steering_entered: (event) => {
      const said = steered.get(event.steered);
      steered.delete(event.steered);
      add(event, said === undefined ? el("p.hint", {}, "The steered text is in an earlier event.") : promptOf(said));
    },
    text_delta: delta,
    reasoning_delta: delta,
    assistant_message: (event) => {
      clearLive();
      addBlocks(event, event.blocks);
    },
    tool_started: (event) => stateOf(event.call_id, "runs", "runs"),
    tool_progress: (event) => stateOf(event.call_id, `runs: ${event.text}`, "runs"),
    tool_finished: (event) => {
      const time = event.outcome === "not_run" ? "" : ` in ${number(event.duration_ms)} ms`;
      const call = stateOf(event.call_id, `${OUTCOMES[event.outcome] ?? event.outcome}${time}`, event.outcome);
      if (!call) return add(event, el("p.note", {}, `${event.name}: ${event.outcome}`));
      call.more.replaceChildren();
      const files = (event.files ?? []).map((file) => el("li", {}, el("code", {}, file.path),
        file.before === null ? " is new" : file.after_sha256 === null ? " is gone" : " was changed"));
      const error = event.error && el("p", {}, el("strong", {}, event.error.code), ` ${event.error.message}`);
      const isEmpty = event.output === "" || (event.error && event.output === event.error.message);
      return call.output.replaceChildren(...[error, !isEmpty && bounded(session, event.output),
        files.length > 0 && el("ul.files", { "aria-label": "Files" }, files)].filter(Boolean));
    },
    approval_requested: (event) => {
      const id = event.form?.call_id ?? event.call_id;
      const call = stateOf(id, "waits for you", "waiting");
      const buttons = el("div.approval", { "data-call": event.call_id }, asked(event), decide(session, event));
      if (call) call.more.replaceChildren(buttons);
      else add(event, el("section.card.waiting", { "aria-label": `Approval of ${event.name}` }, el("h3", {}, event.name), buttons));
    },
    approval_decided: (event) => {
      [...node.querySelectorAll(".approval")].filter((each) => each.dataset.call === event.call_id).forEach((each) => each.remove());
      stateOf(event.call_id, event.decision === "deny" ? `denied${event.reason ? `: ${event.reason}` : ""}` : "allowed", "decided");
    },
    call_requested: (event) => {
      stateOf(event.call_id, "waits for its caller", "waiting")?.more.replaceChildren(answer(session, event.call_id));
    },
    call_answered: (event) => stateOf(event.call_id, "answered", "decided"),
    partial_text: (event) => {
      clearLive();
      add(event, el("div.answer.cut", {}, bounded(session, event.text, markdown), el("p.hint", {}, "The answer was cut off here.")));
    },
    turn_completed: (event) => {
      const { steps, usage, cost } = event.totals;
      const why = event.stop_reason === "end_turn" ? "" : ` · ${event.stop_reason}`;
      add(event, el("p.end", {}, `${steps} ${steps === 1 ? "step" : "steps"} · ${number(usage.input_tokens)} tokens in, `
        + `${number(usage.output_tokens)} out · ${money(cost)}${why}`));
    },
    turn_failed: (event) => {
      clearLive();
      const { code: name, message } = event.error;
      add(event, el("div.failure", {}, el("strong", {}, name), el("p", {}, message),
        el("p.hint", {}, `Cost: ${money(event.totals.cost)}`),
        el("p", {}, "What to do: ", el("a", { href: `#/health?code=${encodeURIComponent(name)}` }, name))));
    },
    turn_interrupted: (event) => {
      clearLive();
      add(event, el("p.end.interrupted", {}, `Interrupted: ${event.reason} · ${money(event.totals.cost)}`));
    },
  };

  return {
    node,
    take(event) {
      if (event.type === "turn_dequeued") queued.delete(event.turn);
      const line = note(event);
      if (line) add(event, el("p.note", {}, line));
      else takes[event.type]?.(event);
    },
  };
}
