// What a client does with meerkat, one function each.
import { EventSourceParserStream } from "eventsource-parser/stream";
import { again, begin, type Meerkat, MeerkatError, type MeerkatEvent, runTurn, sent } from "./meerkat.js";

/** Creates a session and returns its id. */
export async function create(meerkat: Meerkat, title: string): Promise<string> {
  const created = await sent(meerkat.POST("/v1/sessions", { body: { title, labels: { app: "tour" } } }));
  return created.session_id;
}

/** Runs a turn, yields its text while the model says it, and returns the kind of the event that ended it. After a lost
 * connection it continues in the middle of the sentence. */
export async function* streamed(meerkat: Meerkat, session: string, prompt: string): AsyncGenerator<string, string> {
  const shown = new Map<string, number>();
  let last = "";
  for await (const event of runTurn(meerkat, session, { prompt })) {
    last = event.type;
    yield* freshTexts(event, shown);
  }
  return last;
}

/** Yields what an event says behind what was shown before. */
function* freshTexts(event: MeerkatEvent, shown: Map<string, number>): Generator<string> {
  for (const { block, offset, text } of texts(event)) {
    const known = shown.get(block) ?? 0;
    // A follower that comes back gets the block from its beginning: only the rest of it is new.
    const fresh = offset <= known ? Buffer.from(text).subarray(known - offset) : Buffer.of();
    shown.set(block, known + fresh.length);
    if (fresh.length > 0) yield fresh.toString();
  }
}

/** Returns the texts in an event with their block and their offset in it, in bytes. A live delta is a piece of a text;
 * the stored message has the whole of each, even if its deltas were missed. */
function texts(event: MeerkatEvent): { block: string; offset: number; text: string }[] {
  if (event.type === "text_delta") {
    return [{ block: `${event.step}/${event.block}`, offset: event.offset, text: event.text }];
  }
  if (event.type !== "assistant_message") return [];
  return event.blocks
    .filter((block) => block.type === "text" || block.type === "reasoning")
    .map(({ type, text }, number) => ({ block: `${event.step}/${number}`, offset: 0, type, text }))
    .flatMap(({ block, offset, type, text }) =>
      // A text that is too large for an event is an object with a `blob` to read; here its beginning will do.
      type === "text" && text ? [{ block, offset, text: typeof text === "string" ? text : text.head }] : [],
    );
}

/** Runs a turn in one request, whose answer is the stream, and yields its text as the model produces it. */
export async function* atOnce(meerkat: Meerkat, session_id: string, prompt: string): AsyncGenerator<string> {
  const stream = await sent(
    meerkat.POST("/v1/sessions/{session_id}/turns", {
      params: { path: { session_id } },
      headers: { Accept: "text/event-stream" },
      body: { prompt },
      parseAs: "stream",
    }),
  );
  const frames = stream!.pipeThrough(new TextDecoderStream()).pipeThrough(new EventSourceParserStream());
  const shown = new Map<string, number>();
  for await (const frame of frames) {
    if (frame.event === "failure") throw new MeerkatError(JSON.parse(frame.data));
    // The last one has the turn's result, as the answer without a stream would.
    if (frame.event === "result") return;
    yield* freshTexts(JSON.parse(frame.data), shown);
  }
}

/** Reads what happened since a cursor that was kept, and returns the new seqs. `follow` would wait for more. */
export async function reconnect(meerkat: Meerkat, session_id: string, cursor: number): Promise<number[]> {
  const params = { path: { session_id }, query: { since_seq: cursor } };
  const page = await sent(meerkat.GET("/v1/sessions/{session_id}/events", { params }));
  return page.items.map((event) => event.seq);
}

/** Sends the same turn twice, as after a lost answer, and returns how many turns the session has. */
export async function retry(meerkat: Meerkat, session_id: string): Promise<number> {
  const key = crypto.randomUUID();
  await begin(meerkat, session_id, { prompt: "@say Once." }, key);
  await begin(meerkat, session_id, { prompt: "@say Once." }, key);
  const view = await sent(meerkat.GET("/v1/sessions/{session_id}", { params: { path: { session_id } } }));
  return view.turn_count;
}

/** Runs a turn and decides every call that asks. `attended` says that somebody is there: otherwise a call that asks is
 * refused at once. */
export async function approve(
  meerkat: Meerkat,
  session_id: string,
  prompt: string,
  decision: "approve" | "deny",
): Promise<string[]> {
  const outcomes = [];
  for await (const event of runTurn(meerkat, session_id, { prompt, attended: true })) {
    if (event.type === "approval_requested") {
      const params = { path: { session_id, call_id: event.call_id } };
      await sent(meerkat.POST("/v1/sessions/{session_id}/approvals/{call_id}", { params, body: { decision } }));
    }
    if (event.type === "tool_finished") outcomes.push(event.outcome);
  }
  return outcomes;
}

/** Ends a turn, and returns false if it had ended already. */
export async function interrupt(meerkat: Meerkat, session_id: string, turn: number): Promise<boolean> {
  const params = { path: { session_id } };
  const { error } = await meerkat.POST("/v1/sessions/{session_id}/interrupt", { params, body: { turn } });
  if (error && error.code !== "SESSION_NOT_RUNNING") throw new MeerkatError(error);
  return !error;
}

/** Makes a session that shares the beginning of another one, up to the end of a turn. */
export async function fork(meerkat: Meerkat, session_id: string, turn: number): Promise<string> {
  const params = { path: { session_id }, query: { turn } };
  return (await sent(meerkat.POST("/v1/sessions/{session_id}/fork", { params }))).session_id;
}

/** Searches the answers in all sessions, and returns the texts that fit best. */
export async function search(meerkat: Meerkat, query: string): Promise<string[]> {
  const params = { query: { query, role: "assistant", limit: 3 } } as const;
  const found = await again(() => sent(meerkat.GET("/v1/memory/search", { params })));
  return found.items.map((hit) => hit.text);
}

/** Chooses what to do by an error's code. The codes are in docs/ERRORS.md; a misspelt one does not compile. */
export function explain(error: MeerkatError): string {
  switch (error.code) {
    case "SESSION_NOT_FOUND":
      return "The session was deleted: start another one.";
    case "SESSION_BUSY":
      return "A turn is running: wait, interrupt it, or queue this one.";
    case "UNAUTHENTICATED":
      return "The token is wrong.";
    default:
      return error.retryable ? "Try again later." : error.message;
  }
}
