// Which streams share one run of a function, and when it is stopped.
import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { Calls } from "../dist/calls.js";

const PAID = { outcome: "succeeded", content: [] };
let calls;
let runs;
let release;

/** A function that obeys its signal. */
const pay = (signal) => {
  runs++;
  return new Promise((resolve, reject) => {
    release = () => resolve(PAID);
    signal.addEventListener("abort", () => reject(signal.reason));
  });
};
const join = (stop) => calls.answer("1/c", pay, stop.signal);

beforeEach(() => {
  calls = new Calls();
  runs = 0;
});

test("a function goes on while one stream waits for it", async () => {
  const [one, two] = [new AbortController(), new AbortController()];
  const [first, second] = [join(one), join(two)];
  one.abort();
  release();
  assert.deepEqual([await first, await second, runs], [undefined, PAID, 1]);
  // The next stream gets what it returned.
  assert.deepEqual([await join(new AbortController()), runs], [PAID, 1]);
});

test("a function that no stream waits for is stopped, and may run again", async () => {
  const [one, two, three] = [new AbortController(), new AbortController(), new AbortController()];
  const [first, second] = [join(one), join(two)];
  one.abort();
  two.abort();
  // It comes before the function has ended.
  const third = join(three);
  assert.deepEqual([await first, await second], [undefined, undefined]);
  while (runs < 2) await new Promise(setImmediate);
  release();
  assert.deepEqual([await third, runs], [PAID, 2]);
});

test("a call that is over is not run", { timeout: 60_000 }, async () => {
  const first = join(new AbortController());
  calls.end("1/c");
  assert.equal(await first, undefined);
  assert.equal(await join(new AbortController()), undefined);
  assert.equal(runs, 1);
});
