// What was said in all sessions: search, open at its place, and forget.

import { get, post } from "../api.js";
import { ago, ask, button, count, el, empty, say, short } from "../dom.js";

const HITS = 30;
const TEXT_MAX = 1200;

/** A text with the words of the query marked. */
function marked(text, query) {
  const words = query.split(/\s+/).filter((word) => word.length > 1).map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  if (words.length === 0) return text;
  const parts = text.split(new RegExp(`(${words.join("|")})`, "gi"));
  return parts.map((part, index) => (index % 2 === 1 ? el("mark", {}, part) : part));
}

export async function show(view, { params, signal }) {
  const query = el("input", { type: "search", "aria-label": "Search memory", placeholder: "What was said about …" });
  query.value = params.get("q") ?? "";
  const list = el("div.cards");
  const said = el("p.facts", { role: "status" });
  let latest = 0;
  async function forget(hit) {
    const range = { session_id: hit.session_id, from_seq: hit.from_seq, to_seq: hit.to_seq };
    const text = el("div", {}, el("p", {}, "Memory forgets what these events say. The session's journal keeps them."),
      el("pre", { tabindex: "0" }, hit.text.slice(0, TEXT_MAX)));
    if (!(await ask(`Forget events ${hit.from_seq} to ${hit.to_seq}`, text, [["Forget", true, "danger"]]))) return;
    const { forgotten } = await post("memory/forget", range);
    say(`Memory has forgotten ${count(forgotten, "piece")}.`);
    await search();
  }
  async function search() {
    const text = query.value.trim();
    const own = ++latest;
    history.replaceState(null, "", `#/memory?${new URLSearchParams({ q: text })}`);
    if (text === "") {
      said.textContent = "";
      return list.replaceChildren(empty("Search what was said", el("p", {}, "Words or a question; the newest and the best matches of all sessions appear here.")));
    }
    const { items } = await get("memory/search", { query: text, limit: HITS }, signal);
    if (own !== latest) return null;
    said.textContent = `${items.length} found`;
    return list.replaceChildren(...items.map((hit) => el("section.card.hit", { "aria-label": `Hit in session ${short(hit.session_id)}` },
      el("p.facts", {}, `${hit.role} · session ${short(hit.session_id)} · `, ago(hit.time)),
      el("p.text", {}, marked(hit.text.slice(0, TEXT_MAX), text)),
      el("div.actions", {}, el("a.button", { href: `#/sessions/${hit.session_id}?at=${hit.from_seq}` }, "Open"),
        button("Forget …", () => forget(hit), { class: "quiet" })))),
    ...(items.length > 0 ? [] : [empty("Nothing found", el("p", {}, "Try other words. Memory has what was said since it was turned on."))]));
  }
  let timer = null;
  query.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => search().catch((failure) => (said.textContent = failure.message)), 200);
  });
  view.append(el("div.head", {}, el("h1", {}, "Memory")), el("div.line", { role: "search" }, query), said, list);
  await search();
}
