// The events as they are stored, by kind, with the cursor to read on, and the request that gets the same.

import { get } from "../api.js";
import { button, copy, count, el, oneAtATime } from "../dom.js";
import { code } from "./transcript.js";

const PAGE = 200;
const LINE_MAX = 160;

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function line(event) {
  const { v, session_id, seq, turn, time, type, ...fields } = event;
  const attributes = { "data-type": type, "data-seq": seq };
  const details = el("details", attributes, el("summary", {}, el("span.seq", {}, seq ?? "live"), " ", el("strong", {}, type), " ",
    el("span.facts", {}, JSON.stringify(fields).slice(0, LINE_MAX))));
  // A line may be long: it is written only for who opens it.
  details.addEventListener("toggle", () => details.children.length < 2 && details.append(
    el("p.facts", {}, time, turn === null ? "" : ` · turn ${turn}`), code(JSON.stringify(event, null, 2).slice(0, 200000))), { once: true });
  return details;
}

export async function show(body, { id, session, listeners, signal }) {
  const kinds = new Set();
  const kind = el("select", { "aria-label": "Kind of event" }, el("option", { value: "" }, "All kinds"));
  const cursor = el("input", { type: "number", min: "0", "aria-label": "Read events after this seq" });
  const list = el("div.events");
  const said = el("p.facts", { role: "status" });
  let page = { items: [], next_seq: 0 };
  // The newest events are followed, older ones stay.
  let isNewest = true;
  const read = (since) => get(`sessions/${id}/events`, { since_seq: Math.max(0, since), limit: PAGE }, signal);
  const isShown = (event) => !kind.value || event.type === kind.value;
  const sayCount = () => {
    said.textContent = `${count(list.children.length, "event")}; read on after ${page.next_seq} of ${session().last_seq}`;
  };
  const draw = () => {
    list.replaceChildren(...page.items.filter(isShown).map(line));
    sayCount();
  };
  const learn = (items) => items.filter(({ type }) => !kinds.has(type)).forEach(({ type }) => {
    kinds.add(type);
    kind.append(el("option", { value: type }, type));
  });
  const load = async (since) => {
    page = await read(since);
    isNewest = page.next_seq >= session().last_seq;
    cursor.value = String(Math.max(0, since));
    learn(page.items);
    draw();
  };
  const follow = oneAtATime(async () => {
    while (isNewest && page.next_seq < session().last_seq) {
      const before = page;
      const more = await read(before.next_seq);
      // Another part was chosen meanwhile.
      if (page !== before || more.items.length === 0) break;
      page = { items: [...page.items, ...more.items].slice(-PAGE), next_seq: more.next_seq };
      const [{ seq: first }] = page.items;
      if (document.activeElement !== cursor) cursor.value = String(first - 1);
      learn(more.items);
      list.append(...more.items.filter(isShown).map(line));
      while (Number(list.firstChild?.dataset.seq) < first) list.firstChild.remove();
    }
    sayCount();
  });
  const curl = () => copy(`curl -s -H "Authorization: Bearer $(meerkat token)" ${
    quoted(new URL(`v1/sessions/${id}/events?since_seq=${cursor.value}&limit=${PAGE}`, document.baseURI).href)}`);
  kind.addEventListener("change", draw);
  cursor.addEventListener("change", () => load(Number(cursor.value)));
  body.append(
    el("div.line", {}, kind, el("label", {}, "After seq ", cursor), button("First", () => load(0)),
      button("Earlier", () => load(Number(cursor.value) - PAGE)), button("Later", () => load(page.next_seq)),
      button("Newest", () => load(session().last_seq - PAGE)), button("Copy as curl", curl)),
    said, list);
  await load(session().last_seq - PAGE);
  listeners.push(follow);
}
