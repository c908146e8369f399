// What filled the window at each step, and what each compaction took out. A bar is a model call; a mark is a compaction.

import { get, post, remove } from "../api.js";
import { ask, button, command, complain, el, empty, failed, money, number, oneAtATime, say, svg } from "../dom.js";
import { PARTS } from "../steps.js";
import { bounded } from "./transcript.js";

const BARS_MAX = 80;
/** Compactions are undone behind the bars, so a few more steps are read. */
const STEPS_READ = 100;

/** The newest steps, the oldest first; a compaction that was undone says so. */
async function newest(id, signal) {
  const { items, next_cursor: older } = await get(`sessions/${id}/steps`, { limit: STEPS_READ }, signal);
  const undone = new Set(items.filter(({ kind }) => kind === "compaction_undone").map(({ compaction }) => compaction));
  items.forEach((step) => (step.isUndone = step.kind === "compaction" && undone.has(step.compaction)));
  return { shown: items.reverse().slice(-BARS_MAX), hasOlder: older !== null || items.length > BARS_MAX };
}
const [WIDTH, HEIGHT] = [800, 220];

const sum = (context) => PARTS.reduce((total, [, , tokens]) => total + tokens(context), 0);

function receiptOf(receipt) {
  const rows = [
    ["How", receipt.mode],
    ["Messages kept", number(receipt.retained)],
    ["Messages that left", number(receipt.discarded)],
    ["Tool results masked", number(receipt.masked)],
    ["Reminders and pins kept", number(receipt.reminders + receipt.pins)],
    ["Tokens before", number(receipt.tokens_before)],
    ["Tokens after", number(receipt.tokens_after)],
    ["Cost of the summary", `${number(receipt.usage.input_tokens)} tokens in, ${number(receipt.usage.output_tokens)} out`
      + (receipt.cost ? `, ${money(receipt.cost)}` : "")],
  ];
  return el("table", {}, el("tbody", {}, rows.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value)))));
}

/** The chart: bars of steps, and a line for each compaction between them. */
function chart(shown, choose) {
  const width = WIDTH / Math.max(shown.length, 12);
  const most = Math.max(1, ...shown.map(({ context, usage, receipt }) =>
    (context ? sum(context) : usage?.input_tokens ?? receipt?.tokens_before ?? 0)));
  const scale = (tokens) => (tokens / most) * (HEIGHT - 24);
  const bars = shown.map((step, index) => {
    const x = index * width;
    const { kind } = step;
    if (kind !== "model_call") {
      const name = { compaction: "compacted", compaction_undone: "undone", compaction_failed: "not compacted" }[kind];
      const act = () => choose(step);
      return svg("g.mark", { tabindex: "0", role: "button", "aria-label": `Event ${step.seq}: ${name}`, onclick: act,
        onkeydown: (pressed) => ["Enter", " "].includes(pressed.key) && (pressed.preventDefault(), act()) },
        svg("rect.hit", { x, y: 0, width, height: HEIGHT }),
        svg("line", { class: kind, x1: x + width / 2, x2: x + width / 2, y1: 18, y2: HEIGHT }),
        svg("circle", { class: step.isUndone ? "undone" : kind, cx: x + width / 2, cy: 10, r: 6 }));
    }
    let y = HEIGHT;
    const parts = step.context ? PARTS : [["history", "All", () => step.usage.input_tokens]];
    return svg("g", {}, parts.map(([part, , tokens]) => {
      const height = scale(tokens(step.context));
      y -= height;
      return svg("rect", { class: part, x: x + width * 0.1, y, width: width * 0.8, height });
    }));
  });
  return svg("svg.chart", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": `Tokens in the window, at most ${number(most)}` }, bars);
}

function table(shown, open) {
  const head = ["Turn", "Step", ...PARTS.map(([, name]) => name), "Free"];
  const rows = shown.filter(({ context }) => context).map(({ turn, step, context }) => el("tr", {},
    [turn, step, ...PARTS.map(([, , tokens]) => number(tokens(context))), context.free === null ? "unknown" : number(context.free)].map((value) => el("td", {}, value))));
  return el("details", { open }, el("summary", {}, "As a table"), el("div.wide", { tabindex: "0", role: "region", "aria-label": "Table of steps" },
    el("table", {}, el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, rows))));
}

export async function show(body, { id, session, refresh, listeners, signal }) {
  const place = el("div");
  const panel = el("div.panel", { "aria-live": "polite" });
  const draw = oneAtATime(async () => {
    const { shown, hasOlder } = await newest(id, signal);
    if (!shown.some(({ kind }) => kind === "model_call")) {
      return place.replaceChildren(empty("No model call yet", el("p", {}, "Each call of a model is a bar here. Run a turn, such as"),
        command(`meerkat resume ${id.slice(-8)} "hello"`)));
    }
    const { context: now } = session();
    const window = now.window_tokens;
    const isOpen = place.querySelector("details")?.open;
    const focused = place.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    const last = shown.findLast(({ context }) => context)?.context;
    place.replaceChildren(
      el("p", {}, `The context has ${number(now.estimated_tokens)} tokens`, window > 0 && ` of a window of ${number(window)}`,
        `, in ${number(now.messages)} messages.`, hasOlder && " Older steps are in Events."),
      chart(shown, (step) => choose(step).catch(complain)),
      last && el("p.hint", {}, "At the last model call:") || "",
      el("ul.legend", {}, PARTS.map(([part, name, tokens]) => el("li", {}, el(`span.key.${part}`), name, last && `: ${number(tokens(last))}`)),
        last && el("li", {}, el("span.key.free"), `Free: ${last.free === null ? "unknown" : number(last.free)}`)),
      table(shown, isOpen),
    );
    if (focused) [...place.querySelectorAll("[aria-label]")].find((each) => each.getAttribute("aria-label") === focused)?.focus();
    return undefined;
  });
  async function choose({ kind, seq, compaction, receipt, error, isUndone }) {
    if (kind === "compaction_failed") return panel.replaceChildren(failed(error));
    if (kind === "compaction_undone") return panel.replaceChildren(el("p", {}, `Compaction ${compaction} was undone.`));
    const [event] = (await get(`sessions/${id}/events`, { since_seq: seq - 1, limit: 1 }, signal)).items;
    const undo = () => remove(`sessions/${id}/compactions/${compaction}`).then(async () => {
      say("The compaction is undone.");
      panel.replaceChildren();
      await refresh();
    });
    return panel.replaceChildren(
      el("h2", {}, `Compaction ${compaction}`), receiptOf(receipt),
      event?.summary && el("details", { open: true }, el("summary", {}, "Summary"), bounded(id, event.summary)) || "",
      isUndone ? el("p.hint", {}, "It was undone.") : button("Undo this compaction", undo, { class: "danger" }));
  }
  async function compact() {
    const preview = await post(`sessions/${id}/compactions`, {}, { params: { preview: true } });
    if (!(await ask("Compact the context", receiptOf(preview), [["Compact", true, "main"]]))) return;
    await post(`sessions/${id}/compactions`);
    say("The context is compacted.");
    await refresh();
  }
  body.append(el("div.actions", {}, button("Compact …", compact, { class: session().turn_count > 0 ? "main" : "plain" })),
  place, panel);
  listeners.push(draw);
  await draw();
}
