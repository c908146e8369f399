// Tests of a client against scripts: each prompt says what the model will do.
import { beforeAll, expect, test } from "vitest";
import { connect, type Meerkat, type MeerkatEvent, runTurn } from "../src/meerkat.js";
import { create, interrupt } from "../src/tour.js";
import { meerkatServer } from "./meerkat-server.js";

const server = meerkatServer();
let meerkat: Meerkat;
beforeAll(() => {
  meerkat = connect(server.url, server.token);
});

async function ended(prompt: string): Promise<MeerkatEvent[]> {
  const events = [];
  for await (const event of runTurn(meerkat, await create(meerkat, "A test"), { prompt })) events.push(event);
  return events;
}

test("an answer", async () => {
  const events = await ended("@say Lima. @usage in=12 out=2");
  expect(events.at(-1)).toMatchObject({ type: "turn_completed", totals: { usage: { output_tokens: 2 } } });
});

test("a rate limit that passes", async () => {
  // The model is asked again twice, and says how often it was asked before.
  const events = await ended("@fail rate_limited retry_after_ms=50 times=2 @echo attempt");
  expect(events.at(-2)).toMatchObject({ blocks: [{ text: "attempt: 2" }] });
});

test("a rate limit that stays", async () => {
  const events = await ended("@fail rate_limited retry_after_ms=1");
  expect(events.at(-1)).toMatchObject({ type: "turn_failed", error: { code: "MODEL_RATE_LIMITED" } });
});

test("a cut stream", async () => {
  const events = await ended("@say The answer is @cut");
  expect(events.at(-2)).toMatchObject({ type: "partial_text", text: "The answer is" });
  expect(events.at(-1)).toMatchObject({ type: "turn_failed", error: { code: "MODEL_STREAM_INCOMPLETE" } });
});

test("a tool call", async () => {
  const events = await ended('@call test_set {"name":"city","value":"Lima"} @say Noted.');
  const results = events.filter((event) => event.type === "tool_finished");
  expect(results).toMatchObject([{ name: "test_set", outcome: "succeeded" }]);
});

test("a slow answer", async () => {
  // One character at a time, and then nothing: the client must not wait for ever.
  const session = await create(meerkat, "A test");
  let last = "";
  for await (const event of runTurn(meerkat, session, { prompt: "@chunks 1 @say Wait @stall" })) {
    last = event.type;
    if (event.type === "text_delta") await interrupt(meerkat, session, event.turn!);
  }
  expect(last).toBe("turn_interrupted");
});
