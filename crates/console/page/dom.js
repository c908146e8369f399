// Makes nodes. Text becomes text nodes and nothing else; characters that nobody sees are shown by their number.

const UNSEEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f" +
    "\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufe00-\\ufe0e\\ufeff\\uffa0\\ufff9-\\ufffb" +
    "\\u{e0000}-\\u{e0fff}]",
  "gu",
);

const numbered = (character) => `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

/** The text with each unseen character replaced by its number, for attributes and titles. */
export const plain = (text) => String(text ?? "").replace(UNSEEN, (found) => `⟨${numbered(found)}⟩`);

/** Text nodes of a text, with marks in place of unseen characters. */
export function texts(text) {
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(UNSEEN)) {
    if (found.index > end) nodes.push(document.createTextNode(text.slice(end, found.index)));
    const mark = document.createElement("span");
    mark.className = "unseen";
    mark.textContent = numbered(found[0]);
    nodes.push(mark);
    end = found.index + found[0].length;
  }
  if (end < text.length) nodes.push(document.createTextNode(text.slice(end)));
  return nodes;
}

function add(node, child) {
  if (child === null || child === undefined || child === false) return;
  if (Array.isArray(child)) child.forEach((each) => add(node, each));
  else node.append(...(child instanceof Node ? [child] : texts(String(child))));
}

function build(node, name, attributes, children) {
  const [, ...classes] = name.split(".");
  if (classes.length > 0) node.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : plain(value));
  }
  children.forEach((child) => add(node, child));
  return node;
}

/** An element: `el("p.note", { title }, "text", child)`. Attributes that begin with `on` are listeners. */
export const el = (name, attributes, ...children) =>
  build(document.createElement(name.split(".")[0]), name, attributes, children);

/** An element of a drawing. */
export const svg = (name, attributes, ...children) =>
  build(document.createElementNS("http://www.w3.org/2000/svg", name.split(".")[0]), name, attributes, children);

/** A button that is off while what it does is under way. */
export function button(text, act, attributes = {}) {
  const run = async () => {
    made.disabled = true;
    try {
      await act();
    } catch (failure) {
      complain(failure);
    } finally {
      made.disabled = false;
    }
  };
  const made = el("button", { type: "button", ...attributes, onclick: run }, text);
  return made;
}

/** The work, never twice at a time: however often it is asked for while it runs, it runs once more. */
export function oneAtATime(work) {
  let [running, isBehind] = [null, false];
  const run = async () => {
    try {
      while (isBehind) {
        isBehind = false;
        await work();
      }
    } finally {
      running = null;
    }
  };
  return () => ((isBehind = true), (running ??= run()));
}

/** Copies a text, and says so. */
export const copy = async (text) => {
  await navigator.clipboard.writeText(text);
  say("Copied.");
};

/** A command to copy. */
export const command = (text) =>
  el("div.command", {}, el("code", {}, text), button("Copy", () => copy(text), { "aria-label": `Copy: ${text}` }));

/** What is shown where there is nothing: why, and what to do. */
export const empty = (title, ...more) => el("div.empty", {}, el("h2", {}, title), ...more);

/** A failure: its code, what is wrong, and what to do next. */
export function failed(failure) {
  const code = failure.code ?? "CONSOLE";
  if (failure.status === 0 && !failure.code) {
    return el("div.failure", { role: "alert" }, el("strong", {}, "UNREACHABLE"), el("p", {}, "The server cannot be reached."),
      el("p", {}, "If it has ended, start it again, such as by ", el("code", {}, "meerkat console"), ". The page goes on by itself."));
  }
  const next = failure.code
    ? ["What it means and what to do: ", el("a", { href: `#/health?code=${encodeURIComponent(code)}` }, code)]
    : ["Load the page again. If that does not help, look at the server's log."];
  return el("div.failure", { role: "alert" }, el("strong", {}, code), el("p", {}, failure.message), el("p", {}, next));
}

function notice(node, seconds) {
  const place = document.getElementById("notices");
  const shown = el("div.notice", {}, node, el("button.quiet", { "aria-label": "Close", onclick: () => shown.remove() }, "×"));
  place.append(shown);
  while (place.children.length > 2) place.firstChild.remove();
  setTimeout(() => shown.remove(), seconds * 1000);
}

export const say = (text) => notice(el("span", {}, text), 4);
export const complain = (failure) => failure.name !== "AbortError" && notice(failed(failure), 20);

/** Asks before something that cannot be taken back. Returns what the chosen button stands for, or null. */
export function ask(title, content, choices) {
  return new Promise((resolve) => {
    const end = (value) => {
      dialog.close();
      dialog.remove();
      resolve(value);
    };
    const buttons = choices.map(([text, value, kind]) => el(`button.${kind ?? "plain"}`, { onclick: () => end(value) }, text));
    const dialog = el(
      "dialog",
      { "aria-label": title, oncancel: () => end(null) },
      el("h2", {}, title),
      el("div.asked", { tabindex: "0" }, content),
      el("div.actions", {}, buttons, el("button.quiet", { onclick: () => end(null) }, choices.length > 0 ? "Cancel" : "Close")),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}

export const number = (value) => (value ?? 0).toLocaleString("en");
export const money = (cost) => (cost ? `${cost.amount} ${cost.currency}` : "unknown cost");
export const count = (value, name) => `${number(value)} ${name}${value === 1 ? "" : "s"}`;
export const short = (id) => id.slice(-8);
const units = [[86400, "d"], [3600, "h"], [60, "min"]];

/** How long ago a time was. */
export function ago(time) {
  const seconds = Math.max(0, (Date.now() - Date.parse(time)) / 1000);
  const unit = units.find(([length]) => seconds >= length);
  const text = unit ? `${Math.floor(seconds / unit[0])} ${unit[1]} ago` : "just now";
  return el("time", { datetime: time, title: new Date(time).toLocaleString() }, text);
}

const STATES = { idle: "idle", running: "running", queued: "queued", waiting: "waits for you" };

/** What a session is seen to be: its state, or `failed` if it is idle because its last turn failed. */
export const stateOf = ({ state: now, last_error: error }) => (now === "idle" && error ? "failed" : now);
export const state = (session) => {
  const now = stateOf(session);
  const text = now === "failed" ? `failed: ${session.last_error}` : STATES[now] ?? now;
  return el(`span.state.${STATES[now] || now === "failed" ? now : "idle"}`, {}, text);
};

/** Repeats a work while the view is shown and the tab is seen. */
export function every(seconds, signal, work) {
  const tick = async () => {
    if (document.visibilityState === "visible") await work().catch(() => {});
    if (!signal.aborted) timer = setTimeout(tick, seconds * 1000);
  };
  let timer = setTimeout(tick, seconds * 1000);
  signal.addEventListener("abort", () => clearTimeout(timer));
}
