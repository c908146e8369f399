// A list of any length of which only the rows that can be seen are in the page. All rows have one height.

import { el } from "./dom.js";

const AROUND = 8;

/** Which link of which row it is: rows may share an address, such as that of a label. */
const placeOf = (link) => `${link.closest(".row").querySelector("a").getAttribute("href")} ${link.getAttribute("href")}`;

/** A list; `show(items)` sets its rows, which `render(item)` makes. Each is `rems` high, so that it grows with the text. */
export function rows(label, rems, render) {
  const inner = el("div.rows-inner", { role: "list" });
  const node = el("div.rows", { "aria-label": label, role: "region", tabindex: "0" }, inner);
  let items = [];
  let shown = "";
  const draw = (isForced) => {
    const height = rems * parseFloat(getComputedStyle(document.documentElement).fontSize);
    const first = Math.max(0, Math.floor(node.scrollTop / height) - AROUND);
    const last = Math.min(items.length, Math.ceil((node.scrollTop + node.clientHeight) / height) + AROUND);
    const now = `${height} ${first}-${last}`;
    if (!isForced && shown === now) return;
    shown = now;
    const focused = inner.contains(document.activeElement) ? placeOf(document.activeElement) : null;
    inner.style.height = `${items.length * height}px`;
    inner.replaceChildren(...items.slice(first, last).map((item, index) => {
      const place = { role: "listitem", "aria-setsize": items.length, "aria-posinset": first + index + 1 };
      const row = el("div.row", place, render(item));
      row.style.top = `${(first + index) * height}px`;
      row.style.height = `${height}px`;
      return row;
    }));
    if (focused) [...inner.querySelectorAll("a")].find((link) => placeOf(link) === focused)?.focus();
  };
  node.addEventListener("scroll", () => draw(false), { passive: true });
  node.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const links = [...inner.children].map((each) => each.querySelector("a"));
    const at = links.findIndex((link) => link.closest(".row").contains(document.activeElement));
    const next = links[at < 0 ? 0 : at + step];
    next?.focus();
  });
  new ResizeObserver(() => draw(false)).observe(node);
  return { node, show: (all) => { items = all; draw(true); } };
}
