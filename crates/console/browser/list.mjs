// Trials of the list of sessions, and of the keys.

import assert from "node:assert/strict";
import { accessible, api, browser, open, page, picture, say, session, signIn, text, watch } from "./harness.mjs";

const rowOf = (title) => page.locator(".session", { hasText: title });
/** What has the focus: the text of its row, or its name. */
const focused = () => page.evaluate(() => {
  const { activeElement: node } = document;
  return node.closest(".row")?.querySelector(".title").textContent ?? node.getAttribute("aria-label") ?? node.id;
});

export const list = {
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
  async "a click on a label shows the sessions that have it, and no others, together with the other filters"() {
    await session({ title: "Painted red", labels: { paint: "dark red" } });
    await session({ title: "Painted redder", labels: { paint: "dark red 2" } });
    await open("sessions?q=painted");
    await rowOf("Painted redder").waitFor();
    await rowOf(/Painted red(?!d)/).getByRole("link", { name: "paint: dark red", exact: true }).click();
    const chosen = page.getByRole("link", { name: "Label paint: dark red: show sessions with any label" });
    await chosen.waitFor();
    assert.deepEqual(await page.locator(".session .title").allTextContents(), ["Painted red"]);
    assert.equal(await page.getByLabel("Search").inputValue(), "painted");
    await accessible("a list with a label");
    await picture("label");
    await page.reload();
    await chosen.click();
    await rowOf("Painted redder").waitFor();
    // The rest of the row is still the way into its session.
    await rowOf("Painted redder").locator(".facts").click({ force: true });
    await page.getByRole("heading", { name: /Painted redder/ }).waitFor();
  },
  async "the list shows what changed within a time, and leads on to what was said"() {
    await session({ title: "Just now" });
    // A browser of its own, whose clock is two hours ahead.
    const other = await browser.newContext();
    const tab = await other.newPage();
    watch(tab);
    await signIn(tab);
    await tab.clock.setFixedTime(Date.now() + 2 * 3_600_000);
    await open("sessions?q=just+now", tab);
    const row = tab.locator(".session", { hasText: "Just now" });
    await row.waitFor();
    await tab.getByLabel("When they changed").selectOption("In the last hour");
    await tab.getByText("No session is like that").waitFor();
    await tab.getByLabel("When they changed").selectOption("In the last day");
    await row.waitFor();
    assert.match(tab.url(), /within=24/);
    await tab.getByRole("link", { name: "Search what was said" }).click();
    await tab.getByRole("heading", { name: "Memory" }).waitFor();
    assert.equal(await tab.getByLabel("Search memory").inputValue(), "just now");
    await other.close();
  },
  async "keys move, search, open and say what they are, and the tab's title says how many wait"() {
    await session({ title: "Keyed 1", labels: { keyed: "yes" } });
    await session({ title: "Keyed 2", labels: { keyed: "yes" } });
    await open("tools");
    await page.keyboard.press("/");
    await page.getByRole("heading", { name: "Sessions", exact: true }).waitFor();
    assert.equal(await focused(), "Search");
    await page.keyboard.type("keyed j/?");
    assert.equal(await page.getByLabel("Search").inputValue(), "keyed j/?", "a field gets what is typed");
    await page.getByLabel("Search").fill("keyed");
    await rowOf("Keyed 1").waitFor();
    await page.getByRole("region", { name: "Sessions" }).focus();
    const order = [];
    for (const key of ["j", "j", "j", "k"]) {
      await page.keyboard.press(key);
      order.push(await focused());
    }
    assert.deepEqual(order, ["Keyed 2", "Keyed 1", "Keyed 1", "Keyed 2"]);
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: /Keyed 2/ }).waitFor();
    await page.keyboard.press("?");
    await page.getByRole("dialog", { name: "Keys" }).waitFor();
    await accessible("the keys");
    await picture("keys");
    await page.getByRole("button", { name: "Close" }).click();
    assert.match(await page.title(), /^Keyed 2 · meerkat$/);
  },
  async "the key a allows the call that has the focus, and no other"() {
    await open("approvals");
    await text("Nothing waits for you").waitFor();
    const [first, second] = [await session({ title: "Ask 1" }), await session({ title: "Ask 2" })];
    const turns = [say(first, '@call test_ask {"name":"list","line":"tea"} @say One.')];
    const card = (title) => page.locator(".card", { hasText: title });
    await card("Ask 1").waitFor();
    turns.push(say(second, '@call test_ask {"name":"list","line":"rum"} @say Two.'));
    await card("Ask 2").waitFor();
    await page.waitForFunction(() => document.title === "(2) Approvals · meerkat");
    // Nothing has the focus, so nothing is allowed; typed into the reason, it is a letter.
    await page.keyboard.press("a");
    const reason = card("Ask 1").getByLabel("Reason, which the model reads");
    await reason.fill("");
    await reason.press("a");
    assert.equal(await reason.inputValue(), "a");
    assert.equal((await api("GET", "approvals")).items.length, 2);
    await reason.fill("");
    await page.locator("#main").focus();
    const isReached = () => card("Ask 2").evaluate((node) => node === document.activeElement);
    for (let presses = 0; presses < 2 && !(await isReached()); presses += 1) await page.keyboard.press("j");
    assert.ok(await isReached(), "j goes over both cards");
    await page.keyboard.press("a");
    assert.equal((await turns[1]).text, "Two.");
    await card("Ask 2").waitFor({ state: "detached" });
    assert.deepEqual((await api("GET", "approvals")).items.map(({ session_id: id }) => id), [first]);
    await page.waitForFunction(() => document.title === "(1) Approvals · meerkat");
    await card("Ask 1").getByRole("button", { name: "Deny" }).click();
    await turns[0];
  },
};
