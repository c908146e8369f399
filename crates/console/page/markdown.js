// Shows the usual Markdown of models as nodes. What it does not know stays text; nothing becomes HTML.

import { el } from "./dom.js";

const INLINE = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|\*([^*\s][^*\n]*)\*|\[([^\]\n]*)\]\(([^)\s]+)\)|(https?:\/\/[^\s<>()]+)/g;
const FENCE = /^\s*(```|~~~)/;
const ITEM = /^\s*(?:[-*+]|\d+[.)])\s+/;
const LINES_MAX = 5000;

/** A link, if its address is of the web; otherwise both as they were written. */
function link(text, address) {
  let url = null;
  try {
    url = new URL(address);
  } catch {
    // It is no address, so it stays text.
  }
  if (!url || !["http:", "https:"].includes(url.protocol)) return text === address ? text : `[${text}](${address})`;
  return el("a", { href: url.href, rel: "noopener noreferrer", target: "_blank", title: url.href }, text);
}

function inline(text) {
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(INLINE)) {
    const [whole, code, strong, weak, label, address, bare] = found;
    nodes.push(text.slice(end, found.index));
    if (code !== undefined) nodes.push(el("code", {}, code));
    else if (strong !== undefined) nodes.push(el("strong", {}, strong));
    else if (weak !== undefined) nodes.push(el("em", {}, weak));
    else nodes.push(bare ? link(bare, bare) : link(label, address));
    end = found.index + whole.length;
  }
  return [...nodes, text.slice(end)];
}

/** The nodes of a text in Markdown. */
export function markdown(text) {
  const all = text.split("\n");
  const lines = all.slice(0, LINES_MAX);
  const out = el("div.markdown");
  for (let at = 0; at < lines.length; ) {
    const until = (isEnd) => {
      const begin = at;
      while (at < lines.length && !isEnd(lines[at])) at += 1;
      return lines.slice(begin, at);
    };
    const line = lines[at];
    const heading = line.match(/^(#{1,6})\s+(.*)/);
    if (FENCE.test(line)) {
      at += 1;
      out.append(el("pre", { tabindex: "0" }, until((other) => FENCE.test(other)).join("\n")));
      at += 1;
    } else if (heading) {
      out.append(el("p.heading", {}, inline(heading[2])));
      at += 1;
    } else if (ITEM.test(line)) {
      const first = line.match(/^\s*(\d+)/)?.[1];
      const items = until((other) => !ITEM.test(other)).map((item) => el("li", {}, inline(item.replace(ITEM, ""))));
      // A list that goes on behind a block of code keeps its numbers.
      out.append(first ? el("ol", { start: first }, items) : el("ul", {}, items));
    } else if (line.startsWith(">")) {
      const quoted = until((other) => !other.startsWith(">")).map((other) => other.replace(/^>\s?/, ""));
      out.append(el("blockquote", {}, inline(quoted.join("\n"))));
    } else if (line.trim() === "") {
      at += 1;
    } else {
      const isOther = (other) => other.trim() === "" || FENCE.test(other) || ITEM.test(other) || /^(#{1,6}\s|>)/.test(other);
      at += 1;
      out.append(el("p", {}, inline([line, ...until(isOther)].join("\n"))));
    }
  }
  // A very long text stays whole, in one node.
  if (all.length > LINES_MAX) out.append(el("pre", { tabindex: "0" }, all.slice(LINES_MAX).join("\n")));
  return out;
}
