// Whether the server is well: readiness, readers and how far behind they are, the doctor's findings, and what error codes mean.

import { get, ready } from "../api.js";
import { button, count, el, every, number, short } from "../dom.js";
import { markdown } from "../markdown.js";

const finding = ({ severity, session_id: id, what, remedy }) => el(`section.card.finding.${severity === "error" ? "failed" : "waiting"}`, {},
  el("p", {}, el("strong", {}, severity), " · ", id && [el("a", { href: `#/sessions/${id}` }, `session ${short(id)}`), ": "], what), markdown(remedy));

/** The examination of the data directory, which a person begins: it reads every journal. */
function doctor(signal) {
  const found = el("div.cards", { role: "status" },
    el("p.hint", {}, "Reads every journal and repairs nothing. With many sessions it takes a while; it ends when you leave this view."));
  const examine = button("Examine the data directory", async () => {
    found.replaceChildren(el("p.hint", {}, "Examining …"));
    const { sessions, records, findings } = await get("diagnosis", {}, signal).catch((failure) => {
      found.replaceChildren();
      throw failure;
    });
    const wrong = findings.length === 0 ? "nothing is wrong" : `${number(findings.length)} found`;
    found.replaceChildren(el("p", {}, `${count(sessions, "session")} with ${count(records, "record")} were read: ${wrong}.`), ...findings.map(finding));
  });
  return [el("p", {}, examine), found];
}

/** A code and, once it is opened, its page. */
function explained(row, isOpen) {
  const page = el("div");
  const read = async () => {
    const { items } = await get("errors", { code: row.code });
    // The page's own heading is the code.
    page.replaceChildren(markdown(items[0].page.replace(/^#.*\n+/, "")));
  };
  const details = el("details", { open: isOpen }, el("summary", {}, el("strong", {}, row.code), " ", row.message),
    el("p.facts", {}, `HTTP ${row.http_status} · exit code ${row.exit_code} · `, row.retryable ? "the same request can succeed later" : "the same request fails again"), page);
  details.addEventListener("toggle", () => details.open && !page.firstChild && read());
  return details;
}

export async function show(view, { params, signal }) {
  const [capabilities, errors] = await Promise.all([get("capabilities", {}, signal), get("errors", {}, signal)]);
  const facts = el("div.cards");
  const readers = el("div");
  const draw = async () => {
    const [{ state, code }, list] = await Promise.all([ready(), get("readers", {}, signal).catch(() => ({ items: [] }))]);
    const has = (name) => (capabilities[name] ? "yes" : "not in this build");
    const why = code && el("a", { href: `#/health?code=${code}` }, code);
    const rows = [["State", state ?? why], ["Disk", code === "STORE_FULL" ? "full: no new turn is taken" : "has room"], ["Version", capabilities.version], ["Build", capabilities.build],
      ["Sessions are kept", has("session_store")], ["Memory", has("memory_store")], ["Compaction", has("session_compaction")]];
    facts.replaceChildren(el("dl.facts-list", {}, rows.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
    readers.replaceChildren(...(list.items.length === 0 ? [el("p.hint", {}, "No reader is registered.")] : list.items.map((reader) =>
      el("p", {}, el("strong", {}, reader.reader), reader.records_behind === 0 ? " has read everything"
        : ` is ${number(reader.records_behind)} records behind, in ${number(reader.sessions_behind)} sessions`))));
  };
  const search = el("input", { type: "search", "aria-label": "Search error codes", placeholder: "Search codes and messages" });
  search.value = params.get("code") ?? "";
  const list = el("div.codes");
  const drawCodes = () => {
    const words = search.value.toLowerCase();
    list.replaceChildren(...errors.items.filter((row) => `${row.code} ${row.message}`.toLowerCase().includes(words))
      .map((row) => explained(row, row.code === search.value)));
  };
  search.addEventListener("input", drawCodes);
  view.append(el("div.head", {}, el("h1", {}, "Health")), facts, el("h2", {}, "Readers"), readers, el("h2", {}, "The doctor"), ...doctor(signal),
    el("h2", {}, "Error codes"), el("div.line", { role: "search" }, search), list);
  await draw();
  drawCodes();
  every(5, signal, draw);
}
