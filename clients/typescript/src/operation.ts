// How an operation is sent, and the types of its request and its answer.
import type { operations } from "./generated/api.js";

/** An operation as it is sent over REST. */
export interface Operation {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  path: string;
  /** Fields of the request that go into the query; those of the path go there, and the others are the body. */
  query: string[];
  kind: "json" | "bytes" | "stream";
  /** The body is bytes. */
  isBinary?: boolean;
  /** It takes an idempotency key. */
  isKeyed?: boolean;
  /** It starts a turn, and is asked not to wait for the turn's end. */
  isAsync?: boolean;
  /** Doing it twice is like doing it once. */
  isRepeatable?: boolean;
  /** With this field, doing it twice is like doing it once. */
  repeatsWith?: string;
  /** It may take long. */
  isSlow?: boolean;
}

/** What any request may say beside its fields. */
export interface CallOptions {
  /** An idempotency key of your own, for operations that take one: the same key is the same session or turn. */
  key?: string;
  /** Gives the request up. */
  signal?: AbortSignal;
  /** Milliseconds for which a request is repeated. */
  patience?: number;
}

type Flat<T> = { [K in keyof T]: T[K] };
type Given<T> = [NonNullable<T>] extends [never] ? unknown : NonNullable<T>;
type Place<O, K extends string> = O extends { parameters: { [P in K]?: infer T } } ? Given<T> : unknown;
type Body<O> = O extends { requestBody?: infer B } ? Content<Given<B>> : unknown;
type Content<B> = B extends { content: { "application/json": infer J } }
  ? J
  : B extends { content: { "application/octet-stream": unknown } }
    ? { body: Uint8Array | Blob }
    : unknown;

/** All fields of an operation's request. */
export type Request<K extends keyof operations> = Flat<
  Place<operations[K], "path"> & Place<operations[K], "query"> & Body<operations[K]>
>;

/** The JSON that an operation answers with. */
export type Answer<K extends keyof operations, Status extends number> = operations[K] extends {
  responses: { [S in Status]: { content: { "application/json": infer T } } };
}
  ? T
  : never;
