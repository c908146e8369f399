// Whether the server is well: readiness, readers and how far behind they are, and what error codes mean.

import { get, ready } from "../api.js";
import { command, el, every, number } from "../dom.js";

export async function show(view, { params, signal }) {
  const [capabilities, errors] = await Promise.all([get("capabilities", {}, signal), get("errors", {}, signal)]);
  const facts = el("div.cards");
  const readers = el("div");
  const draw = async () => {
    const [{ state, code }, list] = await Promise.all([ready(), get("readers", {}, signal).catch(() => ({ items: [] }))]);
    const has = (name) => (capabilities[name] ? "yes" : "not in this build");
    const rows = [["State", state ?? code], ["Version", capabilities.version], ["Build", capabilities.build],
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
    list.replaceChildren(...errors.items.filter((row) => `${row.code} ${row.message}`.toLowerCase().includes(words)).map((row) =>
      el("details", { open: row.code === search.value }, el("summary", {}, el("strong", {}, row.code), " ", row.message),
        el("p", {}, `HTTP ${row.http_status} · exit code ${row.exit_code} · `, row.retryable ? "the same request can succeed later" : "the same request fails again"),
        el("p", {}, "What to do:"), command(`meerkat errors ${row.code}`))));
  };
  search.addEventListener("input", drawCodes);
  view.append(el("div.head", {}, el("h1", {}, "Health")), facts,
    el("h2", {}, "Readers"), readers,
    el("h2", {}, "Faults of the configuration and the data directory"), command("meerkat doctor"),
    el("h2", {}, "Error codes"), el("div.line", { role: "search" }, search), list);
  await draw();
  drawCodes();
  every(5, signal, draw);
}
