// The chat backend as a process of its own, which is killed, like meerkat, while a page waits for an answer.
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { Meerkat } from "meerkat-client";
import { afterEach, beforeEach, expect, test } from "vitest";
import { Door, meerkatServer } from "./meerkat-server.js";
import { Program } from "./processes.js";
import { PNG } from "./samples.js";

const server = meerkatServer();
let meerkat: Meerkat;
let backend: Program;
/** The backend's address, which stays. */
let door: Door;
let url: string;
beforeEach(async () => {
  meerkat = new Meerkat({ url: server.url, token: server.token, patience: 60_000 });
  door = new Door();
  url = `http://${await door.open()}`;
  await start();
});
afterEach(() => door.close());

async function start(): Promise<void> {
  backend = new Program(server, "src/chat");
  door.port = Number(/port: (\d+)/.exec((await backend.line())!)![1]);
}

async function killBackend(): Promise<void> {
  door.port = 0;
  await backend.kill();
}

async function killServer(): Promise<void> {
  await server.kill();
  await server.start();
}

async function created(): Promise<string> {
  const { chat } = (await (await fetch(`${url}/chats`, { method: "POST" })).json()) as { chat: string };
  return chat;
}

/** What a page does: it asks again, under the same key, until it has a whole answer. */
async function say(chat: string, message: object, see = (_text: string) => {}, isPatient = true): Promise<string> {
  for (;;) {
    let said = "";
    try {
      const answer = await fetch(`${url}/chats/${chat}/messages`, { method: "POST", body: JSON.stringify(message) });
      if (answer.status === 503) throw new TypeError("not now");
      for await (const piece of answer.body!.pipeThrough(new TextDecoderStream())) see((said += piece));
      return said;
    } catch (error) {
      if (!(error instanceof TypeError) || !isPatient) throw error;
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
  expect([wrong.status, await wrong.text()]).toEqual([400, expect.stringContaining("neither PNG")]);
  for (const message of [{ text: "hello" }, { key: "1" }]) {
    const half = await post(`/chats/${chat}/messages`, message);
    expect([half.status, await half.text()]).toEqual([400, expect.stringContaining("a key and a text")]);
  }
  expect(await say(chat, { key: "2", text: "@say Hm. @fail rejected" })).toMatch(/^Hm\.\n\[.+\]$/);
});

test.each(["meerkat", "both"])("an answer outlives a kill of %s", async (killed) => {
  const chat = await created();
  const text = '@say Before. @call test_sleep {"ms":600000} @say After.';
  let kills: Promise<void> | undefined;
  const kill = async () => {
    if (killed === "both") await killBackend();
    await killServer();
    if (killed === "both") await start();
  };
  const saying = say(chat, { key: "1", text }, (said) => {
    if (said === "Before.") kills ??= sleeping(chat, 0).then(kill);
  });
  expect(await saying).toBe("Before.After.");
  await kills;
  const events = (await meerkat.session(chat).events()).items;
  expect(events.filter((event) => event.type === "turn_started")).toHaveLength(2);
  // The same message again is the same answer.
  expect(await say(chat, { key: "1", text })).toBe("Before.After.");
  expect((await meerkat.session(chat).read()).last_seq).toBe(events.at(-1)!.seq);
});

/** Waits until a turn's tool sleeps. */
async function sleeping(chat: string, turn: number): Promise<void> {
  const events = meerkat.session(chat).follow();
  for await (const event of events) if (event.type === "tool_started" && event.turn === turn) return;
}

test("an answer outlives a kill of the backend", async () => {
  const chat = await created();
  const text = "@say Before. @stall";
  let kills: Promise<void> | undefined;
  let seen = "";
  const saying = say(chat, { key: "1", text }, (said) => {
    seen = said;
    if (said === "Before.") kills ??= killBackend();
  });
  await expect.poll(() => kills !== undefined, { timeout: 60_000 }).toBe(true);
  await kills;
  seen = "";
  await start();
  // The page has the text again, and the turn still runs.
  await expect.poll(() => seen, { timeout: 60_000 }).toBe("Before.");
  await meerkat.session(chat).interrupt({ turn: 0 });
  expect(await saying).toMatch(/^Before\.\n\[.+\]$/);
  const events = (await meerkat.session(chat).events()).items;
  expect(events.filter((event) => event.type === "turn_started")).toHaveLength(1);
});

test("a page gets the answer to its own message", async () => {
  const chat = await created();
  const text = (name: string) => `@say ${name}1. @call test_sleep {"ms":600000} @say ${name}2.`;
  // Both pages go away, and all is killed in each turn.
  for (const [turn, name] of ["A", "B"].entries()) {
    const page = expect(say(chat, { key: name, text: text(name) }, () => {}, false)).rejects.toThrow(TypeError);
    await sleeping(chat, turn);
    await killBackend();
    await page;
    await killServer();
    await start();
  }
  // Only the last turn can go on.
  expect(await say(chat, { key: "A", text: text("A") })).toMatch(/^A1\.\n\[.+\]$/);
  expect(await say(chat, { key: "B", text: text("B") })).toBe("B1.B2.");
  expect(await say(chat, { key: "A", text: text("A") })).toMatch(/^A1\.\n\[.+\]$/);
});

test("an answer that breaks off is no whole answer", async () => {
  const chat = await created();
  // In the middle of an answer, the server comes back without the chat.
  const lose = async () => {
    await server.kill();
    await rm(join(server.folder, "data"), { recursive: true });
    await server.start();
  };
  let losing: Promise<void> | undefined;
  const answer = await fetch(`${url}/chats/${chat}/messages`, {
    method: "POST",
    body: JSON.stringify({ key: "1", text: "@say Before. @stall" }),
  });
  const read = async () => {
    let said = "";
    for await (const piece of answer.body!.pipeThrough(new TextDecoderStream())) {
      said += piece;
      if (said === "Before.") losing ??= lose();
    }
    return said;
  };
  await expect(read()).rejects.toThrow(TypeError);
  await losing;
});
