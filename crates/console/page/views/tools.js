// The tools that a new session's model is offered, where they come from and what they cost, and the servers they need.

import { get } from "../api.js";
import { command, el, empty, number } from "../dom.js";

const table = (label, head, rows) => el("div.wide", { tabindex: "0", role: "region", "aria-label": label }, el("table.texts", {},
  el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))),
  el("tbody", {}, rows.map(([first, ...others]) => el("tr", {}, el("th", { scope: "row" }, first), others.map((cell) => el("td", {}, cell)))))));

const TEXT_MAX = 240;
const brief = (text) => (text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX).replace(/\S*$/, "")}…` : text);

export async function show(view, { signal }) {
  const [tools, servers] = await Promise.all([get("tools", { with_workspace: true }, signal), get("tool-servers", {}, signal)]);
  const tokens = tools.items.reduce((sum, tool) => sum + (tool.left_out ? 0 : tool.tokens), 0);
  view.append(
    el("div.head", {}, el("h1", {}, "Tools")),
    el("h2", {}, "Servers"),
    servers.items.length === 0
      ? empty("No tool server", el("p", {}, "Servers of the Model Context Protocol give models further tools:"), command("meerkat servers add NAME -- COMMAND"))
      : table("Servers", ["Server", "State", "Tools", "Tokens", "Last error"], servers.items.map((server) =>
        [server.name, el(`span.server.${server.state}`, {}, server.state.replaceAll("_", " ")), number(server.tools), number(server.tokens), server.error ?? ""])),
    el("h2", {}, "Tools of a new session"),
    tools.items.length === 0 && empty("No tools", el("p", {}, "This build or configuration offers none.")) || "",
  );
  if (tools.items.length === 0) return;
  view.append(
    el("p", {}, `They cost about ${number(tokens)} tokens in each request.`),
    table("Tools", ["Tool", "From", "Calls", "Tokens", "What it does"], tools.items.map((tool) => [
      tool.name, tool.source, tool.left_out ? `left out: ${tool.left_out}` : tool.approval ?? "by its call",
      number(tool.tokens), brief(tool.description ?? "")])),
  );
}
