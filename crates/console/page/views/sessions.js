// All sessions: search as you type, filters, and changes without a reload.

import { get, post } from "../api.js";
import { ago, button, command, complain, count, el, empty, every, number, short, state } from "../dom.js";
import { rows } from "../rows.js";

const PAGE = 1000;
const SESSIONS_MAX = 20000;

const labels = (session) => Object.entries(session.labels).map(([name, value]) => (value ? `${name}: ${value}` : name));
const wordsOf = (session) => [session.title, session.session_id, session.model, ...labels(session)].join("\n").toLowerCase();

function row(session) {
  const { input_tokens: input, output_tokens: output } = session.usage;
  return el(
    "a.session", { href: `#/sessions/${session.session_id}` },
    el("span.title", {}, session.title || "Untitled"),
    state(session.state),
    el("span.labels", {}, labels(session).slice(0, 4).map((label) => el("span.label", {}, label))),
    el("span.facts", {}, `${short(session.session_id)} · ${count(session.turn_count, "turn")} · ${number(input + output)} tokens · `,
      ago(session.updated_at)),
  );
}

async function create() {
  const { session_id: id } = await post("sessions", {});
  location.hash = `#/sessions/${id}`;
}

export async function show(view, { params, signal }) {
  const known = new Map();
  const search = el("input", { type: "search", "aria-label": "Search", placeholder: "Search titles, labels, models, ids" });
  const which = el("select", { "aria-label": "Which sessions" },
    [["all", "All"], ["waiting", "Waiting for you"], ["running", "Running"], ["idle", "Idle"], ["archived", "Archived"]]
      .map(([value, text]) => el("option", { value }, text)));
  search.value = params.get("q") ?? "";
  which.value = params.get("state") ?? "all";
  const count = el("span.count-line", { role: "status" });
  const list = rows("Sessions", 76, row);
  const none = el("div");
  view.append(
    el("div.head", {}, el("h1", {}, "Sessions"), button("New session", create, { class: "main" })),
    el("div.line", { role: "search" }, search, which, count), none, list.node,
  );
  const isShown = (session) => {
    const isArchived = which.value === "archived";
    const isState = ["all", "archived"].includes(which.value) || session.state === which.value;
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    return session.archived === isArchived && isState && words.every((word) => wordsOf(session).includes(word));
  };
  const draw = () => {
    const found = [...known.values()].filter(isShown).sort((a, b) => (a.updated_at < b.updated_at ? 1 : -1));
    count.textContent = `${number(found.length)} of ${number(known.size)}`;
    list.node.hidden = found.length === 0;
    none.replaceChildren(...(found.length > 0 ? [] : [known.size === 0
      ? empty("No sessions yet", el("p", {}, "Make one here, or run a turn:"), command('meerkat run "hello"'))
      : empty("No session is like that", el("p", {}, "Search for less, or choose All."))]));
    list.show(found);
  };
  const take = (items) => items.forEach((session) => known.set(session.session_id, session));
  const load = async (filter) => {
    let cursor;
    do {
      const page = await get("sessions", { ...filter, limit: PAGE, cursor }, signal);
      take(page.items);
      cursor = page.next_cursor;
      draw();
    } while (cursor && known.size < SESSIONS_MAX);
  };
  const change = () => {
    const query = new URLSearchParams({ q: search.value, state: which.value });
    history.replaceState(null, "", `#/sessions?${query}`);
    draw();
  };
  search.addEventListener("input", change);
  which.addEventListener("change", change);
  await load({});
  await load({ archived: true });
  every(2, signal, async () => {
    const newest = [...known.values()].reduce((last, { updated_at: at }) => (at > last ? at : last), "");
    // Times have milliseconds: what changed in the same one is asked for again.
    const after = newest && new Date(Date.parse(newest) - 1).toISOString();
    const changed = await Promise.all([{}, { archived: true }].map((filter) =>
      get("sessions", { ...filter, updated_after: after, limit: PAGE }, signal)));
    const before = new Map(known);
    changed.forEach((page) => take(page.items));
    const isNew = ({ session_id: id, last_seq: seq, state: now }) =>
      before.get(id)?.last_seq !== seq || before.get(id)?.state !== now;
    if (changed.some((page) => page.items.some(isNew))) draw();
  });
  if (known.size >= SESSIONS_MAX) complain(new Error(`Only ${number(SESSIONS_MAX)} sessions are listed.`));
}
