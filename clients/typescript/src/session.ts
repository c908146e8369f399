// A session: its turns, its events, its tools.
import { Answering, type OnApproval } from "./answering.js";
import { type PromptInput, promptOf } from "./content.js";
import { MeerkatError } from "./error.js";
import type { Body, Event, LiveEvent, OutputSpec, TurnResult } from "./generated/api.js";
import { SessionOperations, type StartTurnRequest } from "./generated/operations.js";
import type { CallOptions, Operation } from "./operation.js";
import { decoded, Texts } from "./texts.js";
import type { FromSchema, ObjectSchema, Tool } from "./tool.js";
import { segment, type StreamRequest, type Transport } from "./transport.js";

const TURN_ENDS = ["turn_completed", "turn_failed", "turn_interrupted", "turn_dequeued"];

/** Anything that happens in a session. */
export type MeerkatEvent = Event | LiveEvent;

/** How a turn ended. `status` says if it completed; then `output` is what the schema asked for, if there was one. */
export type Result<Output = unknown> = Omit<TurnResult, "output"> & { output: Output | null };

/** Everything a turn may have beside its prompt. */
export interface TurnOptions<S = object>
  extends CallOptions, Omit<StartTurnRequest, "session_id" | "prompt" | "client_tools" | "output"> {
  /** Tools that the model may call, and that this program runs. They replace the session's. */
  tools?: readonly Tool[];
  /** JSON Schema of the answer, or the schema with its `name` and `repairs`. */
  output?: S | (Omit<OutputSpec, "schema"> & { schema: S }) | OutputSpec;
  /** Decides calls that ask. The turn is then `attended`. */
  onApproval?: OnApproval;
  /** Gets the model's text as it comes, each character once. */
  onText?: (piece: string) => void;
}

/** What `answerCalls` takes. */
export interface AnswerOptions extends Omit<CallOptions, "key"> {
  onApproval?: OnApproval;
}

/** A turn's events as they happen. The last one ends the turn; then `result` is there. */
export class TurnStream<Output = unknown> implements AsyncIterable<MeerkatEvent> {
  /** The turn's result, once the stream has ended. */
  result: Result<Output> | undefined;
  readonly #events: (done: (result: TurnResult) => void) => AsyncGenerator<MeerkatEvent, void, undefined>;

  constructor(events: (done: (result: TurnResult) => void) => AsyncGenerator<MeerkatEvent, void, undefined>) {
    this.#events = events;
  }

  [Symbol.asyncIterator](): AsyncGenerator<MeerkatEvent, void, undefined> {
    return this.#events((result) => {
      this.result = result as Result<Output>;
    });
  }

  /** Reads to the end and returns the result. */
  async finished(): Promise<Result<Output>> {
    for await (const _ of this);
    return this.result!;
  }
}

export class Session extends SessionOperations {
  readonly id: string;
  readonly #transport: Transport;
  readonly #path: string;

  constructor(id: string, transport: Transport) {
    super();
    this.id = id;
    this.#path = `/v1/sessions/${segment(id)}`;
    this.#transport = transport;
  }

  protected call<T>(operation: Operation, request: object, options: CallOptions): Promise<T> {
    return this.#transport.call(operation, request, options);
  }

  /** Runs a turn and waits for its end. */
  run<const S extends ObjectSchema>(prompt: PromptInput, options: TurnOptions<S> = {}): Promise<Result<FromSchema<S>>> {
    return this.stream(prompt, options).finished();
  }

  /** Runs a turn and yields its events. The turn begins with the first event that is asked for, and goes on if the
   * stream is closed. With the `key` of a turn that was started before, it is that turn, from its beginning. */
  stream<const S extends ObjectSchema>(prompt: PromptInput, options: TurnOptions<S> = {}): TurnStream<FromSchema<S>> {
    return this.#stream(`${this.#path}/turns`, { prompt: promptOf(prompt) }, options);
  }

  /** Continues an interrupted turn and waits for its end. */
  resume<const S extends ObjectSchema>(options: TurnOptions<S> = {}): Promise<Result<FromSchema<S>>> {
    return this.#stream<FromSchema<S>>(`${this.#path}/resume`, {}, options).finished();
  }

  #stream<Output>(path: string, prompt: object, options: TurnOptions): TurnStream<Output> {
    const { tools, output, key, signal, patience, onApproval, onText, ...rest } = options;
    const fields = {
      ...prompt,
      ...rest,
      ...(tools && { client_tools: tools }),
      ...(output !== undefined && { output: specOf(output) }),
      ...(onApproval && { attended: options.attended ?? true }),
    };
    // The same request with the same key is the same turn. If its events come again, its text is not shown again.
    const once = key ?? crypto.randomUUID();
    const texts = new Texts();
    return new TurnStream((done) => this.#events(path, fields, once, texts, options, done));
  }

  async *#events(
    path: string,
    fields: object,
    key: string,
    texts: Texts,
    options: TurnOptions,
    done: (result: TurnResult) => void,
  ): AsyncGenerator<MeerkatEvent, void, undefined> {
    const stop = new AbortController();
    const signal = options.signal ? AbortSignal.any([stop.signal, options.signal]) : stop.signal;
    const answering = new Answering(this, this.#transport.calls, options, stop);
    const whole = (body: Body) => this.text(body, { signal, patience: options.patience });
    const body = JSON.stringify(fields);
    let last = 0;
    let turn: number | null | undefined;
    let isFirst = true;
    let hasEnded = false;
    // If the first stream breaks, the session's events have the rest.
    const request = (): StreamRequest | undefined => {
      if (hasEnded) return undefined;
      isFirst = turn === undefined;
      if (!isFirst) return this.#following(last);
      return { method: "POST", path, body, headers: { "Content-Type": "application/json", "Idempotency-Key": key } };
    };
    try {
      for await (const { event: kind, data } of this.#transport.stream(request, { ...options, signal })) {
        if (kind === "result") return done(data);
        const event: MeerkatEvent = data;
        if ("seq" in event) {
          last = event.seq;
          // The first one says that the turn was accepted.
          turn ??= event.turn;
        }
        // Another turn may run before this one.
        if (event.turn !== turn) continue;
        answering.see(event);
        if (options.onText) for await (const piece of texts.fresh(event, whole)) options.onText(piece);
        yield event;
        hasEnded ||= TURN_ENDS.includes(event.type);
        if (hasEnded && !isFirst) break;
      }
      const operation: Operation = { method: "POST", path, query: [], kind: "json", isKeyed: true };
      done(await this.call<TurnResult>(operation, fields, { ...options, key, signal }));
    } finally {
      stop.abort();
    }
  }

  #following(after: number): StreamRequest {
    return { method: "GET", path: `${this.#path}/events`, headers: { "Last-Event-ID": String(after) } };
  }

  /** Yields the session's events after a cursor, the `seq` of an event: old ones first, then new ones as they happen,
   * until the session is deleted. A connection that breaks goes on where it was: no event is lost, and none comes
   * twice. */
  async *follow(after = 0, options: Omit<CallOptions, "key"> = {}): AsyncGenerator<MeerkatEvent, void, undefined> {
    for await (const { data } of this.#transport.stream(() => this.#following(after), options)) {
      const event: MeerkatEvent = data;
      // A live event has no seq, and does not move the cursor.
      if ("seq" in event) after = event.seq;
      yield event;
      if (event.type === "session_deleted") return;
    }
  }

  /** Answers the session's calls of these tools: first those that wait, then those that come, until `signal` aborts or
   * the session is deleted. */
  async answerCalls(tools: readonly Tool[], options: AnswerOptions = {}): Promise<void> {
    const stop = new AbortController();
    const signal = options.signal ? AbortSignal.any([stop.signal, options.signal]) : stop.signal;
    const answering = new Answering(this, this.#transport.calls, { ...options, tools }, stop);
    try {
      // First: what comes later is seen, and what came before is in the list of calls.
      const after = await this.#lastSeq({ ...options, signal });
      answering.seeOpen();
      for await (const event of this.follow(after, { ...options, signal })) answering.see(event);
    } catch (error) {
      if (!options.signal?.aborted) throw error;
    } finally {
      stop.abort();
    }
  }

  async #lastSeq(options: CallOptions): Promise<number> {
    try {
      return (await this.read({}, options)).last_seq;
    } catch (error) {
      // Without a store a session is short.
      if (MeerkatError.is(error, "SESSION_PERSISTENCE_DISABLED")) return 0;
      throw error;
    }
  }

  /** Returns the whole of a text. In an event, a large one is an object with its beginning and its end. */
  async text(body: Body, options: CallOptions = {}): Promise<string> {
    if (typeof body === "string") return body;
    const bytes = new Uint8Array(body.bytes);
    for (let offset = 0; offset < bytes.length;) {
      const piece = await this.blob({ blob: body.blob, offset }, options);
      bytes.set(piece, offset);
      offset += piece.length;
      if (piece.length === 0) throw new RangeError(`the text ends at ${offset} of ${bytes.length} bytes`);
    }
    return decoded(bytes);
  }
}

function specOf(output: unknown): unknown {
  return typeof output === "object" && output !== null && "schema" in output ? output : { schema: output };
}
