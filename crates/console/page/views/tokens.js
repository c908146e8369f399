// What each turn cost: input, how much of it was cached or written to the cache, and output; a budget is a line.

import { get } from "../api.js";
import { el, empty, money, number, oneAtATime } from "../dom.js";

const TURNS_MAX = 200;

function bar(turn, most) {
  const share = (tokens) => `${(tokens / most) * 100}%`;
  const { input_tokens: input, cached_tokens: cached, cache_write_tokens: written = 0, output_tokens: output } = turn.usage;
  const parts = [["cached", cached], ["written", written], ["input", input - cached - written], ["output", output]];
  const out = el("div.bar", { "aria-hidden": "true" }, parts.map(([kind]) => el(`span.${kind}`)));
  parts.forEach(([, tokens], index) => (out.children[index].style.width = share(Math.max(0, tokens))));
  if (turn.budgets.tokens) {
    const line = el("span.budget", { title: `Budget: ${number(turn.budgets.tokens)} tokens` });
    line.style.left = share(Math.min(turn.budgets.tokens, most));
    out.append(line);
  }
  return out;
}

export async function show(body, { id, session, listeners, signal }) {
  const draw = oneAtATime(async () => body.replaceChildren(...await parts(id, session, signal)));
  listeners.push(draw);
  await draw();
}

async function parts(id, session, signal) {
  const { items: all, next_cursor: older } = await get(`sessions/${id}/turns`, { limit: TURNS_MAX }, signal);
  if (all.length === 0) return [empty("No turn yet", el("p", {}, "Each turn's tokens appear here."))];
  const most = Math.max(1, ...all.map(({ usage }) => usage.input_tokens + usage.output_tokens));
  const { input_tokens: input, cached_tokens: cached, cache_write_tokens: written = 0, output_tokens: output, reasoning_tokens: reasoning = 0 } = session().usage;
  const head = ["Turn", "Share", "Input", "Cached", "Written to cache", "Output", "Reasoning", "Cost", "Steps", "End"];
  return [
    el("p", {}, `The session: ${number(input)} tokens in, ${number(cached)} of them cached${written ? `, ${number(written)} written to the cache` : ""}; `
      + `${number(output)} out${reasoning ? `, ${number(reasoning)} of them reasoning` : ""}. Cost: ${money(session().cost)}.`,
      older && " Below are the newest turns."),
    el("ul.legend", {}, [["cached", "Cached input"], ["written", "Written to the cache"], ["input", "Other input"], ["output", "Output"], ["budget", "Budget"]].map(([kind, text]) =>
      el("li", {}, el(`span.key.${kind}`), text))),
    el("div.wide", { tabindex: "0", role: "region", "aria-label": "Tokens by turn" }, el("table.turns", {},
      el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, all.map((turn) => el("tr", {},
        el("th", { scope: "row" }, el("a", { href: `#/sessions/${id}?at=${turn.seq}` }, turn.turn)),
        el("td.share", {}, bar(turn, most)), [turn.usage.input_tokens, turn.usage.cached_tokens, turn.usage.cache_write_tokens ?? 0, turn.usage.output_tokens,
          turn.usage.reasoning_tokens ?? 0].map((value) => el("td", {}, number(value))),
        el("td", {}, money(turn.cost), turn.budgets.cost && ` of ${money(turn.budgets.cost)}`), el("td", {}, number(turn.steps)),
        el("td", {}, turn.status ?? "runs"))))))];
}
