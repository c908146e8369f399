// Requests: what may be repeated is repeated until there is an answer, and a stream that breaks begins anew.
import { Calls } from "./calls.js";
import { isLost, isUnsent, lost, MeerkatError, refusal, unexpected } from "./error.js";
import type { CallOptions, Operation } from "./operation.js";
import { frames } from "./sse.js";

/** Milliseconds for which a request is repeated, and those before the server has ever answered. */
const PATIENCE = 60_000;
const FIRST_PATIENCE = 5_000;
/** Milliseconds without a sign of life, after which a connection counts as lost. A stream has one every 15 seconds. */
const SILENCE = 60_000;
/** Bytes that a slow line sends in a millisecond. */
const SLOW = 10;
const PAUSE_MIN = 50;
const PAUSE_MAX = 2_000;

/** Where the server is, and how long to wait for it. */
export interface MeerkatOptions {
  /** The server's address; else the variable `MEERKAT_URL`, else `http://127.0.0.1:7670`. */
  url?: string;
  /** The server's token; else the variable `MEERKAT_TOKEN`. */
  token?: string;
  /** Milliseconds for which a request that may be repeated is repeated: 60,000, and 5,000 until the server has answered
   * once. */
  patience?: number;
}

/** A request of a stream. */
export interface StreamRequest {
  method: "GET" | "POST";
  path: string;
  headers: Record<string, string>;
  body?: string;
}

/** A frame of a stream, with its JSON, which depends on the stream. */
interface Message {
  event: string;
  data: any;
}

/** Makes a part of a path. */
export function segment(value: unknown): string {
  const text = String(value);
  if (["", ".", ".."].includes(text)) throw new TypeError(`${JSON.stringify(text)} is not an id or a name`);
  return encodeURIComponent(text);
}

export class Transport {
  readonly url: string;
  readonly #token: string;
  readonly #patience: number | undefined;
  /** The calls whose functions run in this program. */
  readonly calls = new Calls();
  #hasAnswered = false;

  constructor(options: MeerkatOptions) {
    const env = globalThis.process?.env ?? {};
    const url = options.url ?? env.MEERKAT_URL ?? "http://127.0.0.1:7670";
    if (!/^https?:\/\//.test(url) || !URL.canParse(url)) {
      throw new TypeError(`${JSON.stringify(url)} is not an address of a server, such as http://127.0.0.1:7670`);
    }
    const token = (options.token ?? env.MEERKAT_TOKEN ?? "").trim();
    if (token === "") {
      throw new TypeError(
        "the server's token is missing: export MEERKAT_TOKEN=$(meerkat token), or pass it as `token`",
      );
    }
    this.url = url.replace(/\/+$/, "");
    this.#token = token;
    this.#patience = options.patience;
  }

  /** Sends a request, again and again if it may be repeated. */
  async call<T>(operation: Operation, request: object, options: CallOptions): Promise<T> {
    const fields = new Map(Object.entries(request).filter(([, value]) => value !== undefined));
    const taken = (name: string) => {
      const value = fields.get(name);
      fields.delete(name);
      return value;
    };
    const path = operation.path.replace(/\{(\w+)\}/g, (_, name) => segment(taken(name)));
    const query = new URLSearchParams();
    for (const name of operation.query) {
      const value = taken(name) ?? null;
      if (typeof value !== "object") query.append(name, String(value));
      else for (const [key, each] of Object.entries(value ?? {})) query.append(`${name}[${key}]`, String(each));
    }
    const headers: Record<string, string> = { Accept: "application/json, */*;q=0.5" };
    if (operation.isKeyed) headers["Idempotency-Key"] = options.key ?? crypto.randomUUID();
    if (operation.isAsync) headers.Prefer = "respond-async";
    const repeats = operation.repeatsWith && fields.get(operation.repeatsWith) != null;
    let body: string | Uint8Array<ArrayBuffer> | Blob | null = null;
    if (operation.isBinary) {
      headers["Content-Type"] = "application/octet-stream";
      body = fields.get("body");
    } else if (fields.size > 0) {
      headers["Content-Type"] = "application/json";
      body = JSON.stringify(Object.fromEntries(fields));
    }
    const isRepeatable = operation.isKeyed || operation.isRepeatable || repeats;
    // What waits for a turn, or looks through the whole store, has no bound.
    const isQuick = isRepeatable && operation.kind === "json" && !fields.get("wait") && !operation.isSlow;
    const limit = SILENCE + Number(query.get("wait_ms")) + timeOf(body);

    const pauses = new Repeats(() => this.#patienceOf(options), options.signal);
    for (;;) {
      try {
        const signals = [options.signal, isQuick ? AbortSignal.timeout(limit) : undefined];
        const signal = AbortSignal.any(signals.filter((each) => each !== undefined));
        const target = query.size > 0 ? `${path}?${query}` : path;
        return (await this.#answer(operation, target, { method: operation.method, headers, body, signal })) as T;
      } catch (error) {
        options.signal?.throwIfAborted();
        if (isRepeatable || isUnsent(error)) await pauses.after(error);
        else if (!isLost(error)) throw error;
        else {
          const help = "the request may have been done or not, so look before you send it again";
          const message = `the answer of ${this.url} was lost: ${help}`;
          const { code, details, status } = error;
          throw new MeerkatError({ code, message, retryable: false, details }, status, error);
        }
      }
    }
  }

  async #answer(operation: Operation, target: string, init: RequestInit): Promise<unknown> {
    const response = await this.#fetched(target, init);
    if (operation.kind === "stream") return response.body;
    if (operation.kind === "bytes") return new Uint8Array(await this.#whole(() => response.arrayBuffer()));
    return parsed(this.url, response.status, await this.#whole(() => response.text()));
  }

  /** Yields the frames of a stream. If it breaks, `request` says how to go on, or nothing if all of it was there. */
  async *stream(
    request: () => StreamRequest | undefined,
    options: CallOptions,
  ): AsyncGenerator<Message, void, undefined> {
    const repeats = new Repeats(() => this.#patienceOf(options), options.signal);
    let last = "";
    for (let next = request(); next; next = request()) {
      const stop = new AbortController();
      try {
        const { path, ...init } = next;
        const signal = AbortSignal.any([stop.signal, ...(options.signal ? [options.signal] : [])]);
        const headers = { ...init.headers, Accept: "text/event-stream" };
        const limit = SILENCE + timeOf(init.body ?? null);
        const response = await timed(stop, limit, () => this.#fetched(path, { ...init, headers, signal }));
        if (!response.body || !response.headers.get("content-type")?.startsWith("text/event-stream")) {
          throw unexpected(this.url, response.status, await response.text());
        }
        const since = Date.now();
        for await (const { event, data, id } of frames(this.#chunks(response.body, stop))) {
          const value = parsed(this.url, response.status, data);
          if (event === "failure") throw new MeerkatError(value);
          // An event that comes again on each short connection is not a sign of life.
          if ((id && id !== last) || Date.now() - since > PAUSE_MAX) repeats.restart();
          last = id || last;
          yield { event, data: value };
        }
        throw lost(this.url, "the stream ended");
      } catch (error) {
        options.signal?.throwIfAborted();
        await repeats.after(error);
      } finally {
        stop.abort();
      }
    }
  }

  async *#chunks(body: ReadableStream<Uint8Array>, stop: AbortController): AsyncGenerator<Uint8Array> {
    const reader = body.getReader();
    for (;;) {
      const { done, value } = await this.#whole(() => timed(stop, SILENCE, () => reader.read()));
      if (done) return;
      yield value;
    }
  }

  async #fetched(target: string, init: RequestInit): Promise<Response> {
    const headers = { ...(init.headers as Record<string, string>), Authorization: `Bearer ${this.#token}` };
    const response = await this.#whole(() => fetch(this.url + target, { ...init, headers }));
    if (response.ok) {
      this.#hasAnswered = true;
      return response;
    }
    throw refusal(this.url, response.status, await this.#whole(() => response.text()));
  }

  /** A connection that fails is one error, whatever the platform calls it. */
  async #whole<T>(part: () => Promise<T>): Promise<T> {
    try {
      return await part();
    } catch (cause) {
      throw lost(this.url, cause);
    }
  }

  #patienceOf(options: CallOptions): number {
    return options.patience ?? this.#patience ?? (this.#hasAnswered ? PATIENCE : FIRST_PATIENCE);
  }
}

/** Milliseconds that an upload may take. */
function timeOf(body: string | Uint8Array | Blob | null): number {
  const size = typeof body === "string" ? body.length : body instanceof Blob ? body.size : (body?.byteLength ?? 0);
  return Math.ceil(size / SLOW);
}

function parsed(url: string, status: number, text: string): any {
  try {
    return JSON.parse(text);
  } catch {
    throw unexpected(url, status, text);
  }
}

/** Gives a connection up that is silent for too long. */
async function timed<T>(stop: AbortController, limit: number, part: () => Promise<T>): Promise<T> {
  const timer = setTimeout(() => stop.abort(new Error(`silent for ${limit / 1000} s`)), limit);
  try {
    return await part();
  } finally {
    clearTimeout(timer);
  }
}

/** Pauses that grow, until patience ends. */
class Repeats {
  readonly #patience: () => number;
  readonly #signal: AbortSignal | undefined;
  #since: number | undefined;
  #pause = PAUSE_MIN;

  constructor(patience: () => number, signal: AbortSignal | undefined) {
    this.#patience = patience;
    this.#signal = signal;
  }

  restart(): void {
    this.#since = undefined;
    this.#pause = PAUSE_MIN;
  }

  /** Pauses after an error that may pass, or throws it. */
  async after(error: unknown): Promise<void> {
    // A busy session refuses at once, as the request's policy says.
    if (!(error instanceof MeerkatError) || !error.retryable || error.code === "SESSION_BUSY") throw error;
    this.#since ??= Date.now();
    // Many clients come back at different times.
    const pause = this.#pause * (0.5 + Math.random() / 2);
    if (Date.now() - this.#since + pause > this.#patience()) throw error;
    this.#pause = Math.min(2 * this.#pause, PAUSE_MAX);
    await sleep(pause, this.#signal);
  }
}

function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      signal?.aborted ? reject(signal.reason) : resolve();
    };
    const timer = setTimeout(end, ms);
    signal?.addEventListener("abort", end);
  });
}
