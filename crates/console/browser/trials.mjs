// The console in a real browser, by a person's hands. Run it by `bash crates/console/browser/run.sh`; ONLY names a part of
// a trial's name.

import assert from "node:assert/strict";
import { once } from "node:events";
import { chmodSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import {
  SETTLED, accessible, api, base, browser, context, kill, meerkat, meerkatIn, open, page, perform, picture, ran, remembered, say, session, signIn, start, text, token,
  watch,
} from "./harness.mjs";
import { list } from "./list.mjs";

const trials = {
  async "a stranger sees where to sign in and nothing else"() {
    await page.goto(base.href);
    await page.getByRole("heading", { name: "Sign in" }).waitFor();
    await page.goto(new URL("/#code=abc.1.def", base).href);
    await text("The code was used").waitFor();
    assert.equal(new URL(page.url()).hash, "", "the code does not stay in the address");
    await accessible("sign-in");
    await picture("sign-in");
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
    await picture("empty");
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
  async "where no server runs, the command starts one and prints the page's address"() {
    const own = meerkatIn("elsewhere", "--json", "console", "--print", "--listen", "127.0.0.1:0");
    const lines = createInterface(own.stdout)[Symbol.asyncIterator]();
    const { listening } = JSON.parse((await lines.next()).value);
    const { url } = JSON.parse((await lines.next()).value);
    const other = await browser.newContext();
    const tab = await other.newPage();
    await tab.goto(url);
    await tab.getByText("No sessions yet").waitFor();
    assert.equal(new URL(tab.url()).origin, new URL(listening).origin);
    await other.close();
    const ended = once(own, "exit");
    own.kill("SIGTERM");
    await ended;
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
  async "a session goes on without a gap over a killed server, where the token was pasted"() {
    await page.evaluate((token) => sessionStorage.setItem("meerkat.token", token), token);
    const id = await session({ title: "Killed" });
    await say(id, "@say Before.");
    await open(`sessions/${id}`);
    await text("Before.").waitFor();
    const cut = say(id, "@say In the middle. @stall").catch(() => "cut off");
    await page.locator(".live", { hasText: "In the middle." }).waitFor();
    await kill("SIGKILL");
    assert.equal(await cut, "cut off");
    await text("reconnecting").waitFor();
    await start(base.host);
    await text("Interrupted: process_ended").waitFor();
    await say(id, "@say After.");
    await page.locator(".answer", { hasText: "After." }).waitFor();
    // The text is shown before its turn has ended.
    await page.locator(".item[data-type=turn_completed]").nth(1).waitFor();
    await page.locator(".connection", { hasText: "live" }).waitFor();
    const { items } = await api("GET", `sessions/${id}/events?limit=1000`);
    const ends = ["turn_started", "turn_completed", "turn_interrupted"];
    const wanted = items.filter(({ type }) => ends.includes(type)).map(({ seq }) => String(seq));
    const shown = await page.locator(ends.map((type) => `.item[data-type=${type}]`).join()).evaluateAll((found) =>
      found.map(({ dataset }) => dataset.seq));
    assert.deepEqual(shown, wanted, "every beginning and end of a turn is shown once, in order");
    // The sign-in ended with the server.
    await page.evaluate(() => sessionStorage.removeItem("meerkat.token"));
    await page.reload();
    await page.getByRole("heading", { name: "Sign in" }).waitFor();
    await signIn();
  },
  async "a call is allowed from the inbox while the command line waits"() {
    await open("approvals");
    await text("Nothing waits for you").waitFor();
    const id = await session({ title: "Shopping" });
    const turn = meerkat("--json", "resume", "--attended", id, '@call test_ask {"name":"list","line":"milk"} @say Bought.');
    let printed = "";
    turn.stdout.on("data", (piece) => (printed += piece));
    // Behind all that it has printed.
    const ended = once(turn, "close");
    const card = page.locator(".card", { hasText: "test_ask" });
    await card.waitFor();
    assert.equal(await page.getByRole("link", { name: /Approvals/ }).locator(".count").textContent(), "1");
    await accessible("a call that waits");
    await picture("approvals");
    await card.getByRole("button", { name: "Allow once" }).focus();
    await page.keyboard.press("Enter");
    assert.deepEqual(await ended, [0, null]);
    assert.equal(JSON.parse(printed.trim().split("\n").at(-1)).text, "Bought.");
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
    await prompt.fill("@say Three.");
    await queue.click();
    const waiting = (words) => page.locator(".queued", { hasText: words });
    await waiting("Three.").getByRole("button", { name: "Run next" }).click();
    await page.locator(".queued").first().filter({ hasText: "Three." }).waitFor();
    await waiting("Three.").getByRole("button", { name: "Edit" }).click();
    await page.getByLabel("Prompt of the waiting turn").fill("@say Four.");
    await page.getByRole("button", { name: "Save" }).click();
    await waiting("Four.").waitFor();
    await waiting("Two.").getByRole("button", { name: "Cancel" }).click();
    await text("Left the queue: cancelled").waitFor();
    await page.getByRole("button", { name: "Interrupt", exact: true }).click();
    await text("Interrupted: requested").waitFor();
    await text("Four.").waitFor();
    await page.getByRole("button", { name: "Send", exact: true }).waitFor();
  },
  async "an image is pasted and a file dropped, and the model is shown them"() {
    const id = await session({ title: "Shown" });
    await open(`sessions/${id}`);
    const prompt = page.getByLabel("Prompt");
    const give = (type, name, media, bytes, beside) => prompt.evaluate((node, [type, name, media, bytes, beside]) => {
      const data = new DataTransfer();
      if (beside) data.setData("text/plain", beside);
      data.items.add(new File([new Uint8Array(bytes)], name, { type: media }));
      const field = type === "paste" ? "clipboardData" : "dataTransfer";
      const event = new Event(type, { bubbles: true, cancelable: true });
      Object.defineProperty(event, field, { value: data });
      node.dispatchEvent(event);
    }, [type, name, media, bytes, beside]);
    const png = [137, 80, 78, 71, 13, 10, 26, 10, 0, 0, 0, 13, 73, 72, 68, 82, 0, 0, 2, 128, 0, 0, 1, 224, 8, 2, 0, 0, 1];
    await give("paste", "shot.png", "image/png", png);
    // A picture of the text that is pasted.
    await give("paste", "cells.png", "image/png", png, "1\t2");
    await give("drop", "notes.txt", "", [68, 105, 103, 46]);
    await give("drop", "line.svg", "image/svg+xml", [60, 47, 62]);
    await give("drop", "wrong.txt", "text/plain", [65]);
    await page.locator(".attached p", { hasText: "wrong.txt" }).getByRole("button", { name: "Remove" }).click();
    await prompt.fill("@echo blocks");
    await page.keyboard.press("Enter");
    await page.locator(".answer", { hasText: "[File 1: notes.txt, text/plain, 4 bytes]" }).waitFor();
    await page.locator(".answer", { hasText: "[File 2: line.svg, text/plain, 3 bytes]" }).waitFor();
    const shown = page.locator(".item[data-type=turn_started] .prompt");
    await shown.getByText("Image: image/png, 640 x 480 pixels, 29 bytes").waitFor();
    await shown.getByText("File: notes.txt, text/plain, 4 bytes").waitFor();
    assert.equal(await shown.getByText("Image: image/png").count(), 1);
    assert.equal(await page.locator(".attached p").count(), 0);
  },
  async "a turn says how its model is asked, and what the model does not have is refused by its name"() {
    const id = await session({ title: "Asked" });
    await open(`sessions/${id}`);
    const prompt = page.getByLabel("Prompt");
    await page.locator("summary", { hasText: "Options" }).click();
    await page.getByLabel("Effort").selectOption("high");
    await page.getByLabel("Most tokens of an answer").fill("300");
    await page.getByLabel("Temperature").fill("0.5");
    await text("Options: effort high, max_output_tokens 300, temperature 0.5").waitFor();
    await accessible("options of a turn");
    await picture("options");
    await prompt.fill("@echo options");
    await page.keyboard.press("Enter");
    await page.locator(".answer", { hasText: '"effort":"high"' }).waitFor();
    // They are there for the next turn, and in another view.
    await page.getByRole("link", { name: "Events" }).click();
    await page.getByRole("link", { name: "Live" }).click();
    await text("Options: effort high, max_output_tokens 300, temperature 0.5").waitFor();
    // What a field cannot have is shown and not sent, also if the fields are closed.
    const summary = page.locator("summary", { hasText: "Options" });
    await summary.click();
    await page.getByLabel("Temperature").fill("5");
    await summary.click();
    await prompt.fill("@say Never.");
    await prompt.press("Enter");
    await page.locator("details.options[open]").waitFor();
    assert.ok(await page.getByLabel("Temperature").evaluate((field) => field === document.activeElement && !field.checkValidity()));
    assert.equal(await prompt.inputValue(), "@say Never.");
    await page.getByLabel("Temperature").fill("0.5");
    await page.getByLabel("Most tokens of an answer").fill("4000000");
    await prompt.press("Enter");
    await page.locator(".failure", { hasText: "options.max_output_tokens" }).waitFor();
    assert.equal(await prompt.inputValue(), "@say Never.");
    for (const field of ["Most tokens of an answer", "Temperature"]) await page.getByLabel(field).fill("");
    await page.getByLabel("Effort").selectOption("");
    await prompt.press("Enter");
    await page.locator(".answer", { hasText: "Never." }).waitFor();
    const { items } = await api("GET", `sessions/${id}/turns`);
    // The newest is the first.
    assert.deepEqual(items.map(({ options }) => options), [undefined, { max_output_tokens: 300, temperature: 0.5, effort: "high" }]);
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
    const fork = page.url().split("/").at(-1);
    await say(fork, "@say Another second.");
    await page.getByRole("link", { name: "Compare" }).click();
    const side = (name) => page.getByRole("region", { name });
    await side("This fork").getByText("Another second.", { exact: true }).waitFor();
    await side("Its parent").getByText("Second.", { exact: true }).waitFor();
    assert.equal(await page.locator(".sides").getByText("First.").count(), 0, "what both have is not compared");
    await accessible("compare");
    await picture("compare");
  },
  async "a compaction is a mark in the chart, with its receipt, and is undone there"() {
    const id = await session({ title: "A long research" });
    await say(id, "@long 30000");
    for (let turn = 1; turn < 7; turn += 1) await say(id, `@call test_huge {"bytes":${turn * 900}} @say Turn ${turn}. @usage in=${turn * 800} out=90 cached=${turn * 300}`);
    await open(`sessions/${id}/context`);
    const heights = () => page.locator(".chart > g:not(.mark)").evaluateAll((bars) => bars.map((bar) => bar.getBBox().height));
    await page.locator(".chart > g:not(.mark)").nth(12).waitFor();
    const before = await heights();
    assert.equal(before.length, 13, "a bar for each model call");
    const recorded = async () => (await api("GET", `sessions/${id}`)).last_seq;
    const seq = await recorded();
    await page.getByRole("button", { name: "Compact …" }).click();
    const dialog = page.locator("dialog");
    await dialog.getByText("Tokens after").waitFor();
    assert.equal(await recorded(), seq, "a preview records nothing");
    assert.deepEqual(await heights(), before, "and changes no figure");
    await accessible("dialog");
    await picture("dialog");
    await dialog.getByRole("button", { name: "Compact", exact: true }).click();
    const mark = page.locator(".mark");
    await mark.first().waitFor();
    await say(id, "@say Later.");
    await page.locator(".chart > g:not(.mark)").nth(13).waitFor();
    const after = await heights();
    assert.ok(after.at(-1) < after[12] / 2, `the first call after the compaction sees less: ${after}`);
    await mark.first().focus();
    await page.keyboard.press("Enter");
    await text("Messages that left").waitFor();
    await picture("context");
    await page.getByRole("button", { name: "Undo this compaction" }).click();
    await page.locator(".mark circle.compaction_undone").waitFor();
    await api("POST", `sessions/${id}/turns`, { prompt: "@say After the undoing.", budgets: { tokens: 5000 } });
    await page.locator(".chart > g:not(.mark)").nth(14).waitFor();
    const undone = await heights();
    assert.ok(undone.at(-1) > undone[13] * 2, `everything is back: ${undone}`);
    await open(`sessions/${id}/tokens`);
    await page.locator(".bar").nth(6).waitFor();
    assert.equal(await page.locator(".bar .budget").count(), 1, "the turn with a budget has its line");
    await picture("tokens");
    await open("");
    await page.locator(".session").first().waitFor();
    await picture("sessions");
    await open(`sessions/${id}/events`);
    await page.getByLabel("Kind of event").selectOption("compaction_undone");
    assert.equal(await page.locator(".events details:not([hidden])").count(), 1);
    await page.locator(".events summary").click();
    await picture("events");
    await context.grantPermissions(["clipboard-read", "clipboard-write"]);
    await page.getByRole("button", { name: "Copy as curl" }).click();
    await text("Copied.").waitFor();
    assert.match(await page.evaluate(() => navigator.clipboard.readText()), /curl -s .*since_seq=/);
  },
  async "memory finds what was said, opens it at its place, and forgets it"() {
    const id = await session({ title: "Colours" });
    await say(id, "@say The meerkats prefer ultramarine.");
    await remembered("ultramarine");
    await open("memory");
    await page.getByLabel("Search memory").fill("ultramarine");
    await page.locator("mark", { hasText: "ultramarine" }).first().waitFor();
    await picture("memory");
    await page.getByRole("link", { name: "Open" }).first().click();
    await page.locator(".item.found").waitFor();
    await page.goBack();
    await page.getByRole("button", { name: "Forget …" }).first().click();
    await page.locator("dialog").getByRole("button", { name: "Forget" }).click();
    await text("has forgotten").waitFor();
  },
  async "a call with a diff is decided in the session, and a file's name is text"() {
    const id = await session({ title: "A file", workspace: "site" });
    await open(`sessions/${id}`);
    const name = "<img src=x onerror=alert(1)> \u202egpj.txt";
    const turn = say(id, `@call write ${JSON.stringify({ path: name, content: "one\ntwo\n" })} @say Written.`);
    const card = page.locator(".call", { hasText: "write" });
    await card.locator(".diff .added", { hasText: "+two" }).waitFor();
    assert.equal(await text("Nothing was said yet").count(), 0);
    await picture("diff");
    // This server keeps no rules for a page, and says so; another one does.
    await card.getByRole("button", { name: "For this session" }).waitFor();
    assert.equal(await page.getByRole("button", { name: "Always" }).count(), 0);
    await page.route("**/v1/capabilities", async (route) => {
      const response = await route.fetch();
      await route.fulfill({ response, json: { ...(await response.json()), keeps_rules: true } });
    });
    await page.reload();
    await card.getByRole("button", { name: "Always" }).waitFor();
    await page.unroute("**/v1/capabilities");
    await page.reload();
    await card.getByRole("button", { name: "For this session" }).waitFor();
    assert.equal(await page.getByRole("button", { name: "Always" }).count(), 0);
    await card.getByRole("button", { name: "For this session" }).click();
    assert.equal((await turn).text, "Written.");
    const again = await say(id, `@call write ${JSON.stringify({ path: "b.txt", content: "b" })} @say Not asked.`);
    assert.equal(again.text, "Not asked.");
    await card.locator(".files .unseen", { hasText: "U+202E" }).waitFor();
    assert.equal(await page.locator("main img").count(), 0);
  },
  async "the head and every view of a session follow what others do"() {
    const id = await session({ title: "Followed" });
    await say(id, "@say First.");
    const isNow = (name) => page.locator(`h1 .state.${name}`).waitFor();
    for (const [turn, [tab, grown]] of [
      ["context", () => page.locator(".chart > g:not(.mark)")], ["tokens", () => page.locator("tbody tr")],
      ["events", () => page.locator("details[data-type=turn_started]")],
    ].entries()) {
      await open(`sessions/${id}/${tab}`);
      await grown().nth(turn).waitFor();
      assert.equal(await grown().count(), turn + 1, tab);
      await isNow("idle");
      const running = say(id, '@call test_echo {"text":"next"} @say More. @stall');
      await isNow("running");
      await text(`· ${turn + 2} turns`).waitFor();
      await grown().nth(turn + 1).waitFor();
      await api("POST", `sessions/${id}/interrupt`);
      await running;
      await isNow("idle");
    }
  },
  async "a failed session is seen in the list and in its head, is found, and is good again after a good turn"() {
    const id = await session({ title: "Unlucky" });
    await say(id, "@fail unauthorized").catch(() => {});
    await open("");
    const row = page.locator(".session", { hasText: "Unlucky" });
    await row.locator(".state.failed", { hasText: "failed: MODEL_UNAUTHORIZED" }).waitFor();
    await page.getByLabel("Which sessions").selectOption("idle");
    await page.getByLabel("Search").fill("unlucky");
    await text("No session is like that").waitFor();
    await page.getByLabel("Which sessions").selectOption("failed");
    await row.waitFor();
    await page.getByLabel("Search").fill("model_unauthorized");
    await row.waitFor();
    await accessible("a failed session in the list");
    await row.click();
    await page.locator("h1 .state.failed", { hasText: "failed: MODEL_UNAUTHORIZED" }).waitFor();
    await say(id, "@say Better.");
    await page.locator("h1 .state.idle").waitFor();
    await open("sessions?state=failed&q=unlucky");
    await text("No session is like that").waitFor();
  },
  async "a draft stays over other views, a refusal and what is written while it is sent"() {
    const id = await session({ title: "Drafted" });
    await open(`sessions/${id}`);
    const prompt = page.getByLabel("Prompt");
    await prompt.fill("Half a thou");
    await page.getByRole("link", { name: "Tokens" }).click();
    await text("No turn yet").waitFor();
    await page.getByRole("link", { name: "Approvals" }).click();
    await text("Nothing waits for you").waitFor();
    await page.goBack();
    await page.getByRole("link", { name: "Live" }).click();
    await prompt.waitFor();
    assert.equal(await prompt.inputValue(), "Half a thou");
    // The request is held until more is written.
    let release;
    const held = new Promise((resolve) => (release = resolve));
    const sent = page.waitForRequest("**/turns");
    await page.route("**/turns", async (route) => (await held, route.continue()));
    await prompt.fill("@say Sent once.");
    await page.keyboard.press("Enter");
    await page.keyboard.press("Enter");
    await sent;
    await prompt.fill("What comes next");
    release();
    await page.locator(".answer", { hasText: "Sent once." }).waitFor();
    await page.locator(".item .end").waitFor();
    assert.equal(await page.locator(".item[data-type=turn_started]").count(), 1);
    assert.equal(await prompt.inputValue(), "What comes next");
    await page.unroute("**/turns");
    await page.route("**/turns", (route) => route.abort("connectionrefused"));
    await page.keyboard.press("Enter");
    await page.locator(".notice", { hasText: "The server cannot be reached" }).waitFor();
    assert.equal(await prompt.inputValue(), "What comes next");
    await page.unroute("**/turns");
  },
  async "a reason that is being written stays when another call asks"() {
    const [one, other] = [await session({ title: "One" }), await session({ title: "Other" })];
    const asks = (id) => say(id, '@call test_ask {"name":"list","line":"tea"} @say Done.');
    const first = asks(one);
    await open("approvals");
    const card = (title) => page.locator(".card", { hasText: title });
    await card("One").getByLabel("Reason, which the model reads").fill("not before noon");
    const second = asks(other);
    await card("Other").waitFor();
    assert.equal(await card("One").getByLabel("Reason, which the model reads").inputValue(), "not before noon");
    for (const title of ["One", "Other"]) await card(title).getByRole("button", { name: "Deny" }).click();
    await Promise.all([first, second]);
    await text("Nothing waits for you").waitFor();
  },
  async "a session that is followed for long keeps nothing of calls that have left the page"() {
    const id = await session({ title: "Long followed" });
    await open(`sessions/${id}`);
    const devtools = await context.newCDPSession(page);
    await devtools.send("Performance.enable");
    const nodes = async () => {
      await devtools.send("HeapProfiler.collectGarbage");
      const { metrics } = await devtools.send("Performance.getMetrics");
      return metrics.find(({ name }) => name === "Nodes").value;
    };
    let turns = 0;
    const run = async (more) => {
      for (const end = turns + more; turns < end; turns += 1) {
        await say(id, `${'@call test_echo {"text":"an echo"} '.repeat(25)} @say Turn ${turns} is done.`);
      }
      await page.locator(".answer", { hasText: `Turn ${turns - 1} is done.` }).waitFor();
    };
    await run(25);
    const before = await nodes();
    await run(50);
    const after = await nodes();
    assert.ok(after < before * 1.5, `${before} nodes after 625 calls, ${after} after 1,875`);
    await devtools.detach();
  },
  async "a long output is shown in part, and whole on request"() {
    const id = await session({ title: "Long" });
    await say(id, '@call test_huge {"bytes":90000} @say Long.');
    await open(`sessions/${id}`);
    const output = page.locator(".output");
    const length = async () => (await output.textContent()).length;
    const all = output.getByRole("button", { name: /Show all/ });
    await all.waitFor();
    assert.ok((await length()) < 20000);
    await all.click();
    for (const more = output.getByRole("button", { name: /Show more/ }); await more.count(); ) await more.click();
    await page.waitForFunction(() => document.querySelector(".output").textContent.length >= 90000);
  },
  async "eight tabs share one stream, and each one follows"() {
    const titles = [...Array(8).keys()].map((number) => `Tab ${number}`);
    const ids = [];
    for (const title of titles) ids.push(await session({ title }));
    const streams = async () => {
      const metrics = await (await fetch(new URL("/metrics", base), { headers: { authorization: `Bearer ${token}` } })).text();
      return Number(metrics.match(/rest_streams_open (\d+)/)[1]);
    };
    const tabs = [];
    const until = async (wanted, what) => {
      const end = Date.now() + 60_000;
      let open = await streams();
      for (; open !== wanted && Date.now() < end; open = await streams()) await page.waitForTimeout(50);
      assert.equal(open, wanted, what);
    };
    for (const id of ids) {
      const tab = await context.newPage();
      watch(tab);
      await open("sessions", tab);
      await tab.locator(".session", { hasText: "Tab 7" }).waitFor();
      tabs.push([tab, id]);
    }
    await open("");
    await until(1, "idle tabs hold one stream");
    await page.goto("about:blank");
    await session({ title: "Seen by another tab" });
    await Promise.all(tabs.map(([tab]) => tab.locator(".session", { hasText: "Seen by another tab" }).waitFor()));
    await until(1, "the tab that held it is closed, and another one reads on");
    for (const [tab, id] of tabs) await open(`sessions/${id}`, tab);
    await until(4, "three sessions are streamed, the others read as the list says");
    await Promise.all(tabs.map(async ([tab, id], number) => {
      await say(id, `@say Answer ${number}.`);
      await tab.locator(".answer", { hasText: `Answer ${number}.` }).waitFor();
    }));
    const shared = await session({ title: "All together" });
    for (const [tab] of tabs) await open(`sessions/${shared}`, tab);
    await until(2, "one session in eight tabs is one stream");
    const turn = say(shared, "@say Streamed to all. @stall");
    await Promise.all(tabs.map(([tab]) => tab.locator(".live", { hasText: "Streamed to all." }).waitFor()));
    const late = await context.newPage();
    watch(late);
    await open(`sessions/${shared}`, late);
    await late.locator(".live", { hasText: "Streamed to all." }).waitFor();
    await late.close();
    await tabs[7][0].getByRole("button", { name: "Interrupt", exact: true }).click();
    await Promise.all(tabs.map(([tab]) => tab.getByText("Interrupted: requested").waitFor()));
    assert.equal((await turn).status, "interrupted");
    // A message behind a gap is not believed: what is between is read from the server.
    await tabs[7][0].evaluate(([name, scope]) => new BroadcastChannel(scope).postMessage({ name,
      message: { event: { seq: 1000, turn: null, type: "session_archived" } } }), [shared, base.href]);
    for (const [tab] of tabs.slice(0, 7)) await tab.close();
    await say(shared, "@say The last tab reads on.");
    await tabs[7][0].locator(".answer", { hasText: "The last tab reads on." }).waitFor();
    assert.deepEqual(await tabs[7][0].locator(".item[data-type=turn_started]").count(), 2, "every turn once");
    assert.equal(await tabs[7][0].locator(".item[data-type=session_archived]").count(), 0);
    await tabs[7][0].close();
  },
  async "offline, the page says so, and goes on when the network is back"() {
    await open("");
    await page.locator(".session").first().waitFor();
    await context.setOffline(true);
    await page.getByRole("button", { name: "New session" }).click();
    await page.locator(".notice", { hasText: "The server cannot be reached" }).waitFor();
    await context.setOffline(false);
    await session({ title: "Back again" });
    await page.locator(".session", { hasText: "Back again" }).waitFor();
  },
  async "the list is used by keyboard alone"() {
    await open("");
    await page.reload();
    await page.locator(".session").first().waitFor();
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.id), "skip");
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.id), "main");
    await page.getByLabel("Search").focus();
    await page.keyboard.type("back again");
    await page.getByRole("region", { name: "Sessions" }).focus();
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: /Back again/ }).waitFor();
  },
  async "hostile content is text everywhere"() {
    const evil = '<img src=x onerror="globalThis.pwned=1"><script>globalThis.pwned=1</script>';
    const id = await session({ title: `${evil} \u202edetrever`, labels: { [evil]: "</span><b>" } });
    const words = `[x](javascript:globalThis.pwned=1) [ok](https://example.com/\u202ex) ${evil} zero\u200bwidth \u202eflip`;
    await say(id, `@think ${evil} @call test_echo {"text":${JSON.stringify(evil)}} @say ${words}`);
    await say(id, `@call no_such_${"tool"} {"a":${JSON.stringify(evil)}} @say ${evil}`);
    await remembered("script");
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
  ...list,
  async "tools and health say what is there and what to do"() {
    // A turn starts the servers of tools.
    await say(await session({}), "@say Started.");
    await open("tools");
    await page.getByRole("rowheader", { name: "test_echo" }).waitFor();
    await page.getByRole("row", { name: /^absent failed .*no\/such\/program/ }).waitFor();
    await picture("tools");
    await open("sessions/01900000-0000-7000-8000-000000000001");
    await page.locator(".failure", { hasText: "SESSION_NOT_FOUND" }).waitFor();
    await accessible("failure");
    await picture("failure");
    await page.locator(".failure a").click();
    await text("ready").waitFor();
    await page.locator(".codes details[open] li", { hasText: "meerkat sessions list" }).first().waitFor();
    await page.getByLabel("Search error codes").fill("BUSY");
    await page.getByText("SESSION_BUSY").click();
    await page.locator(".codes details[open] li", { hasText: "Wait for the end" }).waitFor();
  },
  async "the doctor examines the server's data directory and says what to do"() {
    await open("health");
    const examine = page.getByRole("button", { name: "Examine the data directory" });
    await examine.click();
    await page.getByText(/^\d+ sessions with [\d,]+ records were read: nothing is wrong\.$/).waitFor();
    const set = JSON.parse(ran("--json", "config", "show")).items.find(({ key }) => key === "store.data_dir");
    chmodSync(join(set.value, "format"), 0o644);
    await examine.click();
    await page.locator(".finding", { hasText: "has mode 0644 and should have 0600" }).getByText("meerkat doctor --repair").waitFor();
    await accessible("finding");
    await picture("doctor");
    chmodSync(join(set.value, "format"), 0o600);
    await examine.click();
    await page.getByText("nothing is wrong.").waitFor();
  },
  async "two browsers and a command line agree on a session"() {
    const id = await session({ title: "Shared" });
    const other = await browser.newContext();
    const second = await other.newPage();
    watch(second);
    await signIn(second);
    for (const tab of [page, second]) await open(`sessions/${id}`, tab);
    await page.getByLabel("Prompt").fill("@say From the first browser.");
    await page.keyboard.press("Enter");
    await second.locator(".answer", { hasText: "From the first browser." }).waitFor();
    assert.match(ran("--json", "resume", id, "@say From the command line."), /From the command line/);
    await second.getByLabel("Prompt").fill("@say From the second browser.");
    await second.keyboard.press("Enter");
    await page.locator(".answer", { hasText: "From the second browser." }).waitFor();
    // The text is shown before the turn has ended.
    await page.locator(".item[data-type=turn_completed]").nth(2).waitFor();
    const { items } = await api("GET", `sessions/${id}/events?limit=1000`);
    const wanted = items.filter(({ type }) => /^turn_(started|completed)$/.test(type)).map(({ type, seq }) => `${seq} ${type}`);
    assert.equal(wanted.length, 6);
    for (const tab of [page, second]) {
      await tab.locator(".item[data-type=turn_completed]").nth(2).waitFor();
      const shown = tab.locator(".item[data-type=turn_started], .item[data-type=turn_completed]");
      assert.deepEqual(await shown.evaluateAll((found) => found.map(({ dataset }) => `${dataset.seq} ${dataset.type}`)), wanted);
    }
    await other.close();
  },
  async "axe finds nothing serious in any view, light and dark"() {
    const [{ session_id: id }] = (await api("GET", "sessions?limit=1000")).items.filter(({ title }) => title === "A long research");
    for (const scheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme: scheme });
      for (const place of ["", `sessions/${id}`, `sessions/${id}/context`, `sessions/${id}/tokens`, `sessions/${id}/events`,
        "approvals", "memory?q=turn", "tools", "health"]) {
        await open(place);
        await page.locator(SETTLED[place.split("/").length > 1 ? "session" : place.split("?")[0]]).first().waitFor();
        await accessible(`${scheme} ${place}`);
      }
    }
    await page.emulateMedia({ colorScheme: "light" });
  },
  async "pictures at three sizes, light and dark, have nothing beyond the edge"() {
    const found = (await api("GET", "sessions?limit=1000")).items;
    const id = found.find(({ title }) => title === "A long research").session_id;
    for (const [place, name] of [["", "hostile"], [`sessions/${id}`, "session"], [`sessions/${id}/context`, "window"], ["health", "health"]]) {
      await open(place);
      await picture(name);
    }
    await page.setViewportSize({ width: 1200, height: 800 });
  },
  async "a cookie that is gone leads to the sign-in page, in every tab"() {
    const other = await context.newPage();
    watch(other);
    await open("", other);
    await open("");
    await context.clearCookies();
    await page.getByRole("button", { name: "New session" }).click();
    await page.getByRole("heading", { name: "Sign in" }).waitFor();
    await other.getByRole("heading", { name: "Sign in" }).waitFor();
    await signIn();
    await other.getByRole("heading", { name: "Sessions", exact: true }).waitFor();
    await other.close();
  },
  async "an ended sign-in leads to the sign-in page"() {
    await open("");
    // Another tab signs out.
    const status = await page.evaluate(async () => {
      const headers = { "x-meerkat-console": localStorage.getItem("meerkat.secret") };
      return (await fetch("/console/sign-in", { method: "DELETE", headers })).status;
    });
    assert.equal(status, 200);
    await text("Your sign-in has ended.").waitFor();
    await page.getByRole("heading", { name: "Sign in" }).waitFor();
  },
};

// A single trial finds a signed-in browser, as the others leave it.
if (process.env.ONLY) await signIn();
await perform(trials);
