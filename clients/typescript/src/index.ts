import type { CreateSessionRequest } from "./generated/operations.js";
import { Operations } from "./generated/operations.js";
import type { CallOptions, Operation } from "./operation.js";
import { Session } from "./session.js";
import { type MeerkatOptions, Transport } from "./transport.js";

export type { Decision, OnApproval } from "./answering.js";
export { type FileBlock, file, type ImageBlock, image, type PromptInput } from "./content.js";
export { type Code, MeerkatError } from "./error.js";
export type * from "./generated/api.js";
export type * from "./generated/operations.js";
export type { CallOptions } from "./operation.js";
export {
  type AnswerOptions,
  type MeerkatEvent,
  type Result,
  Session,
  type TurnOptions,
  TurnStream,
} from "./session.js";
export { type FromSchema, type ObjectSchema, type Tool, type ToolCall, type ToolOutput, tool } from "./tool.js";
export type { MeerkatOptions } from "./transport.js";

/** A meerkat server. It has a method for each operation, and holds nothing that a restart needs. */
export class Meerkat extends Operations {
  readonly #transport: Transport;

  constructor(options: MeerkatOptions = {}) {
    super();
    this.#transport = new Transport(options);
  }

  /** The server's address. */
  get url(): string {
    return this.#transport.url;
  }

  protected call<T>(operation: Operation, request: object, options: CallOptions): Promise<T> {
    return this.#transport.call(operation, request, options);
  }

  /** Opens the session with this id, without asking the server. */
  session(id: string): Session;
  /** Creates a session. With the `key` of an earlier request it is that session. */
  session(request?: CreateSessionRequest, options?: CallOptions): Promise<Session>;
  session(request: string | CreateSessionRequest = {}, options: CallOptions = {}): Session | Promise<Session> {
    if (typeof request === "string") return new Session(request, this.#transport);
    return this.createSession(request, options).then(({ session_id }) => new Session(session_id, this.#transport));
  }
}
