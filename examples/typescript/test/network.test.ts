// A bad network between the program and the server: it passes on only so many bytes of each answer, and then breaks the
// connection.
import { createServer, connect as dial, type AddressInfo, type Server, type Socket } from "node:net";
import { Meerkat, type MeerkatEvent, type Session, tool } from "meerkat-client";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { meerkatServer } from "./meerkat-server.js";

// Three steps, with text before and after a call.
const PROMPT =
  '@think Hm. @say First ä part. @call test_echo {"text":"x"} @say Second. @call test_echo {"text":"y"} @say The end.';

const server = meerkatServer();
let network: Server;
let limit: number;
let connections: number;
let requests: number;
let newest: Socket;
let meerkat: Meerkat;
let session: Session;
/** The session through the bad network. */
let through: Session;

beforeEach(async () => {
  [connections, requests, limit] = [0, 0, Number.MAX_SAFE_INTEGER];
  const own = createServer((client) => {
    // A connection of the test before is late.
    if (own !== network) return void client.destroy();
    connections++;
    newest = client;
    let left = limit;
    const upstream = dial(Number(new URL(server.url).port), "127.0.0.1");
    client.on("error", () => upstream.destroy()).on("close", () => upstream.destroy());
    upstream.on("error", () => client.destroy()).on("close", () => client.destroy());
    // The server answers only to its own name, or to one that it was told of.
    client.on("data", (data) => {
      if (own === network) requests++;
      upstream.write(data.toString("latin1").replace(/^host: .*$/im, `host: ${new URL(server.url).host}`), "latin1");
    });
    upstream.on("data", (data) => {
      client.write(data.subarray(0, left), () => left <= 0 && client.destroySoon());
      left -= data.length;
    });
  });
  network = own;
  await new Promise<void>((resolve) => network.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${(network.address() as AddressInfo).port}`;
  meerkat = new Meerkat(server);
  session = await meerkat.session();
  through = new Meerkat({ url, token: server.token, patience: 60_000 }).session(session.id);
});
afterEach(() => {
  network.close();
});

async function stored(): Promise<MeerkatEvent[]> {
  return (await session.events({ limit: 1000 })).items;
}

async function started(): Promise<number> {
  return (await stored()).filter((event) => event.type === "turn_started").length;
}

describe.each([1300, 1450, 1600])("connections that break after %d bytes", (bytes) => {
  beforeEach(() => {
    limit = bytes;
  });

  test("no event is lost or repeated", async () => {
    await session.run(PROMPT);
    const seen = [];
    for await (const event of through.follow()) {
      if ("seq" in event) seen.push(event);
      if (event.type === "turn_completed") break;
    }
    expect(seen).toEqual(await stored());
    expect(seen.map((event) => event.seq)).toEqual(seen.map((_, index) => index + 1));
    expect(connections).toBeGreaterThan(2);
  });

  test("a turn runs once, and its stream is whole", async () => {
    let said = "";
    const stream = through.stream(PROMPT, { onText: (piece) => (said += piece) });
    const seen = [];
    for await (const event of stream) if ("seq" in event) seen.push(event);
    expect(said).toBe("First ä part.Second.The end.");
    expect(seen).toEqual((await stored()).filter((event) => event.turn === 0));
    expect(stream.result).toMatchObject({ status: "completed", text: "The end.", tool_calls: 2 });
    expect(await started()).toBe(1);
    expect(connections).toBeGreaterThan(2);
  });

  test("calls are answered once", async () => {
    let runs = 0;
    const count = tool({ name: "count", description: "Counts.", input_schema: { type: "object" } }, () => ++runs);
    const result = await through.run("@call count {} @step @call count {} @echo last_result", { tools: [count] });
    expect([result.text, runs]).toEqual(["last_result: 2", 2]);
    expect((await stored()).filter((event) => event.type === "call_answered")).toHaveLength(2);
    expect(connections).toBeGreaterThan(2);
  });
});

test("text that comes again is not shown again", async () => {
  // The model says nothing more, and a break of the connection is followed by an interrupt from elsewhere.
  let said = "";
  let isBroken = false;
  for await (const event of through.stream("@say Wait for it. @stall", { onText: (piece) => (said += piece) })) {
    if (said !== "Wait for it." || event.type !== "text_delta") continue;
    if (!isBroken) newest.destroy();
    // It begins anew, with what was said so far.
    else if (event.offset === 0) await session.interrupt({ turn: 0 }).catch(() => {});
    isBroken = true;
  }
  expect(said).toBe("Wait for it.");
  expect(connections).toBeGreaterThan(1);
});

test("an answer that is lost", async () => {
  // No byte of the answers passes at first.
  limit = 0;
  const made = through.run("@say Once.", { key: "k" });
  await expect.poll(() => connections, { timeout: 60_000 }).toBeGreaterThan(2);
  limit = Number.MAX_SAFE_INTEGER;
  expect(await made).toMatchObject({ status: "completed", text: "Once." });
  expect(await started()).toBe(1);
});

test("what may not be repeated is not repeated", async () => {
  limit = 0;
  await expect(through.pin({ text: "A fact." })).rejects.toMatchObject({ code: "UNREACHABLE", retryable: false });
  // The fact may be there or not; there is at most one of it.
  expect((await session.pins()).items.length).toBeLessThanOrEqual(1);
  expect(connections).toBe(1);
});

test("patience ends", async () => {
  limit = 0;
  await expect(through.read({}, { patience: 200 })).rejects.toMatchObject({
    code: "UNREACHABLE",
    retryable: true,
    message: expect.stringContaining("meerkat serve --rest"),
  });
  expect(connections).toBeGreaterThan(1);
});

test("a request that is given up", async () => {
  limit = 0;
  const gone = new AbortController();
  const asked = through.read({}, { signal: gone.signal });
  await expect.poll(() => connections, { timeout: 60_000 }).toBeGreaterThan(1);
  gone.abort(new Error("enough"));
  await expect(asked).rejects.toThrow("enough");
});

test("a stream that is closed closes its connection", async () => {
  let used: Socket | undefined;
  for await (const event of through.follow()) {
    used = newest;
    if (event.type === "session_created") break;
  }
  await expect.poll(() => used!.closed, { timeout: 60_000 }).toBe(true);
  expect(requests).toBe(1);
});
