// The chat backend as a process of its own, which is killed, like meerkat, while a page waits for an answer.
import { Meerkat } from "meerkat-client";
import { beforeEach, expect, test } from "vitest";
import { meerkatServer } from "./meerkat-server.js";
import { Program } from "./processes.js";
import { PNG } from "./samples.js";

const server = meerkatServer();
let meerkat: Meerkat;
let backend: Program;
let url: string;
beforeEach(async () => {
  meerkat = new Meerkat({ ...server, patience: 60_000 });
  await start();
});

async function start(port = "0"): Promise<void> {
  backend = new Program(server, "src/chat", [], port);
  url = `http://127.0.0.1:${/port: (\d+)/.exec((await backend.line())!)![1]}`;
}

async function created(): Promise<string> {
  const { chat } = (await (await fetch(`${url}/chats`, { method: "POST" })).json()) as { chat: string };
  return chat;
}

/** What a page does: it asks again, under the same key, until it has a whole answer. */
async function say(chat: string, message: object, see = (_text: string) => {}): Promise<string> {
  for (;;) {
    let said = "";
    try {
      const answer = await fetch(`${url}/chats/${chat}/messages`, { method: "POST", body: JSON.stringify(message) });
      if (answer.status === 503) throw new TypeError("not now");
      for await (const piece of answer.body!.pipeThrough(new TextDecoderStream())) see((said += piece));
      return said;
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

test("a tool, a picture and a schema", async () => {
  const chat = await created();
  const script = '@say Let me see. @call find_order {"number":"17"} @echo last_result @echo blocks';
  const said = await say(chat, { key: "1", text: script, picture: PNG.toString("base64") });
  expect(said).toContain("Let me see.last_result: sent on Monday");
  expect(said).toContain("image/png");
  const text = '@json {"title":"Order 17","is_solved":true}';
  const answer = await fetch(`${url}/chats/${chat}/summary`, {
    method: "POST",
    body: JSON.stringify({ key: "2", text }),
  });
  expect(await answer.json()).toEqual({ title: "Order 17", is_solved: true });
  const history = (await (await fetch(`${url}/chats/${chat}/messages`)).json()) as { items: { role: string }[] };
  const roles = history.items.map((item) => item.role);
  expect(roles).toEqual(["user", "assistant", "tool_results", "assistant", "user", "assistant"]);
});

test("errors reach the page", async () => {
  const post = (path: string, body: object) => fetch(`${url}${path}`, { method: "POST", body: JSON.stringify(body) });
  const gone = await post("/chats/01900000-0000-7000-8000-000000000001/messages", { key: "1", text: "hello" });
  expect([gone.status, await gone.text()]).toEqual([404, expect.stringContaining("SESSION_NOT_FOUND")]);
  const chat = await created();
  const wrong = await post(`/chats/${chat}/messages`, { key: "1", text: "hello", picture: "AAAA" });
  expect(await wrong.text()).toContain("neither PNG");
  expect(await say(chat, { key: "2", text: "@say Hm. @fail rejected" })).toMatch(/^Hm\.\n\[.+\]$/);
});

test.each(["meerkat", "the backend", "both"])("an answer outlives a kill of %s", async (killed) => {
  const chat = await created();
  const ms = killed === "the backend" ? 3_000 : 600_000;
  const text = `@say Before. @call test_sleep {"ms":${ms}} @say After.`;
  let kills: Promise<void> | undefined;
  const kill = async () => {
    if (killed !== "meerkat") await backend.kill();
    if (killed !== "the backend") await server.kill();
    if (killed !== "the backend") await server.start();
    if (killed !== "meerkat") await start(new URL(url).port);
  };
  const running = (async () => {
    for await (const event of meerkat.session(chat).follow()) if (event.type === "tool_started") return;
  })();
  const saying = say(chat, { key: "1", text }, (said) => {
    if (said === "Before.") kills ??= running.then(kill);
  });
  expect(await saying).toBe("Before.After.");
  await kills;
  const events = (await meerkat.session(chat).events()).items;
  expect(events.filter((event) => event.type === "turn_started")).toHaveLength(killed === "the backend" ? 1 : 2);
  // The same message again is the same answer.
  expect(await say(chat, { key: "1", text })).toBe("Before.After.");
  expect((await meerkat.session(chat).read()).last_seq).toBe(events.at(-1)!.seq);
});
