// What the events of a session say about its steps and turns. Reads the newest part of a journal, in pages.

import { get } from "./api.js";

const PAGE = 1000;
export const EVENTS_READ = 4000;

/** Events from behind `since` up to `to`, at most EVENTS_READ of them. */
export async function events(session, since, to, signal) {
  const found = [];
  let after = since;
  while (after < to && found.length < EVENTS_READ) {
    const page = await get(`sessions/${session}/events`, { since_seq: after, limit: PAGE }, signal);
    found.push(...page.items.filter((event) => event.seq !== undefined && event.seq <= to));
    if (page.items.length === 0 || page.next_seq <= after) break;
    after = page.next_seq;
  }
  return found;
}

export const PARTS = [
  ["system", "System and tools", (context) => context.system + context.tools],
  ["pinned", "Reminders and pins", (context) => context.reminders + context.pins],
  ["history", "History", (context) => context.history],
  ["results", "Tool results", (context) => context.tool_results],
];

/** Steps with the window that each model call had, and the compactions between them, in order. */
export function steps(all) {
  const out = [];
  for (const event of all) {
    if (event.type === "assistant_message") out.push({ kind: "step", event });
    if (event.type === "context_rebuilt") out.push({ kind: "compaction", event, isUndone: false });
    if (event.type === "compaction_failed") out.push({ kind: "failed", event });
    if (event.type === "compaction_undone") {
      out.filter((each) => each.event.compaction === event.compaction).forEach((each) => (each.isUndone = true));
      out.push({ kind: "undone", event });
    }
  }
  return out;
}

const ENDS = ["turn_completed", "turn_failed", "turn_interrupted"];

/** Turns with their tokens, those that have ended and the one that runs. */
export function turns(all) {
  const out = new Map();
  for (const event of all.filter(({ turn }) => turn !== null)) {
    const turn = out.get(event.turn) ?? { turn: event.turn, input: 0, cached: 0, output: 0, steps: 0, end: null };
    out.set(event.turn, turn);
    const used = ENDS.includes(event.type) ? event.totals.usage : null;
    if (event.type === "turn_started" || event.type === "turn_queued") {
      Object.assign(turn, { budgets: event.budgets, prompt: event.prompt ?? turn.prompt, seq: event.seq });
    } else if (event.type === "assistant_message") {
      turn.steps += 1;
      turn.input += event.usage.input_tokens;
      turn.cached += event.usage.cached_tokens;
      turn.output += event.usage.output_tokens;
    } else if (used) {
      Object.assign(turn, { input: used.input_tokens, cached: used.cached_tokens, output: used.output_tokens });
      turn.end = event.type.slice("turn_".length);
    }
  }
  return [...out.values()];
}
