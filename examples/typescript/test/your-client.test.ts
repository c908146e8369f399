// Tests of a client against scripts: each prompt says what the model will do.
import { Meerkat, type MeerkatEvent } from "meerkat-client";
import { beforeAll, expect, test } from "vitest";
import { meerkatServer } from "./meerkat-server.js";

const server = meerkatServer();
let meerkat: Meerkat;
beforeAll(() => {
  meerkat = new Meerkat(server);
});

async function ended(prompt: string): Promise<MeerkatEvent[]> {
  const events = [];
  const session = await meerkat.session();
  for await (const event of session.stream(prompt)) events.push(event);
  return events;
}

test("an answer", async () => {
  const result = await (await meerkat.session()).run("@say Lima. @usage in=12 out=2");
  expect(result).toMatchObject({ status: "completed", text: "Lima.", usage: { output_tokens: 2 } });
});

test("a rate limit that passes", async () => {
  // The model is asked again twice, and says how often it was asked before.
  const result = await (await meerkat.session()).run("@fail rate_limited retry_after_ms=50 times=2 @echo attempt");
  expect(result.text).toBe("attempt: 2");
});

test("a rate limit that stays", async () => {
  const result = await (await meerkat.session()).run("@fail rate_limited retry_after_ms=1");
  expect(result).toMatchObject({ status: "failed", error: { code: "MODEL_RATE_LIMITED", retryable: true } });
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
  const session = await meerkat.session();
  let isStopped = false;
  let last = "";
  for await (const event of session.stream("@chunks 1 @say Wait @stall")) {
    last = event.type;
    if (event.type !== "text_delta" || isStopped) continue;
    isStopped = true;
    await session.interrupt({ turn: event.turn! });
  }
  expect(last).toBe("turn_interrupted");
});
