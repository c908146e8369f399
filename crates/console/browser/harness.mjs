// What the trials need: a server of the program in a home of its own, Debian's Chromium, and an eye on what the page does
// wrong. CONSOLE_PICTURES names a folder for pictures of the page.

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
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
const [tools, site] = ["t", "site"].map((name) => join(home, name));
[tools, site, join(home, ".config"), join(home, ".config", "meerkat")].forEach((folder) => mkdirSync(folder));
writeFileSync(join(home, ".config", "meerkat", "meerkat.toml"), `[tools]\nfolders = { site = ${JSON.stringify(site)} }\n[servers.absent]\ncommand = "/no/such/program"\n`);
const env = { HOME: home, PATH: process.env.PATH, MEERKAT_MODEL__NAME: "scripted", MEERKAT_TOOLS__TEST_DIR: tools };

/** Starts the program in a folder of its own below the home. */
export const meerkatIn = (folder, ...args) => {
  const cwd = join(home, folder);
  mkdirSync(cwd, { recursive: true });
  return spawn(MEERKAT, args, { cwd, env, stdio: ["ignore", "pipe", "pipe"] });
};
/** Starts the program. */
export const meerkat = (...args) => meerkatIn(".", ...args);
/** Runs the program to its end. */
export function ran(...args) {
  const { status, stdout, stderr } = spawnSync(MEERKAT, args, { cwd: home, env, encoding: "utf8" });
  assert.equal(status, 0, `${args.join(" ")}: ${stderr}`);
  return stdout.trim();
}

let server;
export async function start(listen = "127.0.0.1:0") {
  server = meerkat("--json", "serve", "--rest", "--rpc", "--mcp", "--listen", listen);
  const [line] = await once(createInterface(server.stdout), "line");
  return new URL(JSON.parse(line).listening);
}
export async function kill(name) {
  const ended = once(server, "exit");
  server.kill(name);
  await ended;
}

export const base = await start();
export const token = ran("token");
export async function api(method, path, body) {
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const answer = await fetch(new URL(`/v1/${path}`, base), { method, headers, body: body && JSON.stringify(body) });
  assert.ok(answer.ok, `${method} ${path}: ${answer.status} ${await answer.clone().text()}`);
  return answer.json();
}
export const session = async (body = {}) => (await api("POST", "sessions", body)).session_id;
export const say = (id, prompt) => api("POST", `sessions/${id}/turns`, { prompt, attended: true });

/** Waits until memory has what was said: the page searches once, and a search waits two seconds for memory at most. */
export async function remembered(query) {
  const end = Date.now() + 60_000;
  while (!(await api("GET", `memory/search?query=${query}`)).items.length) {
    assert.ok(Date.now() < end, `${query} is not remembered`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

export const browser = await chromium.launch({ executablePath: CHROMIUM, headless: true, args: FLAGS });
export const context = await browser.newContext({ viewport: { width: 1200, height: 800 } });
export const troubles = [];
export const page = await context.newPage();
export const watch = (watched) => {
  watched.on("console", (message) => {
    const text = message.text();
    // What a killed server or a refused sign-in leaves in the log is what the trial does.
    if (message.type() === "error" && !/ERR_CONNECTION_RE|ERR_INCOMPLETE|ERR_EMPTY|ERR_INTERNET|status of 40[014]/.test(text)) troubles.push(text);
  });
  watched.on("pageerror", (error) => troubles.push(String(error)));
  watched.on("request", (request) => {
    const { origin } = new URL(request.url());
    if (origin !== base.origin && !request.url().startsWith("data:")) troubles.push(`asks elsewhere: ${request.url()}`);
  });
  watched.setDefaultTimeout(60_000);
};
watch(page);
export const open = async (path, tab = page) => {
  await tab.goto(new URL(`/#/${path}`, base).href);
  await tab.locator(".view > *").first().waitFor();
};
export const text = (wanted) => page.getByText(wanted).first();

/** What a view has when it is drawn. */
export const SETTLED = { "": ".session", session: ".item, .chart, .bar, .events details", approvals: ".empty", memory: ".hit",
  tools: "tbody", health: ".codes details" };

/** Looks at a view at three sizes, light and dark: nothing may be wider than the window. */
export async function picture(name) {
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

/** Axe finds nothing serious in what the page shows. */
export async function accessible(what) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document));
  const serious = violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
  const said = serious.map(({ id: rule, nodes }) => `${rule}: ${nodes.slice(0, 3).map(({ html }) => html).join(" | ")}`);
  assert.deepEqual(said, [], what);
}

/** Makes a browser sign in by a one-time code. */
export async function signIn(tab = page) {
  await tab.goto(JSON.parse(ran("--json", "console", "--print", "--listen", base.host)).url);
  await tab.locator(".view > *").first().waitFor();
}

/** Performs trials one after another; what the browser complains of is a failure too. */
export async function perform(trials) {
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
}
