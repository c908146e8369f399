// A small client of meerkat's REST interface: errors by code, retries that run once, streams that continue.
// The types are generated from docs/openapi.json: `npm run types`.
import createClient, { type Client } from "openapi-fetch";
import { EventSourceParserStream } from "eventsource-parser/stream";
import type { components, paths } from "./api.js";

type Schemas = components["schemas"];
// Without the second type, an answer that can be JSON or a stream has the types of both.
export type Meerkat = Client<paths, "application/json">;
export type MeerkatEvent = Schemas["Event"] | Schemas["LiveEvent"];
export type ErrorBody = Schemas["ErrorBody"];

const TURN_ENDS = ["turn_completed", "turn_failed", "turn_interrupted", "turn_dequeued"];

/** A refused request. Branch on `code`; the message is for people and may change. */
export class MeerkatError extends Error {
  readonly code: ErrorBody["code"];
  readonly retryable: boolean;

  constructor(body: ErrorBody) {
    super(`${body.code}: ${body.message}`);
    this.code = body.code;
    this.retryable = body.retryable;
  }
}

export function connect(url: string, token: string): Meerkat {
  return createClient<paths, "application/json">({ baseUrl: url, headers: { Authorization: `Bearer ${token}` } });
}

/** Returns an answer's data, or throws its error. */
export async function sent<T>(answer: Promise<{ data?: T; error?: ErrorBody; response: Response }>): Promise<T> {
  const { data, error, response } = await answer;
  if (data !== undefined) return data;
  if (error?.code !== undefined) throw new MeerkatError(error);
  // Not meerkat's answer: a proxy's, for example.
  throw new Error(`HTTP ${response.status}`);
}

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

/** True if the same request may succeed later. `fetch` throws a TypeError if the connection breaks. */
function isTemporary(error: unknown): boolean {
  return error instanceof TypeError || (error instanceof MeerkatError && error.retryable);
}

/** Asks until there is an answer, with longer and longer pauses. Only for requests that may be repeated. */
export async function again<T>(ask: () => Promise<T>, tries = 8): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await ask();
    } catch (error) {
      if (attempt === tries || !isTemporary(error)) throw error;
      await pause(50 * 2 ** attempt);
    }
  }
}

export type Turn = Omit<Schemas["TurnAccepted"], "session_id">;
type TurnBody = NonNullable<
  paths["/v1/sessions/{session_id}/turns"]["post"]["requestBody"]
>["content"]["application/json"];

/** Starts a turn and does not wait for its end. If the answer is lost, it asks again under the same key, and the turn
 * still runs once. */
export async function begin(
  meerkat: Meerkat,
  session_id: string,
  body: TurnBody,
  key: string = crypto.randomUUID(),
): Promise<Turn> {
  const params = { path: { session_id }, header: { "Idempotency-Key": key, Prefer: "respond-async" } };
  const turn = await again(() => sent(meerkat.POST("/v1/sessions/{session_id}/turns", { params, body })));
  return { turn: turn.turn, seq: turn.seq };
}

/** Yields the session's events after a cursor: old ones first, and then new ones as they happen. A lost connection
 * continues after the last event, so none is lost and none comes twice. */
export async function* follow(meerkat: Meerkat, session_id: string, after = 0): AsyncGenerator<MeerkatEvent> {
  while (true) {
    const stop = new AbortController();
    try {
      const stream = await sent(
        meerkat.GET("/v1/sessions/{session_id}/events", {
          params: { path: { session_id }, header: { "Last-Event-ID": String(after) } },
          headers: { Accept: "text/event-stream" },
          parseAs: "stream",
          signal: stop.signal,
        }),
      );
      const frames = stream!.pipeThrough(new TextDecoderStream()).pipeThrough(new EventSourceParserStream());
      for await (const frame of frames) {
        if (frame.event === "failure") throw new MeerkatError(JSON.parse(frame.data));
        const event: MeerkatEvent = JSON.parse(frame.data);
        // A live event has no seq, and does not move the cursor.
        if ("seq" in event) after = event.seq;
        yield event;
      }
    } catch (error) {
      if (!isTemporary(error)) throw error;
    } finally {
      stop.abort();
    }
    await pause(100);
  }
}

/** Runs a turn and yields its events as they happen; the last one ends it. */
export async function* runTurn(meerkat: Meerkat, session_id: string, body: TurnBody): AsyncGenerator<MeerkatEvent> {
  const begun = await begin(meerkat, session_id, body);
  for await (const event of follow(meerkat, session_id, begun.seq - 1)) {
    if (event.turn !== begun.turn) continue;
    yield event;
    if (TURN_ENDS.includes(event.type)) return;
  }
}
