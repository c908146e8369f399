// Runs every part of the tour against a server.
import { existsSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Meerkat, MeerkatError, type MeerkatEvent, type Session, tool, type ToolOutput } from "meerkat-client";
import { beforeEach, expect, test } from "vitest";
import * as tour from "../src/tour.js";
import { meerkatServer } from "./meerkat-server.js";
import { PNG } from "./samples.js";

const server = meerkatServer();
let meerkat: Meerkat;
let session: Session;
beforeEach(async () => {
  meerkat = new Meerkat(server);
  session = await tour.create(meerkat, "A tour");
});

async function kinds(): Promise<string[]> {
  return (await session.events()).items.map((event) => event.type);
}

test("create", async () => {
  expect(await session.read()).toMatchObject({ title: "A tour", labels: { app: "tour" }, turn_count: 0 });
});

test("ask", async () => {
  expect(await tour.ask(session, "@say Lima.")).toBe("Lima.");
  await expect(tour.ask(session, "@fail rejected")).rejects.toThrow("refused");
});

test("streamed text comes in pieces", async () => {
  // The answer cannot be complete: the model never ends it.
  let said = "";
  const status = await tour.streamed(session, "@say Wait for it. @stall", (piece) => {
    said += piece;
    if (said === "Wait for it.") void session.interrupt({ turn: 0 });
  });
  expect([status, said]).toEqual(["interrupted", "Wait for it."]);
});

test.each([
  ["blocks of one kind", "@say A @say B @say C", "ABC"],
  ["a call between texts", "@say A @say B @call nope {} @say C", "ABC"],
  ["reasoning between texts", "@say A @think Hm. @say B @think Hm. @say C", "ABC"],
  ["characters that mark a beginning", "@say \\u{feff}x @chunks 1 @say \\u{feff}y", "\ufeffx\ufeffy"],
])("text comes once: %s", async (_, prompt, text) => {
  let said = "";
  await session.run(prompt, { onText: (piece) => (said += piece) });
  expect(said).toBe(text);
  // The stored texts are the same.
  let stored = "";
  for (const event of (await session.events()).items) {
    if (event.type !== "assistant_message") continue;
    for (const block of event.blocks) if (block.type === "text") stored += block.text;
  }
  expect(stored).toBe(text);
});

test("large text between small ones comes once", async () => {
  let said = "";
  await session.run("@say AAA @long 200000 @say ZZZ", { onText: (piece) => (said += piece) });
  expect([said.length, said.slice(0, 3), said.slice(-3)]).toEqual([200_006, "AAA", "ZZZ"]);
});

test("text is not shown again when a stream that was left is finished", async () => {
  let said = "";
  const stream = session.stream("@say One. @stall", { onText: (piece) => (said += piece) });
  for await (const event of stream) if (event.type === "text_delta" && said === "One.") break;
  await session.interrupt({ turn: 0 });
  expect((await stream.finished()).status).toBe("interrupted");
  expect(said).toBe("One.");
});

test("watch", async () => {
  expect(await tour.watch(session, '@call test_echo {"text":"x"} @say Done.')).toEqual([
    "test_echo succeeded",
    "end_turn",
    "Done.",
  ]);
});

test.each([
  ['{"city":"Oslo"}', '{"city":"Oslo","celsius":21}'],
  ['{"city":"Oslo","unit":"fahrenheit"}', '{"city":"Oslo","fahrenheit":70}'],
  ['{"city":"Atlantis"}', "There is no weather station."],
])("a tool with %s", async (input, output) => {
  expect(await tour.withTools(session, `@call get_weather ${input} @echo last_result`)).toContain(output);
  const outcomes = (await session.events()).items.filter((event) => event.type === "call_answered");
  expect(outcomes.map((event) => event.outcome)).toEqual([input.includes("Atlantis") ? "failed" : "succeeded"]);
});

test("calls of a message run beside each other", async () => {
  // Each waits for the other.
  let meet = () => {};
  const both = new Promise<void>((resolve) => {
    meet = resolve;
  });
  let arrived = 0;
  const pair = tool({ name: "meet", description: "Meets.", input_schema: { type: "object" } }, async () => {
    if (++arrived === 2) meet();
    await both;
    return "met";
  });
  const result = await session.run("@call meet {} @call meet {} @echo last_result", { tools: [pair] });
  expect([result.text, result.tool_calls]).toEqual(["last_result: met", 2]);
});

test("what a tool returns", async () => {
  const returns = async (value: ToolOutput) => {
    const any = tool({ name: "any", description: "Any.", input_schema: { type: "object" } }, () => value);
    return (await session.run("@call any {} @echo last_result", { tools: [any] })).text;
  };
  expect(await returns("a text")).toBe("last_result: a text");
  expect(await returns({ n: [1, null] })).toBe('last_result: {"n":[1,null]}');
  expect(await returns(null)).toBe("last_result: null");
  expect(await returns([])).toBe("last_result: []");
  expect(await returns(["a"])).toBe('last_result: ["a"]');
  expect(
    await returns([
      { type: "text", text: "one" },
      { type: "text", text: "two" },
    ]),
  ).toMatch(/one\s+two/);
  expect(await returns({ type: "image", media_type: "image/png", data: PNG.toString("base64") })).toContain(
    "image/png",
  );
  // The server refuses it, and the model reads why.
  expect(await returns({ type: "image", media_type: "image/png", data: "AAAA" })).toMatch(/INVALID_REQUEST.*content/);
  expect(await returns(1n as never)).toContain("BigInt");
});

test("a picture and a file", async () => {
  const [picture, notes] = [join(server.folder, "dot.png"), join(server.folder, "notes.md")];
  await writeFile(picture, PNG);
  await writeFile(notes, "# Buy milk");
  const text = await tour.look(session, picture, notes);
  expect(text).toMatch(/dot|image\/png/);
  expect(text).toContain("notes.md, text/markdown");
  expect(text).toContain("# Buy milk");
});

test("JSON by a schema", async () => {
  expect(await tour.extract(session, '@json {"city":"Bern","people":134591}')).toEqual({
    city: "Bern",
    people: 134591,
  });
  // A wrong answer goes back to the model.
  expect(await tour.extract(session, '@json {} @step @json {"city":"Bern","people":1}')).toMatchObject({ people: 1 });
  expect(await tour.extract(session, "@say no JSON")).toBeNull();
});

test("a schema with a name, and without repairs", async () => {
  const schema = { type: "object", properties: { n: { type: "integer" } }, required: ["n"] };
  const output = { schema, name: "count", repairs: 0 };
  expect((await session.run("@echo output @json {}", { output })).text).toContain("count");
  // The schema in it gives the output its type.
  const typed = await session.run('@json {"n":1}', {
    output: { schema: { type: "object", properties: { n: { type: "integer" } }, required: ["n"] }, repairs: 0 },
  });
  const n: number = typed.output!.n;
  expect(n).toBe(1);
  const result = await session.run('@json {} @step @json {"n":1}', { output });
  expect(result).toMatchObject({ status: "failed", output: null, error: { code: "OUTPUT_INVALID" } });
});

test.each([
  ["approve", true],
  ["deny", false],
] as const)("%s", async (decision, runs) => {
  const prompt = `@call test_ask {"name":"${decision}","line":"milk"} @say Done.`;
  expect(await tour.approve(session, prompt, decision)).toEqual([`test_ask {"name":"${decision}","line":"milk"}`]);
  expect(existsSync(join(server.folder, "tools", decision))).toBe(runs);
});

test("a decision with a reason and an answer to a form", async () => {
  const asked: unknown[] = [];
  const schema = JSON.stringify({ type: "object", properties: { size: { type: "integer" } }, required: ["size"] });
  const prompt = `@call test_form ${JSON.stringify({ message: "How large?", schema })} @echo last_result`;
  const result = await session.run(prompt, {
    onApproval: ({ form }) => {
      asked.push(form?.message);
      return form ? { decision: "approve", answer: { size: 7 } } : { decision: "approve" };
    },
  });
  expect(asked.at(-1)).toBe("How large?");
  expect(result.text).toContain('"size":7');
  const denied = await session.run('@call test_ask {"name":"a","line":"b"} @echo last_result', {
    onApproval: () => ({ decision: "deny", reason: "not on a Friday" }),
  });
  expect(denied.text).toContain("not on a Friday");
});

test("options and cost", async () => {
  const text = await tour.careful(session, "@echo options @usage in=10 out=3");
  expect(text).toMatch(/"max_output_tokens":500.* 3 tokens, unknown$/);
  expect(text).toContain('"temperature":0.2');
});

test("steering", async () => {
  const gate = tool({ name: "gate", description: "Waits.", input_schema: { type: "object" } }, async () => {
    steered = tour.steer(session, "@echo messages");
    for await (const event of session.follow()) if (event.type === "turn_steered") break;
    return "open";
  });
  let steered: Promise<string> | undefined;
  const result = await session.run("@call gate {} @say Not this.", { tools: [gate] });
  // The prompt, the call, its result, the steered text.
  expect(result.text).toBe("messages: 4");
  expect(await steered).toBe("messages: 4");
});

test("a turn that waits, and one that is taken out of the queue", async () => {
  const second: MeerkatEvent[] = [];
  const read = async () => {
    for await (const event of session.stream("@say Second.", { policy: "queue" })) second.push(event);
  };
  let others: Promise<unknown> | undefined;
  for await (const event of session.stream("@say First. @stall")) {
    if (event.type !== "turn_started") continue;
    others = Promise.allSettled([read(), session.run("@say Never.", { policy: "queue" })]);
    await expect.poll(async () => (await session.queue()).items.length, { timeout: 60_000 }).toBe(2);
    const never = (await session.queue()).items.find((item) => item.prompt === "@say Never.");
    await session.cancelQueued({ turn: never!.turn });
    await session.interrupt({ turn: event.turn! });
  }
  expect(await others).toMatchObject([{ status: "fulfilled" }, { reason: { code: "TURN_INTERRUPTED" } }]);
  // Nothing of the turn before it.
  expect(new Set(second.map((event) => event.turn)).size).toBe(1);
  const kinds = second.filter((event) => "seq" in event).map((event) => event.type);
  expect(kinds).toEqual(["turn_queued", "turn_started", "assistant_message", "turn_completed"]);
});

test("the same key", async () => {
  expect(await tour.twice(session)).toBe(1);
  const other = session.run("@say Other.", { key: "order-17" });
  await expect(other).rejects.toMatchObject({ code: "IDEMPOTENCY_CONFLICT", status: 409, retryable: false });
  // A session has keys as well.
  const [one, two] = [await meerkat.session({}, { key: "k" }), await meerkat.session({}, { key: "k" })];
  expect(two.id).toBe(one.id);
});

test("since", async () => {
  await session.run("@say Hello.");
  expect(await tour.since(session, 2)).toEqual([3, 4]);
  await expect(tour.since(session, 99)).rejects.toMatchObject({ code: "CURSOR_OUT_OF_RANGE" });
});

test("follow ends with the session", async () => {
  await session.run("@say Hello.");
  const seen: string[] = [];
  await tour.follow(session, 0, (event) => {
    seen.push(event.type);
    if (event.type === "turn_completed") void session.delete();
  });
  expect(seen).toEqual(["session_created", "turn_started", "assistant_message", "turn_completed", "session_deleted"]);
});

test("interrupt", async () => {
  for await (const event of session.stream("@stall")) {
    if (event.type === "turn_started") expect(await tour.interrupt(session, event.turn!)).toBe(true);
  }
  expect((await kinds()).at(-1)).toBe("turn_interrupted");
  expect(await tour.interrupt(session, 0)).toBe(false);
});

test("resume", async () => {
  await session.run('@call test_ask {"name":"r","line":"x"} @say After.', {
    onApproval: () => void session.interrupt({ turn: 0 }),
  });
  let said = "";
  const result = await session.resume({ onText: (piece) => (said += piece) });
  expect([result.status, result.text, said]).toEqual(["completed", "After.", "After."]);
  await expect(session.resume()).rejects.toBeInstanceOf(MeerkatError);
});

test("fork", async () => {
  await session.run("@say One.");
  await session.run("@say Two.");
  expect((await (await tour.fork(meerkat, session, 0)).read()).turn_count).toBe(1);
});

test("history and search", async () => {
  await session.run("@say The capital of Peru is Lima.");
  expect(await tour.said(session)).toEqual(["user", "assistant"]);
  // A search waits two seconds for what was just said; on a busy machine that may be too short.
  const found = async () => (await tour.search(meerkat, "capital of Peru")).join("\n");
  await expect.poll(found, { timeout: 60_000 }).toContain("Lima");
});

test("a text too large for an event", async () => {
  let said = "";
  const { text } = await session.run("@chunks 50000 @long 3000000", { onText: (piece) => (said += piece) });
  expect(said).toHaveLength(3_000_000);
  expect(text).toBe(said);
  const answer = (await session.events()).items.find((event) => event.type === "assistant_message");
  const body = answer!.blocks[0]!.text!;
  expect(body).toBeTypeOf("object");
  expect(await session.text(body)).toBe(said);
});

test("operations with a query, a body of bytes, and a stream of bytes", async () => {
  await session.run("@say Kept.");
  const bundle = new Uint8Array(await new Response(await session.exportSession()).arrayBuffer());
  const { sessions } = await meerkat.importBundle({ new_ids: true, body: bundle });
  const copy = meerkat.session(sessions[0]!.session_id);
  expect(copy.id).not.toBe(session.id);
  expect((await copy.read()).turn_count).toBe(1);
  const marked = await meerkat.session({ labels: { "odd key": "a&b=ü" } });
  expect((await meerkat.list({ labels: { "odd key": "a&b=ü" } })).items.map((item) => item.session_id)).toEqual([
    marked.id,
  ]);
  await session.remind({ kind: "custom:style", text: "Be brief." });
  expect((await session.reminders()).items).toMatchObject([{ text: "Be brief." }]);
  expect(await session.compact({ preview: true })).toMatchObject({ compaction: null, reminders: 1 });
});

test("errors by code", async () => {
  const explained = async (session: Session) => {
    const error = await session.run("hello").catch((error: unknown) => error);
    expect(error).toBeInstanceOf(MeerkatError);
    return tour.explain(error as MeerkatError);
  };
  expect(await explained(meerkat.session("01900000-0000-7000-8000-000000000001"))).toContain("was deleted");
  const stranger = new Meerkat({ url: server.url, token: "a-wrong-token-of-some-length" });
  expect(await explained(stranger.session(session.id))).toBe("The token is wrong.");
  for await (const event of session.stream("@stall")) {
    if (event.type !== "turn_started") continue;
    // A busy session refuses at once, although its error may pass.
    expect(await explained(session)).toContain("A turn is running");
    await session.interrupt({ turn: event.turn! });
  }
});
