// What each turn cost: input, how much of it was cached, and output; a budget is a line.

import { el, empty, number } from "../dom.js";
import { EVENTS_READ, events, turns } from "../steps.js";

const TURNS_MAX = 200;

function bar(turn, most) {
  const share = (tokens) => `${(tokens / most) * 100}%`;
  const parts = [["cached", turn.cached], ["input", turn.input - turn.cached], ["output", turn.output]];
  const out = el("div.bar", { "aria-hidden": "true" }, parts.map(([kind]) => el(`span.${kind}`)));
  parts.forEach(([, tokens], index) => (out.children[index].style.width = share(tokens)));
  if (turn.budgets?.tokens) {
    const line = el("span.budget", { title: `Budget: ${number(turn.budgets.tokens)} tokens` });
    line.style.left = share(Math.min(turn.budgets.tokens, most));
    out.append(line);
  }
  return out;
}

export async function show(body, { id, session, signal }) {
  const found = await events(id, Math.max(0, session.last_seq - EVENTS_READ), session.last_seq, signal);
  const all = turns(found).slice(-TURNS_MAX).reverse();
  if (all.length === 0) return body.append(empty("No turn yet", el("p", {}, "Each turn's tokens appear here.")));
  const most = Math.max(1, ...all.map((turn) => turn.input + turn.output));
  const { input_tokens: input, cached_tokens: cached, output_tokens: output } = session.usage;
  const head = ["Turn", "Share", "Input", "Cached", "Output", "Steps", "End"];
  return body.append(
    el("p", {}, `The session: ${number(input)} tokens in, ${number(cached)} of them cached, ${number(output)} out.`,
      session.last_seq > EVENTS_READ && " Below are the newest turns."),
    el("ul.legend", {}, [["cached", "Cached input"], ["input", "Other input"], ["output", "Output"], ["budget", "Budget"]].map(([kind, text]) =>
      el("li", {}, el(`span.key.${kind}`), text))),
    el("div.wide", { tabindex: "0", role: "region", "aria-label": "Tokens by turn" }, el("table.turns", {},
      el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, all.map((turn) => el("tr", {},
        el("th", { scope: "row" }, turn.seq ? el("a", { href: `#/sessions/${id}?at=${turn.seq}` }, turn.turn) : turn.turn),
        el("td.share", {}, bar(turn, most)), [turn.input, turn.cached, turn.output, turn.steps].map((value) => el("td", {}, number(value))),
        el("td", {}, turn.end ?? "runs")))))));
}
