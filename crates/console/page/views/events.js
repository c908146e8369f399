// The events as they are stored, by kind, with the cursor to read on, and the request that gets the same.

import { get } from "../api.js";
import { button, copy, count, el } from "../dom.js";
import { code } from "./transcript.js";

const PAGE = 200;
const LINE_MAX = 160;

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export async function show(body, { id, session, signal }) {
  const kinds = new Set();
  const kind = el("select", { "aria-label": "Kind of event" }, el("option", { value: "" }, "All kinds"));
  const cursor = el("input", { type: "number", min: "0", "aria-label": "Read events after this seq" });
  const list = el("div.events");
  const said = el("p.facts", { role: "status" });
  let page = { items: [], next_seq: 0 };
  const draw = () => {
    const shown = page.items.filter((event) => !kind.value || event.type === kind.value);
    said.textContent = `${count(shown.length, "event")}; read on after ${page.next_seq} of ${session.last_seq}`;
    list.replaceChildren(...shown.map((event) => {
      const { v, session_id, seq, turn, time, type, ...fields } = event;
      const details = el("details", { "data-type": type }, el("summary", {}, el("span.seq", {}, seq ?? "live"), " ", el("strong", {}, type), " ",
        el("span.facts", {}, JSON.stringify(fields).slice(0, LINE_MAX))));
      // A line may be long: it is written only for who opens it.
      details.addEventListener("toggle", () => details.children.length < 2 && details.append(
        el("p.facts", {}, time, turn === null ? "" : ` · turn ${turn}`), code(JSON.stringify(event, null, 2).slice(0, 200000))), { once: true });
      return details;
    }));
  };
  const load = async (since) => {
    page = await get(`sessions/${id}/events`, { since_seq: Math.max(0, since), limit: PAGE }, signal);
    cursor.value = String(Math.max(0, since));
    page.items.filter(({ type }) => !kinds.has(type)).forEach(({ type }) => {
      kinds.add(type);
      kind.append(el("option", { value: type }, type));
    });
    draw();
  };
  const curl = () => copy(`curl -s -H "Authorization: Bearer $(meerkat token)" ${
    quoted(new URL(`v1/sessions/${id}/events?since_seq=${cursor.value}&limit=${PAGE}`, document.baseURI).href)}`);
  kind.addEventListener("change", draw);
  cursor.addEventListener("change", () => load(Number(cursor.value)));
  body.append(
    el("div.line", {}, kind, el("label", {}, "After seq ", cursor), button("First", () => load(0)),
      button("Earlier", () => load(Number(cursor.value) - PAGE)), button("Later", () => load(page.next_seq)),
      button("Newest", () => load(session.last_seq - PAGE)), button("Copy as curl", curl)),
    said, list);
  await load(session.last_seq - PAGE);
}
