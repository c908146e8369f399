// What filled the window at each step, and what each compaction took out. A bar is a model call; a mark is a compaction.

import { get, post, remove } from "../api.js";
import { ask, button, command, el, empty, number, say, svg } from "../dom.js";
import { EVENTS_READ, PARTS, events, steps } from "../steps.js";
import { bounded } from "./transcript.js";

const BARS_MAX = 80;
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
    ["Cost of the summary", `${number(receipt.usage.input_tokens)} tokens in, ${number(receipt.usage.output_tokens)} out`],
  ];
  return el("table", {}, el("tbody", {}, rows.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value)))));
}

/** The chart: bars of steps, and a line for each compaction between them. */
function chart(shown, choose) {
  const width = WIDTH / Math.max(shown.length, 12);
  const most = Math.max(1, ...shown.map(({ kind, event }) => {
    if (kind === "step") return event.context ? sum(event.context) : event.usage.input_tokens;
    return kind === "compaction" ? event.receipt.tokens_before : 0;
  }));
  const scale = (tokens) => (tokens / most) * (HEIGHT - 24);
  const bars = shown.map((each, index) => {
    const { kind, event } = each;
    const x = index * width;
    if (kind !== "step") {
      const name = { compaction: "compacted", undone: "undone", failed: "not compacted" }[kind];
      const act = () => choose(each);
      return svg("g.mark", { tabindex: "0", role: "button", "aria-label": `Event ${event.seq}: ${name}`, onclick: act,
        onkeydown: (pressed) => ["Enter", " "].includes(pressed.key) && (pressed.preventDefault(), act()) },
        svg("rect.hit", { x, y: 0, width, height: HEIGHT }),
        svg("line", { class: kind, x1: x + width / 2, x2: x + width / 2, y1: 18, y2: HEIGHT }),
        svg("circle", { class: kind, cx: x + width / 2, cy: 10, r: 6 }));
    }
    let y = HEIGHT;
    const parts = event.context ? PARTS : [["history", "All", () => event.usage.input_tokens]];
    return svg("g", {}, parts.map(([part, , tokens]) => {
      const height = scale(tokens(event.context));
      y -= height;
      return svg("rect", { class: part, x: x + width * 0.1, y, width: width * 0.8, height });
    }));
  });
  return svg("svg.chart", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": `Tokens in the window, at most ${number(most)}` }, bars);
}

function table(shown) {
  const head = ["Turn", "Step", ...PARTS.map(([, name]) => name), "Free"];
  const rows = shown.filter(({ kind, event }) => kind === "step" && event.context).map(({ event }) => el("tr", {},
    [event.turn, event.step, ...PARTS.map(([, , tokens]) => number(tokens(event.context))),
      event.context.free === null ? "unknown" : number(event.context.free)].map((value) => el("td", {}, value))));
  return el("details", {}, el("summary", {}, "As a table"), el("div.wide", { tabindex: "0", role: "region", "aria-label": "Table of steps" },
    el("table", {}, el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, rows))));
}

export async function show(body, { id, session, refresh, signal }) {
  const place = el("div");
  const panel = el("div.panel", { "aria-live": "polite" });
  async function draw() {
    const now = await get(`sessions/${id}`, {}, signal);
    const all = steps(await events(id, Math.max(0, now.last_seq - EVENTS_READ), now.last_seq, signal));
    const shown = all.slice(-BARS_MAX);
    if (!shown.some(({ kind }) => kind === "step")) {
      return place.replaceChildren(empty("No model call yet", el("p", {}, "Each call of a model is a bar here. Run a turn, such as"),
        command(`meerkat resume ${id.slice(-8)} "hello"`)));
    }
    const window = now.context.window_tokens;
    const last = shown.findLast(({ kind, event }) => kind === "step" && event.context)?.event.context;
    const older = all.length > shown.length || now.last_seq > EVENTS_READ;
    return place.replaceChildren(
      el("p", {}, `The context has ${number(now.context.estimated_tokens)} tokens`, window > 0 && ` of a window of ${number(window)}`,
        `, in ${number(now.context.messages)} messages.`, older && " Older steps are in Events."),
      chart(shown, choose),
      el("ul.legend", {}, PARTS.map(([part, name, tokens]) => el("li", {}, el(`span.key.${part}`), name, last && `: ${number(tokens(last))}`)),
        last && el("li", {}, el("span.key.free"), `Free: ${last.free === null ? "unknown" : number(last.free)}`)),
      table(shown),
    );
  }
  function choose({ kind, event, isUndone }) {
    if (kind === "failed") return panel.replaceChildren(el("div.failure", {}, el("strong", {}, event.code), el("p", {}, event.message)));
    if (kind === "undone") return panel.replaceChildren(el("p", {}, `Compaction ${event.compaction} was undone.`));
    const undo = () => remove(`sessions/${id}/compactions/${event.compaction}`).then(async () => {
      say("The compaction is undone.");
      panel.replaceChildren();
      await Promise.all([draw(), refresh()]);
    });
    return panel.replaceChildren(
      el("h2", {}, `Compaction ${event.compaction}`), receiptOf(event.receipt),
      event.summary !== null && el("details", { open: true }, el("summary", {}, "Summary"), bounded(id, event.summary)) || "",
      isUndone ? el("p.hint", {}, "It was undone.") : button("Undo this compaction", undo, { class: "danger" }));
  }
  async function compact() {
    const preview = await post(`sessions/${id}/compactions`, {}, { params: { preview: true } });
    if (!(await ask("Compact the context", receiptOf(preview), [["Compact", true, "main"]]))) return;
    await post(`sessions/${id}/compactions`);
    say("The context is compacted.");
    await Promise.all([draw(), refresh()]);
  }
  body.append(el("div.actions", {}, button("Compact …", compact, { class: session.turn_count > 0 ? "main" : "plain" }),
    button("Refresh", draw)), place, panel);
  await draw();
}
