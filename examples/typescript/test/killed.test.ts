// The program, the server, or both are killed while a call waits. The call's answer reaches the model once.
import { Meerkat, type Session, tool } from "meerkat-client";
import { beforeEach, expect, test } from "vitest";
import { meerkatServer } from "./meerkat-server.js";
import { Program } from "./processes.js";

const PROMPT = '@say One moment. @call pay {"amount":5} @echo last_result';

const server = meerkatServer();
let meerkat: Meerkat;
let session: Session;
beforeEach(async () => {
  meerkat = new Meerkat({ ...server, patience: 60_000 });
  session = await meerkat.session();
});

const worker = () => new Program(server, "src/worker", [session.id, "order-17", PROMPT]);

/** What the journal has of the call: asked once, answered once, with this receipt. */
async function expectOneAnswer(receipt: string): Promise<void> {
  const events = (await session.events()).items.filter((event) => event.turn !== null);
  expect(events.map((event) => event.type)).toEqual([
    "client_tools_changed",
    "turn_started",
    "assistant_message",
    "call_requested",
    "call_answered",
    "tool_finished",
    "assistant_message",
    "turn_completed",
  ]);
  const output = JSON.stringify({ amount: 5, receipt });
  expect(events.filter((event) => event.type === "tool_finished")).toMatchObject([{ outcome: "succeeded", output }]);
  expect(events.findLast((event) => event.type === "assistant_message")!.blocks).toMatchObject([
    { text: `last_result: ${output}` },
  ]);
}

test.each(["the program", "the server", "both"])("a call that waits outlives a kill of %s", async (killed) => {
  let program = worker();
  const first = await program.line();
  expect(first).toMatch(/^paying 5 call_/);
  if (killed !== "the program") await server.kill();
  if (killed !== "the server") await program.kill();
  if (killed !== "the program") await server.start();
  if (killed !== "the server") {
    program = worker();
    // The second program has the same call.
    expect(await program.line()).toBe(first);
  }
  program.write("R-1");
  expect(await program.line()).toBe('completed last_result: {"amount":5,"receipt":"R-1"}');
  await expectOneAnswer("R-1");
});

test("an answer that the server cannot take yet is sent again", async () => {
  const program = worker();
  await program.line();
  await server.kill();
  program.write("R-2");
  const answers = () => server.door.missed.filter((line) => /^POST .*\/calls\/call_/.test(line));
  await expect.poll(answers, { timeout: 60_000 }).not.toEqual([]);
  await server.start();
  expect(await program.line()).toContain('completed last_result: {"amount":5,"receipt":"R-2"}');
  await expectOneAnswer("R-2");
});

test("a program that comes when all is done gets the result", async () => {
  const program = worker();
  await program.line();
  program.write("R-3");
  const done = await program.line();
  await server.kill();
  await server.start();
  // It asks for no second payment.
  expect(await worker().line()).toBe(done);
  await expectOneAnswer("R-3");
});

test("a server that is killed in a tool of its own interrupts the turn, and the turn goes on", async () => {
  const kinds: string[] = [];
  const stream = session.stream('@call test_sleep {"ms":600000} @say Done.');
  for await (const event of stream) {
    // Live events, such as a tool's progress, come only if there is time.
    if ("seq" in event) kinds.push(event.type);
    if (event.type !== "tool_started") continue;
    await server.kill();
    await server.start();
  }
  expect(kinds.slice(-3)).toEqual(["tool_started", "tool_finished", "turn_interrupted"]);
  expect(stream.result).toMatchObject({ status: "interrupted", error: { details: { reason: "process_ended" } } });
  expect(await session.resume()).toMatchObject({ status: "completed", text: "Done." });
});

test("calls that wait are served until the program stops", async () => {
  // Another program has started the turn, and has left.
  const definition = { name: "pay", description: "Pays.", input_schema: { type: "object" } } as const;
  await session.startTurn({ prompt: PROMPT, client_tools: [definition] });
  await expect.poll(async () => (await session.calls()).items.length, { timeout: 60_000 }).toBe(1);

  const stop = new AbortController();
  const paid: unknown[] = [];
  const pay = tool(definition, (input) => {
    paid.push(input);
    return { amount: 5, receipt: `R-${paid.length}` };
  });
  const serving = meerkat.session(session.id).answerCalls([pay], { signal: stop.signal });
  // A second program never answers.
  const other = tool(definition, () => new Promise(() => {}));
  const slow = new Meerkat({ ...server }).session(session.id).answerCalls([other], { signal: stop.signal });
  for await (const event of session.follow()) if (event.type === "turn_completed") break;
  await expectOneAnswer("R-1");

  // It goes on over a kill of the server, with calls that come.
  await server.kill();
  await server.start();
  await session.startTurn({ prompt: PROMPT });
  for await (const event of session.follow()) if (event.type === "turn_completed" && event.turn === 1) break;
  expect(paid).toEqual([{ amount: 5 }, { amount: 5 }]);
  stop.abort();
  await Promise.all([serving, slow]);
});

test("a call for another program's tool is left alone", async () => {
  const other = { name: "other", description: "Not here.", input_schema: { type: "object" } } as const;
  const mine = tool({ ...other, name: "mine" }, () => "from here");
  const remote = tool(other, () => "from elsewhere");
  await session.startTurn({ prompt: "@call mine {} @call other {} @echo last_result", client_tools: [mine, other] });
  const stop = new AbortController();
  const serving = session.answerCalls([mine], { signal: stop.signal });
  for await (const event of session.follow()) if (event.type === "call_answered") break;
  const open = (await session.calls()).items;
  expect(open.map((call) => call.name)).toEqual(["other"]);
  const elsewhere = meerkat.session(session.id).answerCalls([remote], { signal: stop.signal });
  for await (const event of session.follow()) if (event.type === "turn_completed") break;
  stop.abort();
  await Promise.all([serving, elsewhere]);
  const outputs = (await session.events()).items.filter((event) => event.type === "tool_finished");
  expect(outputs.map((event) => event.output)).toEqual(["from here", "from elsewhere"]);
});

test("a function is stopped when its call is over", async () => {
  const input_schema = { type: "object" } as const;
  let stopped = () => {};
  const isStopped = new Promise<void>((resolve) => {
    stopped = resolve;
  });
  // The deadline passes, and the turn goes on.
  const slow = tool({ name: "slow", description: "Waits.", input_schema, timeout_ms: 100 }, async (_, { signal }) => {
    await new Promise((resolve) => signal.addEventListener("abort", resolve));
    stopped();
  });
  const next = tool({ name: "next", description: "Waits for the other one.", input_schema }, async () => {
    await isStopped;
    return "stopped";
  });
  const result = await session.run("@call slow {} @step @call next {} @echo last_result", { tools: [slow, next] });
  expect(result.text).toBe("last_result: stopped");
});

test("a function is stopped when its turn is interrupted", async () => {
  let reason: unknown;
  const wait = tool(
    { name: "wait", description: "Waits.", input_schema: { type: "object" } },
    async (_, { signal }) => {
      void session.interrupt({ turn: 0 });
      await new Promise((resolve) => signal.addEventListener("abort", resolve));
      reason = signal.reason;
    },
  );
  expect(await session.run("@call wait {}", { tools: [wait] })).toMatchObject({ status: "interrupted" });
  await expect.poll(() => reason, { timeout: 60_000 }).toBeDefined();
});

test("two streams of one program run a function once", async () => {
  const prompt = "@call pay {} @echo last_result";
  let runs = 0;
  let release = () => {};
  const isReleased = new Promise<void>((resolve) => {
    release = resolve;
  });
  const pay = tool({ name: "pay", description: "Pays.", input_schema: { type: "object" } }, async () => {
    runs++;
    await isReleased;
    return `paid ${runs}`;
  });
  const both = [1, 2].map(() => meerkat.session(session.id).stream(prompt, { key: "k", tools: [pay] }));
  let arrived = 0;
  const results = both.map(async (stream) => {
    for await (const event of stream) {
      // When both have read the list of calls, the one that came later would have begun, too.
      if (event.type === "call_requested" && ++arrived === 2) void session.calls().then(release);
    }
    return stream.result!.text;
  });
  expect(await Promise.all(results)).toEqual(["last_result: paid 1", "last_result: paid 1"]);
  expect(runs).toBe(1);
});

test.each(["while its function runs", "before it runs again"])("a stream that is left %s", async (when) => {
  const prompt = "@call pay {} @echo last_result";
  let runs = 0;
  let release = () => {};
  const isReleased = new Promise<void>((resolve) => {
    release = resolve;
  });
  const gone = new AbortController();
  let begun = () => {};
  const hasBegun = new Promise<void>((resolve) => {
    begun = resolve;
  });
  const input_schema = { type: "object" } as const;
  const pay = tool({ name: "pay", description: "Pays.", input_schema }, async (_, { signal }) => {
    runs++;
    begun();
    const isStopped = new Promise<never>((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    await Promise.race([isReleased, isStopped]);
    return "paid";
  });
  const run = (signal?: AbortSignal) => session.run(prompt, { key: "k", tools: [pay], signal });
  const first = expect(run(gone.signal)).rejects.toThrow("left");
  await hasBegun;
  if (when === "before it runs again") {
    gone.abort(new Error("left"));
    await first;
    release();
    expect((await run()).text).toBe("last_result: paid");
    return expect(runs).toBe(2);
  }
  const stream = session.stream(prompt, { key: "k", tools: [pay] });
  for await (const event of stream) {
    if (event.type !== "call_requested") continue;
    // The second stream has the call when it has read the list, which it asked for before this.
    await session.calls();
    await session.calls();
    gone.abort(new Error("left"));
    await first;
    release();
  }
  expect(stream.result!.text).toBe("last_result: paid");
  expect((await session.events()).items.filter((event) => event.type === "call_answered")).toHaveLength(1);
});

test("an approval outlives the program that asked", async () => {
  const prompt = '@call test_ask {"name":"kept","line":"milk"} @echo last_result';
  const gone = new AbortController();
  const first = session.run(prompt, {
    key: "k",
    signal: gone.signal,
    onApproval: () => gone.abort(new Error("gone")),
  });
  await expect(first).rejects.toThrow("gone");
  await server.kill();
  await server.start();
  let asked = 0;
  const onApproval = () => {
    asked++;
    return "approve" as const;
  };
  const again = await session.run(prompt, { key: "k", onApproval });
  expect(again.status).toBe("completed");
  // What was decided is not asked again.
  expect(await session.run(prompt, { key: "k", onApproval })).toEqual(again);
  expect(asked).toBe(1);
});
