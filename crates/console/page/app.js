// The frame around the views: which address shows which view, and who is signed in.

import { SECRET, forget, isSignedIn, learnCapabilities, onSignedOut, signIn, signOut } from "./api.js";
import { ask, button, complain, el, failed, plain } from "./dom.js";
import { followList, forgetList, onList, sessions as all } from "./follow.js";
import { show as approvals } from "./views/approvals.js";
import { show as health } from "./views/health.js";
import { show as memory } from "./views/memory.js";
import { show as session } from "./views/session.js";
import { show as sessions } from "./views/sessions.js";
import { show as signInPage } from "./views/sign_in.js";
import { show as tools } from "./views/tools.js";

const VIEWS = {
  sessions: ["Sessions", sessions],
  approvals: ["Approvals", approvals],
  memory: ["Memory", memory],
  tools: ["Tools", tools],
  health: ["Health", health],
};

const main = document.getElementById("main");
const nav = document.getElementById("views");
let shown = new AbortController();
let named = "";
let wantsSearch = false;

/** Names the page. The tab's title also says how many sessions wait. */
function name(text) {
  named = plain(text);
  const count = waiting();
  document.title = `${count > 0 ? `(${count}) ` : ""}${named} · meerkat`;
}

/** The parts and the query of an address behind `#/`. */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  return { parts, params: new URLSearchParams(query) };
}

function mark(name) {
  nav.replaceChildren(...Object.entries(VIEWS).map(([key, [title]]) => {
    const current = key === name ? "page" : null;
    return el("a", { href: `#/${key === "sessions" ? "" : key}`, "aria-current": current, "data-view": key }, title);
  }));
}

/** Shows the view of the address. Its signal ends what the view before it had begun. */
async function show() {
  shown.abort();
  // What was said in another view is not this one's.
  document.getElementById("notices").replaceChildren();
  shown = new AbortController();
  const { signal } = shown;
  const { parts, params } = place();
  const key = parts[0] ?? "sessions";
  mark(key);
  countWaiting();
  const [title, view] = key === "sessions" && parts[1] ? ["Session", session] : VIEWS[key] ?? ["Sessions", sessions];
  name(title);
  const content = el("div.view", {});
  main.replaceChildren(content);
  try {
    const drawn = view(content, { parts, params, signal, title: name });
    if (wantsSearch) content.querySelector("input[type=search]")?.focus();
    wantsSearch = false;
    await drawn;
  } catch (failure) {
    if (!signal.aborted && failure.name !== "AbortError") content.replaceChildren(failed(failure));
  }
}

function waiting() {
  let count = 0;
  for (const session of all.values()) count += session.state === "waiting" ? 1 : 0;
  return count;
}

function countWaiting() {
  const count = waiting();
  name(named);
  const link = nav.querySelector("[data-view=approvals]");
  link?.querySelector(".count")?.remove();
  if (count > 0) link?.append(" ", el("span.count", { "aria-label": `${count} waiting` }, String(count)));
}

/** Moves the focus to the next row or card, or to the first one. */
function move(step) {
  const items = [...main.querySelectorAll(".row, .card")];
  const at = items.findIndex((item) => item.contains(document.activeElement));
  const next = items[at < 0 ? 0 : at + step];
  if (next?.matches(".card")) next.setAttribute("tabindex", "-1");
  (next?.matches(".row") ? next.querySelector("a") : next)?.focus();
}

function search() {
  const field = main.querySelector("input[type=search]");
  if (field) return field.focus();
  wantsSearch = true;
  return (location.hash = "#/");
}

const focusedCard = () => document.activeElement.closest(".card");
const KEYS = {
  "/": ["search", search],
  j: ["the next row or card", () => move(1)],
  k: ["the one before", () => move(-1)],
  Enter: ["open what has the focus", () => document.activeElement.matches(".card") && focusedCard().querySelector("a")?.click()],
  a: ["allow once the call whose card has the focus", () => focusedCard()?.querySelector("[data-allows]")?.click()],
  "?": ["these keys", () => ask("Keys", el("dl.keys", {}, Object.entries(KEYS).map(([key, [text]]) =>
    el("div", {}, el("dt", {}, el("kbd", {}, key)), el("dd", {}, text)))), [])],
};

/** A key does something where it is not typed into a field, and once, however long it is held down. */
function press(event) {
  const isElsewhere = event.target.closest("input, select, textarea, dialog") || life.signal.aborted;
  if (isElsewhere || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(KEYS, event.key)) return;
  if (event.repeat && !/[jk]/.test(event.key)) return;
  // Enter stays what it is for the links and buttons in a card.
  if (event.key !== "Enter") event.preventDefault();
  KEYS[event.key][1]();
}

let life = new AbortController();
life.abort();

function leave(why) {
  forget();
  shown.abort();
  life.abort();
  forgetList();
  nav.replaceChildren();
  document.getElementById("account").replaceChildren();
  document.title = "Sign in · meerkat";
  signInPage(main, why, enter);
}

function enter() {
  life = new AbortController();
  const out = button("Sign out", async () => (await signOut(), leave("You are signed out.")), { class: "quiet" });
  document.getElementById("account").replaceChildren(...(isSignedIn() ? [out] : []));
  onList(life.signal, countWaiting);
  followList(life.signal);
  return show();
}

async function begin() {
  const code = location.hash.match(/^#code=([\w.]+)$/)?.[1];
  let why = "";
  if (code) {
    history.replaceState(null, "", location.pathname);
    await signIn(code).catch((failure) => (why = failure.message));
  }
  try {
    await learnCapabilities();
    await enter();
  } catch (failure) {
    if (failure.status === 401) leave(why || (isSignedIn() ? "Your sign-in has ended." : ""));
    else main.replaceChildren(failed(failure), button("Try again", begin));
  }
}

addEventListener("keydown", press);
onSignedOut.act = () => !life.signal.aborted && document.querySelector(".view") && leave("Your sign-in has ended.");
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", () => (/^#code=/.test(location.hash) ? begin() : document.querySelector(".view") && show()));
// Who signs in or out does so in all tabs.
addEventListener("storage", ({ key, newValue }) => {
  if (key !== SECRET) return;
  if (newValue === null && !life.signal.aborted && !isSignedIn()) leave("Your sign-in has ended.");
  if (newValue !== null && life.signal.aborted) begin();
});
addEventListener("unhandledrejection", (event) => complain(event.reason));
begin();
