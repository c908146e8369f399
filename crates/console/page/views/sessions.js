// All sessions: search as you type, filters, and changes without a reload.

import { post } from "../api.js";
import { ago, button, command, count, el, empty, every, failed, money, number, short, state, stateOf } from "../dom.js";
import { list as followed, onList, sessions } from "../follow.js";
import { rows } from "../rows.js";

const labels = (session) => Object.entries(session.labels).map(([name, value]) => (value ? `${name}: ${value}` : name));
const wordsOf = (session) =>
  [session.title, session.session_id, session.model, stateOf(session), session.last_error, ...labels(session)].join("\n").toLowerCase();

/** How long ago a session may have changed, in hours. */
const WITHIN = [["", "At any time"], ["1", "In the last hour"], ["24", "In the last day"], ["168", "In the last 7 days"], ["720", "In the last 30 days"]];

/** The address of the list with these filters. */
const address = (filters) => `#/sessions?${new URLSearchParams(Object.entries(filters).filter(([, value]) => value))}`;

function row(session, filters) {
  const { input_tokens: input, output_tokens: output } = session.usage;
  return el(
    "div.session", { title: `Changed ${new Date(session.updated_at).toLocaleString()}` },
    el("a.title", { href: `#/sessions/${session.session_id}` }, session.title || "Untitled"),
    state(session),
    el("span.labels", {}, labels(session).slice(0, 4).map((label) => 
      el("a.label", { href: address({ ...filters, label }), title: `Only sessions with the label ${label}` }, label))),
    el("span.facts", {}, `${short(session.session_id)} · ${count(session.turn_count, "turn")} · ${number(input + output)} tokens · ${money(session.cost)} · `,
      ago(session.updated_at)),
  );
}

async function create() {
  const { session_id: id } = await post("sessions", {});
  location.hash = `#/sessions/${id}`;
}

const newestFirst = (a, b) => (a.updated_at < b.updated_at ? 1 : -1);

export async function show(view, { params, signal }) {
  const search = el("input", { type: "search", "aria-label": "Search", placeholder: "Search titles, labels, models, ids, errors" });
  const which = el("select", { "aria-label": "Which sessions" },
    [["all", "All"], ["waiting", "Waiting for you"], ["running", "Running"], ["idle", "Idle"], ["failed", "Failed"], ["archived", "Archived"]]
      .map(([value, text]) => el("option", { value }, text)));
  const within = el("select", { "aria-label": "When they changed" }, WITHIN.map(([value, text]) => el("option", { value }, text)));
  const label = params.get("label");
  const filters = () => ({ q: search.value, state: which.value, within: within.value, label });
  search.value = params.get("q") ?? "";
  which.value = params.get("state") ?? "all";
  within.value = params.get("within") ?? "";
  const chosen = el("a.label", { "aria-label": `Label ${label}: show sessions with any label` }, label, " ×");
  const said = el("a", {}, "Search what was said");
  const counted = el("span.count-line", { role: "status" });
  const list = rows("Sessions", 4.75, (session) => row(session, filters()));
  const none = el("div");
  view.append(
    el("div.head", {}, el("h1", {}, "Sessions"), button("New session", create, { class: "main" })),
    el("div.line", { role: "search" }, search, which, within, label && chosen, said, counted), none, list.node,
  );
  const draw = () => {
    const isArchived = which.value === "archived";
    const isAnyState = ["all", "archived"].includes(which.value);
    const since = within.value ? new Date(Date.now() - Number(within.value) * 3_600_000).toISOString() : "";
    chosen.href = address({ ...filters(), label: null });
    said.href = `#/memory?${new URLSearchParams({ q: search.value })}`;
    said.hidden = search.value.trim() === "";
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [...sessions.values()].filter((session) => session.archived === isArchived
      && (isAnyState || stateOf(session) === which.value)
      && session.updated_at >= since
      && (!label || labels(session).includes(label))
      && (words.length === 0 || words.every((word) => wordsOf(session).includes(word)))).sort(newestFirst);
    const lost = followed.state === "live" ? "" : " · reconnecting …";
    counted.textContent = `${number(found.length)} of ${number(sessions.size)}${followed.isCut ? ", the most that is listed" : ""}${lost}`;
    list.node.hidden = found.length === 0;
    if (followed.failure) none.replaceChildren(failed(followed.failure));
    else if (found.length > 0) none.replaceChildren();
    else if (!followed.isCurrent) none.replaceChildren(el("p.hint", {}, "The list is read …"));
    else if (sessions.size > 0) none.replaceChildren(empty("No session is like that", el("p", {}, "Search for less, or choose All and any time.")));
    else none.replaceChildren(empty("No sessions yet", el("p", {}, "Make one here, or run a turn:"), command('meerkat run "hello"')));
    list.show(found);
  };
  let isDue = false;
  const drawSoon = () => {
    if (!isDue) requestAnimationFrame(() => ((isDue = false), !signal.aborted && draw()));
    isDue = true;
  };
  const change = () => {
    history.replaceState(null, "", address(filters()));
    draw();
  };
  search.addEventListener("input", change);
  which.addEventListener("change", change);
  within.addEventListener("change", change);
  onList(signal, drawSoon);
  // How long ago something was changes by itself.
  every(30, signal, async () => drawSoon());
  draw();
}
