// Frames come out whole, wherever the network splits their bytes.
import assert from "node:assert/strict";
import { test } from "node:test";
import { frames } from "../dist/sse.js";

async function read(pieces) {
  async function* chunks() {
    yield* pieces;
  }
  const all = [];
  for await (const frame of frames(chunks())) all.push(frame);
  return all;
}

const bytes = (text) => new TextEncoder().encode(text);
const TEXT = [
  '\u{feff}: hello\n\nid: 1\ndata: {"text":"ä€😀"}\n\n',
  "event: result\ndata:one\ndata:  two\ndata\n\nevent: x\n\ndata: rest",
].join("");
const FRAMES = [
  { event: "message", data: '{"text":"ä€😀"}', id: "1" },
  { event: "result", data: "one\n two\n", id: "1" },
];

for (const [name, end] of [
  ["LF", "\n"],
  ["CR", "\r"],
  ["CRLF", "\r\n"],
]) {
  const whole = bytes(TEXT.replaceAll("\n", end));

  test(`lines that end with ${name}`, async () => {
    assert.deepEqual(await read([whole]), FRAMES);
    assert.deepEqual(await read(Array.from(whole, (byte) => Uint8Array.of(byte))), FRAMES);
  });

  test(`two pieces, split anywhere, with ${name}`, async () => {
    for (let at = 0; at <= whole.length; at++) {
      const pieces = [whole.subarray(0, at), new Uint8Array(), whole.subarray(at)];
      assert.deepEqual(await read(pieces), FRAMES, `split at ${at}`);
    }
  });
}

test("a frame comes as soon as its last byte is there", async () => {
  for (const end of ["\n\n", "\r\r", "\r\n\r"]) {
    async function* chunks() {
      yield bytes(`data: now${end}`);
      assert.fail("it waited for more");
    }
    const { value } = await frames(chunks()).next();
    assert.deepEqual(value, { event: "message", data: "now", id: "" });
  }
});
