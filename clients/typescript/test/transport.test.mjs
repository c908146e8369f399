// What a request says, how long it is repeated, and what it makes of strange answers. The server is a function here.
import assert from "node:assert/strict";
import { afterEach, beforeEach, mock, test } from "node:test";
import { file, image, Meerkat, MeerkatError, tool } from "../dist/index.js";

const TOKEN = "the-token-of-every-test";
let requests;
let answers;

beforeEach(() => {
  requests = [];
  answers = [];
  mock.method(globalThis, "fetch", async (url, init) => {
    requests.push({ url, ...init });
    const answer = answers.length > 1 ? answers.shift() : answers[0];
    if (typeof answer === "function") return answer(init);
    if (answer instanceof Error) throw answer;
    return answer.clone();
  });
  delete process.env.MEERKAT_URL;
  delete process.env.MEERKAT_TOKEN;
});
afterEach(() => {
  mock.restoreAll();
  mock.timers.reset();
});

const json = (value, status = 200) => new Response(JSON.stringify(value), { status });
const refused = (code, retryable, status = 503) => json({ code, message: "No.", retryable, details: {} }, status);
const page = (status) =>
  new Response("<html>Please wait.</html>", { status, headers: { "Content-Type": "text/html" } });
const broken = (code) =>
  Object.assign(new TypeError("fetch failed"), { cause: Object.assign(new Error(code), { code }) });

test("the address and the token", async () => {
  assert.throws(() => new Meerkat(), /export MEERKAT_TOKEN=\$\(meerkat token\)/);
  assert.throws(() => new Meerkat({ token: " \n" }), /export MEERKAT_TOKEN/);
  assert.throws(() => new Meerkat({ token: TOKEN, url: "127.0.0.1:7670" }), /"127.0.0.1:7670" is not an address/);
  answers = [json({ items: [] })];
  process.env.MEERKAT_TOKEN = `${TOKEN}\n`;
  await new Meerkat().queue({ session_id: "s/1" });
  assert.equal(requests[0].url, "http://127.0.0.1:7670/v1/sessions/s%2F1/queue");
  assert.equal(requests[0].headers.Authorization, `Bearer ${TOKEN}`);
  process.env.MEERKAT_URL = "https://meerkat.example/base/";
  await new Meerkat().queue({ session_id: "1" });
  assert.equal(requests[1].url, "https://meerkat.example/base/v1/sessions/1/queue");
});

test("a request that may pass is repeated with its key, and others are not", async () => {
  const meerkat = new Meerkat({ token: TOKEN, patience: 60_000 });
  answers = [broken("ECONNRESET"), refused("STORE_FAILED", true), page(502), json({ session_id: "1" })];
  await meerkat.session({ title: "One" });
  const keys = requests.map((request) => request.headers["Idempotency-Key"]);
  assert.equal(keys.length, 4);
  assert.equal(new Set(keys).size, 1);
  assert.ok(keys[0]);
  await meerkat.session({}, { key: "mine" });
  assert.equal(requests.at(-1).headers["Idempotency-Key"], "mine");

  for (const [answer, code] of [
    [refused("INVALID_REQUEST", false, 400), "INVALID_REQUEST"],
    [refused("SESSION_BUSY", true, 409), "SESSION_BUSY"],
    [page(200), "UNEXPECTED_ANSWER"],
    [page(404), "UNEXPECTED_ANSWER"],
  ]) {
    requests = [];
    answers = [answer];
    await assert.rejects(meerkat.session(), (error) => error instanceof MeerkatError && error.code === code);
    assert.equal(requests.length, 1, code);
  }
});

test("which operations are repeated", async () => {
  const meerkat = new Meerkat({ token: TOKEN, patience: 60_000 });
  const session = meerkat.session("1");
  const repeats = async (ask) => {
    requests = [];
    answers = [broken("ECONNRESET"), json({})];
    await ask().catch((error) => assert.equal(error.code, "UNREACHABLE"));
    return requests.length > 1;
  };
  for (const ask of [
    () => session.read(),
    () => session.delete(),
    () => session.update({ title: "x" }),
    () => session.remind({ kind: "custom:x", text: "x" }),
    () => session.startTurn({ prompt: "x" }),
    () => session.answerCall({ call_id: "c", outcome: "failed" }),
    () => session.decideApproval({ call_id: "c", decision: "deny" }),
    () => session.interrupt({ turn: 0 }),
  ]) {
    assert.equal(await repeats(ask), true, String(ask));
  }
  for (const ask of [
    () => session.fork({}),
    () => session.pin({ text: "x" }),
    () => session.interrupt(),
    () => session.compact(),
  ]) {
    assert.equal(await repeats(ask), false, String(ask));
  }
  // Nothing was sent, so nothing was done.
  requests = [];
  answers = [broken("ECONNREFUSED"), json({ seq: 1 })];
  await session.pin({ text: "x" });
  assert.equal(requests.length, 2);
});

test("patience is short until the server has answered once", async () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"] });
  // The clock goes on by steps of ten milliseconds.
  const waited = async (meerkat) => {
    const from = Date.now();
    let failure;
    const asked = meerkat.list().catch((error) => {
      failure = error;
    });
    for (let n = 0; !failure; n++) {
      assert.ok(n < 100_000, "patience did not end");
      await new Promise(setImmediate);
      mock.timers.tick(10);
    }
    await asked;
    assert.equal(failure.code, "UNREACHABLE");
    assert.match(failure.message, /ECONNREFUSED.*meerkat serve --rest.*MEERKAT_URL/);
    return Date.now() - from;
  };
  const meerkat = new Meerkat({ token: TOKEN });
  answers = [broken("ECONNREFUSED")];
  const first = await waited(meerkat);
  assert.ok(first > 2_000 && first <= 5_100, String(first));
  answers = [json({ items: [] })];
  await meerkat.list();
  answers = [broken("ECONNREFUSED")];
  const later = await waited(meerkat);
  assert.ok(later > 57_000 && later <= 60_100, String(later));
  assert.ok((await waited(new Meerkat({ token: TOKEN, patience: 1_000 }))) <= 1_100);
});

test("a stream that is silent for a minute is read anew", async () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const event = (seq, type) => `id: ${seq}\ndata: ${JSON.stringify({ seq, turn: null, type })}\n\n`;
  const silent = (text) => (init) => {
    const body = new ReadableStream({
      start(controller) {
        controller.enqueue(new TextEncoder().encode(text));
        init.signal.addEventListener("abort", () => controller.error(init.signal.reason));
      },
    });
    return new Response(body, { headers: { "Content-Type": "text/event-stream" } });
  };
  answers = [silent(event(1, "a")), silent(event(2, "session_deleted"))];
  const seen = [];
  let isDone = false;
  const reading = (async () => {
    for await (const { seq } of new Meerkat({ token: TOKEN }).session("1").follow()) seen.push([seq, Date.now()]);
    isDone = true;
  })();
  const from = Date.now();
  for (let n = 0; !isDone; n++) {
    assert.ok(n < 10_000, "the silent stream was not given up");
    await new Promise(setImmediate);
    mock.timers.tick(100);
  }
  await reading;
  assert.deepEqual(
    seen.map(([seq]) => seq),
    [1, 2],
  );
  assert.deepEqual(
    requests.map((request) => request.headers["Last-Event-ID"]),
    ["0", "1"],
  );
  assert.ok(seen[1][1] - from >= 60_000);
});

const stream = (...events) => {
  const text = events.map((event) => `data: ${JSON.stringify({ turn: null, ...event })}\n\n`).join("");
  return new Response(text, { headers: { "Content-Type": "text/event-stream" } });
};

/** Serves a session's only call, or approval, and returns what was sent until the end, which `isDone` says. */
async function served(value, isDone, refusals = [], onApproval) {
  const sent = [];
  let end;
  const isReceived = new Promise((resolve) => {
    end = resolve;
  });
  answers = [
    async ({ method, body, signal }) => {
      const { url } = requests.at(-1);
      if (method === "POST") {
        sent.push(JSON.parse(body));
        if (isDone(sent)) end();
        return refusals.shift() ?? json({ seq: 2 });
      }
      if (url.endsWith("/calls")) return json({ items: [{ call_id: "c", name: "pay", arguments: {} }] });
      if (!url.endsWith("/events")) return json({ last_seq: 1, pending_approvals: [{ call_id: "a" }] });
      await isReceived;
      // What follows from an answer has its time.
      for (let n = 0; n < 100; n++) await new Promise(setImmediate);
      signal.throwIfAborted();
      return stream({ after: 1, type: "session_deleted" });
    },
  ];
  const pay = tool({ name: "pay", description: "Pays.", input_schema: { type: "object" } }, () => {
    if (value instanceof Error) throw value;
    return value;
  });
  await new Meerkat({ token: TOKEN }).session("1").answerCalls(onApproval ? [] : [pay], { onApproval });
  return sent;
}

test("a call that another program answered, and an answer that is refused", { timeout: 60_000 }, async () => {
  const serve = (...refusals) => served("paid", (sent) => sent.length >= Math.max(count, 1), refusals);
  let count = 1;
  const paid = { outcome: "succeeded", content: [{ type: "text", text: "paid" }] };
  assert.deepEqual(await serve(refused("IDEMPOTENCY_CONFLICT", false, 409)), [paid]);
  assert.deepEqual(await serve(refused("ITEM_NOT_FOUND", false, 404)), [paid]);
  // The answer is sent until it is received.
  count = 3;
  assert.deepEqual(await serve(refused("STORE_FAILED", true), page(503)), [paid, paid, paid]);
  // What cannot be an answer becomes a failure that the model reads.
  const large = () => refused("PAYLOAD_TOO_LARGE", false, 413);
  count = 2;
  const [first, second] = await serve(large());
  assert.deepEqual(first, paid);
  assert.deepEqual([second.outcome, second.content[0].text], ["failed", "PAYLOAD_TOO_LARGE: No."]);
  count = 3;
  const third = (await serve(large(), large()))[2];
  assert.deepEqual([third.outcome, third.content[0].text], ["failed", "The tool's answer cannot be sent."]);
  count = 1;
  await assert.rejects(serve(refused("FORBIDDEN_ORIGIN", false, 403)), { code: "FORBIDDEN_ORIGIN" });
});

test("what a tool returns, or throws, can be sent", { timeout: 60_000 }, async () => {
  const answer = async (value) => (await served(value, () => true))[0];
  const text = (text) => ({ type: "text", text });
  const picture = { type: "image", media_type: "image/png", data: "AAAA" };
  assert.deepEqual((await answer(["Here:", picture])).content, [text("Here:"), picture]);
  assert.deepEqual((await answer(["a", { b: 1 }])).content, [{ type: "json", value: ["a", { b: 1 }] }]);
  assert.deepEqual((await answer("a\ud800b")).content, [text("a\ufffdb")]);
  assert.deepEqual((await answer({ a: "\ud800" })).content, [{ type: "json", value: { a: "\ufffd" } }]);
  const failure = async (value) => {
    const { outcome, content } = await answer(value);
    assert.equal(outcome, "failed");
    return content[0].text;
  };
  const files = await failure(await file(Buffer.from("x"), "a.txt"));
  assert.equal(files, "A tool returns text, images or JSON, but no files.");
  assert.equal(await failure(new Error("a\ud800b")), "a\ufffdb");
  assert.equal((await failure(new Error("x".repeat(1_000_000)))).length, 4_000);
});

test("an approval that was decided elsewhere", { timeout: 60_000 }, async () => {
  for (const code of ["IDEMPOTENCY_CONFLICT", "ITEM_NOT_FOUND"]) {
    const sent = await served("", () => true, [refused(code, false, 409)], () => "approve");
    assert.deepEqual(sent, [{ decision: "approve" }]);
  }
});

test("many calls are looked up together", { timeout: 60_000 }, async () => {
  const type = "call_requested";
  const events = Array.from({ length: 21 }, (_, n) => ({ seq: n + 1, turn: 0, type, call_id: `c${n}` }));
  events[20].type = "turn_completed";
  let lists = 0;
  const ran = [];
  let answered;
  const areAnswered = new Promise((resolve) => {
    answered = resolve;
  });
  answers = [
    async ({ method }) => {
      const { url } = requests.at(-1);
      if (url.endsWith("/calls")) {
        lists++;
        // All events come meanwhile.
        for (let n = 0; n < 100; n++) await new Promise(setImmediate);
        return json({ items: events.slice(0, 20).map(({ call_id }) => ({ call_id, name: "pay", arguments: {} })) });
      }
      if (url.includes("/calls/")) {
        if (ran.length === 20) answered();
        return json({ seq: 30 });
      }
      assert.equal(method, "POST");
      const encoder = new TextEncoder();
      const body = new ReadableStream({
        async start(controller) {
          const send = (text) => controller.enqueue(encoder.encode(`${text}\n\n`));
          for (const event of events.slice(0, 20)) send(`id: ${event.seq}\ndata: ${JSON.stringify(event)}`);
          await areAnswered;
          send(`data: ${JSON.stringify(events[20])}`);
          send('event: result\ndata: {"status":"completed"}');
        },
      });
      return new Response(body, { headers: { "Content-Type": "text/event-stream" } });
    },
  ];
  const pay = tool({ name: "pay", description: "Pays.", input_schema: { type: "object" } }, (_, { callId }) => {
    ran.push(callId);
  });
  await new Meerkat({ token: TOKEN }).session("1").run("x", { tools: [pay] });
  assert.equal(new Set(ran).size, 20);
  assert.equal(ran.length, 20);
  assert.ok(lists <= 2, `${lists} lists`);
});

test("an upload has its time", async () => {
  const limits = [];
  mock.method(AbortSignal, "timeout", (limit) => {
    limits.push(limit);
    return new AbortController().signal;
  });
  answers = [json({ session_id: "1" })];
  const session = await new Meerkat({ token: TOKEN }).session();
  await session.startTurn({ prompt: "x".repeat(10_000_000) });
  assert.ok(limits[0] >= 60_000 && limits[0] < 61_000, String(limits));
  assert.ok(limits[1] >= 1_000_000, String(limits));

  mock.timers.enable({ apis: ["setTimeout", "Date"] });
  let answer;
  answers = [
    ({ signal }) =>
      new Promise((resolve, reject) => {
        answer = resolve;
        signal.addEventListener("abort", () => reject(signal.reason));
      }),
  ];
  requests = [];
  const running = session.run("x".repeat(10_000_000));
  for (let n = 0; n < 1_000; n++) {
    await new Promise(setImmediate);
    mock.timers.tick(1_000);
  }
  assert.equal(requests.length, 1);
  const headers = { "Content-Type": "text/event-stream" };
  answer(new Response('event: result\ndata: {"text":"done"}\n\n', { headers }));
  assert.equal((await running).text, "done");
});

test("a live event that comes again and again is not a sign of life", async () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"] });
  answers = [() => stream({ after: 2, type: "text_delta", step: 0, block: 0, offset: 0, text: "a" })];
  let failure;
  const reading = (async () => {
    for await (const _ of new Meerkat({ token: TOKEN, patience: 10_000 }).session("1").follow());
  })().catch((error) => {
    failure = error;
  });
  for (let n = 0; !failure; n++) {
    assert.ok(n < 10_000, "patience did not end");
    await new Promise(setImmediate);
    mock.timers.tick(10);
  }
  await reading;
  assert.equal(failure.code, "UNREACHABLE");
  assert.ok(requests.length > 2);
});

test("what is no session, no prompt and no event", async () => {
  const meerkat = new Meerkat({ token: TOKEN });
  for (const id of ["", ".", ".."]) assert.throws(() => meerkat.session(id), /is not an id/);
  await assert.rejects(meerkat.read({ session_id: ".." }), /is not an id/);
  answers = [stream({ type: "session_deleted" })];
  for await (const _ of meerkat.session("1\\archive?").follow());
  assert.equal(requests[0].url, "http://127.0.0.1:7670/v1/sessions/1%5Carchive%3F/events");
  answers = [refused("SESSION_NOT_FOUND", false, 404)];
  await assert.rejects(meerkat.session("1\\archive?").run("x"), { code: "SESSION_NOT_FOUND" });
  await assert.rejects(meerkat.session("1\\archive?").resume(), { code: "SESSION_NOT_FOUND" });
  assert.deepEqual(
    requests.slice(1).map(({ url }) => url.slice(url.indexOf("/sessions"))),
    ["/sessions/1%5Carchive%3F/turns", "/sessions/1%5Carchive%3F/resume"],
  );
  assert.throws(() => meerkat.session("1").run(undefined), /a prompt is a text, or a list/);
  answers = [new Response("data: what?\n\n", { headers: { "Content-Type": "text/event-stream" } })];
  await assert.rejects(meerkat.session("1").run("x"), { code: "UNEXPECTED_ANSWER" });
});

test("what may have been done behind a proxy", async () => {
  const session = new Meerkat({ token: TOKEN }).session("1");
  for (const status of [502, 503, 504]) {
    answers = [page(status)];
    await assert.rejects(session.fork({}), (error) => {
      assert.deepEqual([error.code, error.status, error.retryable], ["UNEXPECTED_ANSWER", status, false]);
      assert.match(error.message, /may have been done or not/);
      return true;
    });
  }
  assert.equal(requests.length, 3);
});

test("the patience of a run is that of its calls", { timeout: 60_000 }, async () => {
  let lists = 0;
  answers = [
    async () => {
      const { url } = requests.at(-1);
      if (url.endsWith("/turns")) return stream({ seq: 1, turn: 0, type: "call_requested", call_id: "c" });
      // Longer than the patience of the client.
      if (url.endsWith("/calls")) return lists++ < 6 ? page(503) : json({ items: [{ call_id: "c", name: "pay" }] });
      if (url.includes("/calls/")) {
        answered();
        return json({ seq: 2 });
      }
      await isAnswered;
      return stream({ seq: 3, turn: 0, type: "turn_completed" });
    },
  ];
  let answered;
  const isAnswered = new Promise((resolve) => {
    answered = resolve;
  });
  const session = new Meerkat({ token: TOKEN, patience: 10 }).session("1");
  const pay = tool({ name: "pay", description: "Pays.", input_schema: { type: "object" } }, () => "paid");
  const running = session.run("x", { tools: [pay], patience: 60_000 });
  await Promise.race([isAnswered, running]);
  assert.equal(lists, 7);
  const last = answers[0];
  answers = [(init) => (requests.at(-1).url.endsWith("/turns") ? json({ status: "completed" }) : last(init))];
  assert.equal((await running).status, "completed");
});

test("an answer that is not meerkat's keeps its status and its beginning", async () => {
  answers = [page(200)];
  const meerkat = new Meerkat({ token: TOKEN });
  const isPage = (error) => {
    assert.deepEqual([error.code, error.status, error.retryable], ["UNEXPECTED_ANSWER", 200, false]);
    assert.match(error.message, /proxy.*Please wait/);
    return true;
  };
  await assert.rejects(meerkat.list(), isPage);
  await assert.rejects(meerkat.session("1").run("x"), isPage);
  answers = [refused("UNAUTHENTICATED", false, 401)];
  await assert.rejects(meerkat.list(), /the token is wrong: export MEERKAT_TOKEN=\$\(meerkat token\)/);
});

test("images and files by their bytes", async () => {
  const type = async (text) => (await image(Buffer.from(text, "latin1"))).media_type;
  assert.equal(await type("\x89PNG\r\n"), "image/png");
  assert.equal(await type("\xff\xd8\xff\xe0"), "image/jpeg");
  assert.equal(await type("GIF89a"), "image/gif");
  assert.equal(await type("RIFF\n\r\0\0WEBP"), "image/webp");
  await assert.rejects(type("BM"), /neither PNG, JPEG, GIF nor WebP/);
  const large = new Uint8Array(200_000).fill(0xe4);
  const { data } = await file(large, "a.csv");
  assert.deepEqual(new Uint8Array(Buffer.from(data, "base64")), large);
  assert.equal((await file(Buffer.from("%PDF-1.7"), "a.txt")).media_type, "application/pdf");
  assert.equal((await file(Buffer.from("x"), "a.MD")).media_type, "text/markdown");
  assert.equal((await file(Buffer.from("x"), "Makefile")).media_type, "text/plain");
  await assert.rejects(file(Buffer.from("x")), /give the file a name/);
});
