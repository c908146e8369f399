// The console in a real browser: a server of the program, Debian's Chromium, and a person's hands. Run it by
// `bash crates/console/browser/run.sh`. CONSOLE_PICTURES names a folder for pictures of the page.

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const MEERKAT = process.env.MEERKAT;
const PICTURES = process.env.CONSOLE_PICTURES;
const CHROMIUM = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const home = mkdtempSync(join(tmpdir(), "console-"));
const tools = join(home, "t");
mkdirSync(tools);
const env = { HOME: home, PATH: process.env.PATH, MEERKAT_MODEL__NAME: "scripted", MEERKAT_TOOLS__TEST_DIR: tools };

const meerkat = (...args) => spawn(MEERKAT, args, { cwd: home, env, stdio: ["ignore", "pipe", "pipe"] });
function ran(...args) {
  const { status, stdout, stderr } = spawnSync(MEERKAT, args, { cwd: home, env, encoding: "utf8" });
  assert.equal(status, 0, `${args.join(" ")}: ${stderr}`);
  return stdout.trim();
}

let server;
async function start(listen = "127.0.0.1:0") {
  server = meerkat("--json", "serve", "--rest", "--rpc", "--mcp", "--listen", listen);
  const [line] = await once(createInterface(server.stdout), "line");
  return new URL(JSON.parse(line).listening);
}
async function kill(name) {
  const ended = once(server, "exit");
  server.kill(name);
  await ended;
}

const base = await start();
const token = ran("token");
async function api(method, path, body) {
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const answer = await fetch(new URL(`/v1/${path}`, base), { method, headers, body: body && JSON.stringify(body) });
  assert.ok(answer.ok, `${method} ${path}: ${answer.status} ${await answer.clone().text()}`);
  return answer.json();
}
const session = async (body = {}) => (await api("POST", "sessions", body)).session_id;
const say = (id, prompt) => api("POST", `sessions/${id}/turns`, { prompt, attended: true });

const browser = await chromium.launch({ executablePath: CHROMIUM, headless: true, args: FLAGS });
const context = await browser.newContext({ viewport: { width: 1200, height: 800 } });
const troubles = [];
let page = await context.newPage();
const watch = (watched) => {
  watched.on("console", (message) => {
    const text = message.text();
    // What a killed server or a refused sign-in leaves in the log is what the trial does.
    if (message.type() === "error" && !/ERR_CONNECTION_RE|ERR_INCOMPLETE|ERR_EMPTY|status of 40[014]/.test(text)) troubles.push(text);
  });
  watched.on("pageerror", (error) => troubles.push(String(error)));
  watched.on("request", (request) => {
    const { origin } = new URL(request.url());
    if (origin !== base.origin && !request.url().startsWith("data:")) troubles.push(`asks elsewhere: ${request.url()}`);
  });
  watched.setDefaultTimeout(20000);
};
watch(page);
const open = async (path) => {
  await page.goto(new URL(`/#/${path}`, base).href);
  await page.locator(".view > *").first().waitFor();
};
const text = (wanted) => page.getByText(wanted).first();

/** What a view has when it is drawn. */
const SETTLED = { "": ".session", session: ".item, .chart, .bar, .events details", approvals: ".empty", memory: ".hit",
  tools: "tbody", health: ".codes details" };

const trials = {
  async "a stranger sees where to sign in and nothing else"() {
    await page.goto(base.href);
    await page.getByRole("heading", { name: "Sign in" }).waitFor();
    await page.goto(new URL("/#code=abc.1.def", base).href);
    await text("The code was used").waitFor();
    assert.equal(new URL(page.url()).hash, "", "the code does not stay in the address");
  },
  async "a pasted token signs this tab in, a wrong one does not"() {
    const field = page.getByLabel("Or paste the server's token");
    await field.fill("a wrong token of some length");
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.locator(".failure", { hasText: "UNAUTHENTICATED" }).waitFor();
    await field.fill(token);
    await page.getByRole("button", { name: "Sign in" }).click();
    await text("No sessions yet").waitFor();
    await page.getByRole("button", { name: "Sign out" }).click();
    await text("You are signed out.").waitFor();
  },
  async "a one-time code signs in once, with a cookie that no script reads and that opens REST alone"() {
    const url = JSON.parse(ran("--json", "console", "--print", "--listen", base.host)).url;
    await page.goto(url);
    await text("No sessions yet").waitFor();
    const [cookie] = await context.cookies();
    assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.name], [true, "Strict", `meerkat_${base.port}`]);
    assert.equal(await page.evaluate(() => document.cookie), "");
    const status = (path, options) => page.evaluate(async ([path, options]) => (await fetch(path, options)).status, [path, options]);
    const secret = await page.evaluate(() => localStorage.getItem("meerkat.secret"));
    const headers = { "x-meerkat-console": secret, "content-type": "application/json" };
    assert.equal(await status("/v1/sessions", { headers }), 200);
    assert.equal(await status("/v1/sessions", {}), 401, "the cookie alone opens nothing");
    for (const path of ["/rpc", "/mcp"]) assert.equal(await status(path, { method: "POST", headers, body: "{}" }), 401, path);
    for (const path of ["/metrics", "/openapi.json"]) assert.equal(await status(path, { headers }), 401, path);
    const other = await browser.newContext();
    const stranger = await other.newPage();
    await stranger.goto(url);
    await stranger.getByText("The code was used").waitFor();
    await other.close();
  },
  async "a session is made and a turn streams by keyboard alone"() {
    await page.getByRole("button", { name: "New session" }).focus();
    await page.keyboard.press("Enter");
    await text("Nothing was said yet").waitFor();
    await page.getByLabel("Prompt").focus();
    await page.keyboard.type('@think Let me look. @call test_echo {"text":"an echo"} @say The **answer** is `42`. @call test_sleep {"ms":300} @say Done.');
    await page.keyboard.press("Enter");
    await page.locator(".call", { hasText: "test_echo" }).getByText("succeeded").waitFor();
    await page.locator(".output", { hasText: "an echo" }).waitFor();
    await page.locator(".answer strong", { hasText: "answer" }).waitFor();
    await page.locator(".item .end").waitFor();
    assert.equal(await page.locator(".live").count(), 0, "what streamed is replaced by the whole");
  },
  async "a session goes on without a gap over a killed server, and the sign-in too"() {
    const id = await session({ title: "Killed" });
    await say(id, "@say Before.");
    await open(`sessions/${id}`);
    await text("Before.").waitFor();
    await kill("SIGKILL");
    await text("reconnecting").waitFor();
    await start(base.host);
    await say(id, "@say After.");
    await page.locator(".answer", { hasText: "After." }).waitFor();
    await page.locator(".connection", { hasText: "live" }).waitFor();
    const { items } = await api("GET", `sessions/${id}/events?limit=1000`);
    const wanted = items.filter(({ type }) => type === "turn_completed").map(({ seq }) => String(seq));
    const shown = await page.locator(".item[data-type=turn_completed]").evaluateAll((found) => found.map(({ dataset }) => dataset.seq));
    assert.deepEqual(shown, wanted, "every turn's end is shown once");
  },
  async "a call is allowed from the inbox while the command line waits"() {
    await open("approvals");
    await text("Nothing waits for you").waitFor();
    const id = await session({ title: "Shopping" });
    const turn = say(id, '@call test_ask {"name":"list","line":"milk"} @say Bought.');
    const card = page.locator(".card", { hasText: "test_ask" });
    await card.waitFor();
    await picture("approvals");
    await card.getByRole("button", { name: "Allow once" }).click();
    assert.equal((await turn).text, "Bought.");
    await text("Nothing waits for you").waitFor();
    const denied = say(id, '@call test_ask {"name":"list","line":"gin"} @echo last_result');
    await card.waitFor();
    await card.getByLabel("Reason, which the model reads").fill("not on a Friday");
    await card.getByRole("button", { name: "Deny" }).click();
    assert.match((await denied).text, /not on a Friday/);
  },
  async "a turn is queued, cancelled and interrupted"() {
    const id = await session({ title: "Stalled" });
    await open(`sessions/${id}`);
    const prompt = page.getByLabel("Prompt");
    await prompt.fill("@say One. @stall");
    await page.getByRole("button", { name: "Send", exact: true }).click();
    const queue = page.getByRole("button", { name: "Queue" });
    await queue.waitFor();
    await prompt.fill("@say Two.");
    await queue.click();
    await page.locator(".queued").getByRole("button", { name: "Cancel" }).click();
    await text("Left the queue: cancelled").waitFor();
    await page.getByRole("button", { name: "Interrupt", exact: true }).click();
    await text("Interrupted: requested").waitFor();
    await page.getByRole("button", { name: "Send", exact: true }).waitFor();
  },
  async "a fork goes its own way from a turn"() {
    const id = await session({ title: "Parent" });
    await say(id, "@say First.");
    await say(id, "@say Second.");
    await open(`sessions/${id}`);
    await page.getByRole("button", { name: "Fork from here" }).first().click();
    await page.locator("a", { hasText: "forked from its parent" }).waitFor();
    await text("First.").waitFor();
    assert.equal(await page.getByText("Second.").count(), 0);
  },
  async "a compaction is a mark in the chart, with its receipt, and is undone there"() {
    const id = await session({ title: "A long research" });
    await say(id, "@long 30000");
    for (let turn = 1; turn < 7; turn += 1) await say(id, `@call test_huge {"bytes":${turn * 900}} @say Turn ${turn}. @usage in=${turn * 800} out=90 cached=${turn * 300}`);
    await open(`sessions/${id}/context`);
    await page.getByRole("button", { name: "Compact …" }).click();
    const dialog = page.locator("dialog");
    await dialog.getByText("Tokens after").waitFor();
    await dialog.getByRole("button", { name: "Compact", exact: true }).click();
    const mark = page.locator(".mark");
    await mark.first().waitFor();
    await say(id, "@say Later.");
    await page.getByRole("button", { name: "Refresh" }).click();
    await mark.first().focus();
    await page.keyboard.press("Enter");
    await text("Messages that left").waitFor();
    await picture("context");
    await page.getByRole("button", { name: "Undo this compaction" }).click();
    await page.locator(".mark circle.undone").waitFor();
    await open(`sessions/${id}/tokens`);
    await page.locator(".bar").nth(6).waitFor();
    await picture("tokens");
    await open(`sessions/${id}/events`);
    await page.getByLabel("Kind of event").selectOption("compaction_undone");
    assert.equal(await page.locator(".events details:not([hidden])").count(), 1);
    await context.grantPermissions(["clipboard-read", "clipboard-write"]);
    await page.getByRole("button", { name: "Copy as curl" }).click();
    await text("Copied.").waitFor();
    assert.match(await page.evaluate(() => navigator.clipboard.readText()), /curl -s .*since_seq=/);
  },
  async "memory finds what was said, opens it at its place, and forgets it"() {
    const id = await session({ title: "Colours" });
    await say(id, "@say The meerkats prefer ultramarine.");
    await open("memory");
    await page.getByLabel("Search memory").fill("ultramarine");
    await page.locator("mark", { hasText: "ultramarine" }).first().waitFor();
    await page.getByRole("link", { name: "Open" }).first().click();
    await page.locator(".item.found").waitFor();
    await page.goBack();
    await page.getByRole("button", { name: "Forget …" }).first().click();
    await page.locator("dialog").getByRole("button", { name: "Forget" }).click();
    await text("forgotten").waitFor();
  },
  async "hostile content is text everywhere"() {
    const evil = '<img src=x onerror="globalThis.pwned=1"><script>globalThis.pwned=1</script>';
    const id = await session({ title: `${evil} \u202edetrever`, labels: { [evil]: "</span><b>" } });
    const words = `[x](javascript:globalThis.pwned=1) [ok](https://example.com/\u202ex) ${evil} zero\u200bwidth \u202eflip`;
    await say(id, `@think ${evil} @call test_echo {"text":${JSON.stringify(evil)}} @say ${words}`);
    await say(id, `@call no_such_${"tool"} {"a":${JSON.stringify(evil)}} @say ${evil}`);
    for (const place of ["sessions", `sessions/${id}`, `sessions/${id}/events`, `sessions/${id}/context`, "memory?q=script"]) {
      await open(place);
      await page.locator(".session, .item, .events details, .chart, .hit").first().waitFor();
      assert.equal(await page.evaluate(() => globalThis.pwned), undefined, place);
      assert.equal(await page.locator("main img, main script, main b, main iframe").count(), 0, place);
    }
    await open(`sessions/${id}`);
    await page.locator(".answer .unseen", { hasText: "U+202E" }).first().waitFor();
    const links = await page.locator(".answer a").evaluateAll((found) => found.map(({ href, rel }) => [new URL(href).protocol, rel]));
    assert.deepEqual(links, [["https:", "noopener noreferrer"]]);
    assert.ok(!(await page.title()).includes("\u202e"));
  },
  async "the list of sessions follows what others do, and finds by words"() {
    await open("sessions?q=unmistakable");
    await text("No session is like that").waitFor();
    const id = await session({ title: "An unmistakable title", labels: { team: "desk" } });
    await page.locator(".session", { hasText: "An unmistakable title" }).waitFor();
    await api("POST", `sessions/${id}/archive`);
    await text("No session is like that").waitFor();
    await page.getByLabel("Which sessions").selectOption("archived");
    await page.locator(".session", { hasText: "An unmistakable title" }).waitFor();
  },
  async "tools and health say what is there and what to do"() {
    await open("tools");
    await page.getByRole("rowheader", { name: "test_echo" }).waitFor();
    await open("health?code=SESSION_BUSY");
    await text("ready").waitFor();
    await page.getByText("meerkat errors SESSION_BUSY").waitFor();
    await open("sessions/01900000-0000-7000-8000-000000000001");
    await page.locator(".failure", { hasText: "SESSION_NOT_FOUND" }).waitFor();
  },
  async "axe finds nothing serious in any view, light and dark"() {
    const [{ session_id: id }] = (await api("GET", "sessions?limit=1000")).items.filter(({ title }) => title === "A long research");
    for (const scheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme: scheme });
      for (const place of ["", `sessions/${id}`, `sessions/${id}/context`, `sessions/${id}/tokens`, `sessions/${id}/events`,
        "approvals", "memory?q=turn", "tools", "health"]) {
        await open(place);
        await page.locator(SETTLED[place.split("/").length > 1 ? "session" : place.split("?")[0]]).first().waitFor();
        await page.evaluate(axe);
        const { violations } = await page.evaluate(() => globalThis.axe.run(document));
        const serious = violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
        const said = serious.map(({ id: rule, nodes }) => `${rule}: ${nodes.slice(0, 3).map(({ html }) => html).join(" | ")}`);
        assert.deepEqual(said, [], `${scheme} ${place}`);
      }
    }
    await page.emulateMedia({ colorScheme: "light" });
  },
  async "pictures at three sizes, light and dark, have nothing beyond the edge"() {
    const found = (await api("GET", "sessions?limit=1000")).items;
    const id = found.find(({ title }) => title === "A long research").session_id;
    for (const [place, name] of [["", "sessions"], [`sessions/${id}`, "session"], [`sessions/${id}/context`, "window"], ["health", "health"]]) {
      await open(place);
      await picture(name);
    }
    await page.setViewportSize({ width: 1200, height: 800 });
  },
  async "an ended sign-in leads to the sign-in page"() {
    await open("");
    ran("console", "--sign-out");
    await text("Your sign-in has ended.").waitFor();
    await page.getByRole("heading", { name: "Sign in" }).waitFor();
  },
};

/** Looks at a view at three sizes, light and dark: nothing may be wider than the window. */
async function picture(name) {
  for (const [size, width, height] of [["narrow", 400, 800], ["usual", 1200, 800], ["wide", 3840, 2160]]) {
    await page.setViewportSize({ width, height });
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      const surplus = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(surplus <= 0, `${name} at ${width}: ${surplus} pixels too wide`);
      if (PICTURES) await page.screenshot({ path: join(PICTURES, `${name}-${size}-${colorScheme}.png`) });
    }
  }
  await page.setViewportSize({ width: 1200, height: 800 });
  await page.emulateMedia({ colorScheme: "light" });
}

let failures = 0;
for (const [name, trial] of Object.entries(trials).filter(([name]) => name.includes(process.env.ONLY ?? ""))) {
  const began = performance.now();
  try {
    await trial();
    assert.deepEqual(troubles.splice(0), [], "the browser's log is clean");
    console.log(`ok   ${name} (${Math.round(performance.now() - began)} ms)`);
  } catch (error) {
    failures += 1;
    console.log(`FAIL ${name}\n${error.stack}\n${await page.locator("main").innerText().catch(() => "")}`.slice(0, 3000));
  }
}
await browser.close();
await kill("SIGKILL");
rmSync(home, { recursive: true, force: true });
process.exit(failures === 0 ? 0 : 1);
