// Runs every part of the tour against a server, and the parts that promise to survive a bad network over one.
import { existsSync } from "node:fs";
import { createServer, connect as dial, type AddressInfo, type Server, type Socket } from "node:net";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { begin, connect, follow, type Meerkat, MeerkatError, runTurn, sent } from "../src/meerkat.js";
import * as tour from "../src/tour.js";
import { meerkatServer } from "./meerkat-server.js";

// Three steps, with text before and after a call.
const PROMPT =
  '@think Hm. @say First ä part. @call test_echo {"text":"x"} @say Second. @call test_echo {"text":"y"} @say The end.';

const server = meerkatServer();
let meerkat: Meerkat;
let session: string;
beforeEach(async () => {
  meerkat = connect(server.url, server.token);
  session = await tour.create(meerkat, "A tour");
});

async function stored() {
  const params = { path: { session_id: session }, query: { limit: 1000 } };
  const page = await sent(meerkat.GET("/v1/sessions/{session_id}/events", { params }));
  return page.items;
}

async function drained(pieces: AsyncIterable<string>): Promise<string> {
  let whole = "";
  for await (const piece of pieces) whole += piece;
  return whole;
}

test("create", async () => {
  const view = await sent(meerkat.GET("/v1/sessions/{session_id}", { params: { path: { session_id: session } } }));
  expect(view).toMatchObject({ title: "A tour", labels: { app: "tour" }, turn_count: 0 });
});

test("streamed text comes in pieces", async () => {
  // The answer cannot be complete: the model never ends it.
  let said = "";
  for await (const piece of tour.streamed(meerkat, session, "@say Wait for it. @stall")) {
    said += piece;
    if (said === "Wait for it.") break;
  }
  expect(said).toBe("Wait for it.");
});

test("at once", async () => {
  expect(await drained(tour.atOnce(meerkat, session, "@say All in one request."))).toBe("All in one request.");
  await expect(drained(tour.atOnce(meerkat, session, ""))).rejects.toMatchObject({ code: "INVALID_REQUEST" });
});

test("reconnect", async () => {
  await drained(tour.streamed(meerkat, session, "@say Hello."));
  expect(await tour.reconnect(meerkat, session, 2)).toEqual([3, 4]);
  await expect(tour.reconnect(meerkat, session, 99)).rejects.toMatchObject({ code: "CURSOR_OUT_OF_RANGE" });
});

test("retry", async () => {
  expect(await tour.retry(meerkat, session)).toBe(1);
  await begin(meerkat, session, { prompt: "@say One.", policy: "queue" }, "k");
  const other = begin(meerkat, session, { prompt: "@say Another.", policy: "queue" }, "k");
  await expect(other).rejects.toMatchObject({ code: "IDEMPOTENCY_CONFLICT" });
});

test.each([
  ["approve", "succeeded"],
  ["deny", "not_run"],
] as const)("%s", async (decision, outcome) => {
  const prompt = `@call test_ask {"name":"${decision}","line":"milk"} @say Done.`;
  expect(await tour.approve(meerkat, session, prompt, decision)).toEqual([outcome]);
  expect(existsSync(join(server.folder, "tools", decision))).toBe(decision === "approve");
});

test("interrupt", async () => {
  const { turn } = await begin(meerkat, session, { prompt: "@stall" });
  expect(await tour.interrupt(meerkat, session, turn)).toBe(true);
  expect((await stored()).at(-1)).toMatchObject({ type: "turn_interrupted", reason: "requested" });
  expect(await tour.interrupt(meerkat, session, turn)).toBe(false);
});

test("fork", async () => {
  await drained(tour.streamed(meerkat, session, "@say One."));
  await drained(tour.streamed(meerkat, session, "@say Two."));
  const session_id = await tour.fork(meerkat, session, 0);
  const view = await sent(meerkat.GET("/v1/sessions/{session_id}", { params: { path: { session_id } } }));
  expect(view.turn_count).toBe(1);
});

test("search", async () => {
  await drained(tour.streamed(meerkat, session, "@say The capital of Peru is Lima."));
  // A search waits two seconds for what was just said; on a busy machine that may be too short.
  const found = async () => (await tour.search(meerkat, "capital of Peru")).join("\n");
  await expect.poll(found, { timeout: 60_000 }).toContain("Lima");
}, 90_000);

test("errors by code", async () => {
  const explained = async (client: Meerkat, session_id: string) => {
    const error = await begin(client, session_id, { prompt: "hello" }).catch((error: unknown) => error);
    expect(error).toBeInstanceOf(MeerkatError);
    return tour.explain(error as MeerkatError);
  };
  expect(await explained(meerkat, "01900000-0000-7000-8000-000000000001")).toContain("was deleted");
  expect(await explained(connect(server.url, "a-wrong-token-of-some-length"), session)).toBe("The token is wrong.");
  await begin(meerkat, session, { prompt: "@stall" });
  await expect(
    sent(
      meerkat.POST("/v1/sessions/{session_id}/turns", {
        params: { path: { session_id: session } },
        body: { prompt: "hello" },
      }),
    ),
  ).rejects.toMatchObject({ code: "SESSION_BUSY" });
});

test("following continues when the server was killed", async () => {
  const kinds: string[] = [];
  for await (const event of runTurn(meerkat, session, { prompt: '@call test_sleep {"ms":600000} @say Done.' })) {
    // Live events, such as a tool's progress, come only if there is time.
    if ("seq" in event) kinds.push(event.type);
    if (event.type === "tool_started") {
      await server.kill();
      await server.start();
    }
  }
  expect(kinds.slice(-3)).toEqual(["tool_started", "tool_finished", "turn_interrupted"]);
});

// A bad network: it passes on only so many bytes of each answer, and then breaks the connection.
describe.each([1300, 1450, 1600])("connections that break after %d bytes", (limit) => {
  let network: Server;
  let connections = 0;
  let newest: Socket;
  let through: Meerkat;
  beforeEach(async () => {
    connections = 0;
    network = createServer((client) => {
      connections++;
      newest = client;
      let left = limit;
      const upstream = dial(Number(new URL(server.url).port), "127.0.0.1");
      client.on("error", () => upstream.destroy()).on("close", () => upstream.destroy());
      upstream.on("error", () => client.destroy()).on("close", () => client.destroy());
      // The server answers only to its own name, or to one that it was told of.
      client.on("data", (data) => {
        upstream.write(data.toString("latin1").replace(/^host: .*$/im, `host: ${new URL(server.url).host}`), "latin1");
      });
      upstream.on("data", (data) => {
        client.write(data.subarray(0, left), () => left <= 0 && client.destroySoon());
        left -= data.length;
      });
    });
    await new Promise<void>((resolve) => network.listen(0, "127.0.0.1", resolve));
    through = connect(`http://127.0.0.1:${(network.address() as AddressInfo).port}`, server.token);
  });
  afterEach(() => {
    network.close();
  });

  test("no event is lost or repeated", async () => {
    const turn = await begin(meerkat, session, { prompt: PROMPT });
    const seen = [];
    for await (const event of follow(through, session)) {
      if ("seq" in event) seen.push(event);
      if (event.type === "turn_completed" && event.turn === turn.turn) break;
    }
    expect(seen).toEqual(await stored());
    expect(seen.map((event) => event.seq)).toEqual(seen.map((_, index) => index + 1));
    expect(connections).toBeGreaterThan(2);
  });

  test("a streamed text is whole, and its turn runs once", async () => {
    expect(await drained(tour.streamed(through, session, PROMPT))).toBe("First ä part.Second.The end.");
    expect((await stored()).filter((event) => event.type === "turn_started")).toHaveLength(1);
    expect(connections).toBeGreaterThan(2);
  });

  test("text that comes again is not shown again", async () => {
    // Its turns end after five seconds, in the middle of what the model says.
    const hasty = await sent(meerkat.POST("/v1/sessions", { body: { budgets: { wall_ms: 5000 } } }));
    let said = "";
    for await (const piece of tour.streamed(through, hasty.session_id, "@say Wait for it. @stall")) {
      said += piece;
      if (said === "Wait for it.") newest.destroy();
    }
    expect(said).toBe("Wait for it.");
    expect(connections).toBeGreaterThan(1);
  });
});
