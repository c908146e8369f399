// Answers the calls and approvals of a session.
import { type Answer, type Calls, failed } from "./calls.js";
import { contentOf } from "./content.js";
import { MeerkatError } from "./error.js";
import type { OpenCall, PendingApproval } from "./generated/api.js";
import type { DecideApprovalRequest } from "./generated/operations.js";
import type { CallOptions } from "./operation.js";
import type { MeerkatEvent, Session } from "./session.js";
import type { Tool } from "./tool.js";

export type Decision = DecideApprovalRequest["decision"] | Omit<DecideApprovalRequest, "session_id" | "call_id">;

/** Decides a call that asks, or answers a tool server's question (`approval.form`); without a decision the call goes on
 * waiting. */
export type OnApproval = (
  approval: PendingApproval,
  call: { signal: AbortSignal },
) => Decision | undefined | void | Promise<Decision | undefined | void>;

/** What one stream answers. */
export class Answering {
  readonly #session: Session;
  readonly #calls: Calls;
  readonly #tools: Map<string, Tool>;
  readonly #onApproval: OnApproval | undefined;
  readonly #stop: AbortController;
  readonly #options: CallOptions;
  readonly #begun = new Set<string>();
  /** How often the list of calls was asked for since it was last read to its end. */
  #asked = 0;

  /** `stop` ends everything that runs; a failure aborts it with its reason. */
  constructor(
    session: Session,
    calls: Calls,
    options: { tools?: readonly Tool[]; onApproval?: OnApproval; patience?: number },
    stop: AbortController,
  ) {
    this.#session = session;
    this.#calls = calls;
    this.#tools = new Map((options.tools ?? []).map((tool) => [tool.name, tool]));
    this.#onApproval = options.onApproval;
    this.#stop = stop;
    this.#options = { signal: stop.signal, patience: options.patience };
  }

  /** Begins to answer what an event asks. The event may be old, so the session is asked what waits. */
  see(event: MeerkatEvent): void {
    if (event.type === "call_requested") this.#spawn(this.#answerCalls());
    if (event.type === "approval_requested") this.#spawn(this.#decide({ ...event, turn: event.turn! }));
    if (event.type === "tool_finished") this.#calls.end(this.#id(event));
  }

  /** Answers what waits already. */
  seeOpen(): void {
    this.#spawn(this.#answerCalls());
    this.#spawn(this.#decide());
  }

  #spawn(work: Promise<void>): void {
    work.catch((error) => this.#stop.abort(error));
  }

  #id({ call_id }: { call_id: string }): string {
    return `${this.#session.id}/${call_id}`;
  }

  async #answerCalls(): Promise<void> {
    // If the list is being read, it is read once more.
    if (this.#tools.size === 0 || this.#asked++ > 0) return;
    for (let seen = 0; seen < this.#asked;) {
      seen = this.#asked;
      const { items } = await this.#session.calls({}, this.#options);
      for (const call of items) {
        // A call of a tool that this program does not have is for another one.
        if (!this.#tools.has(call.name) || this.#begun.has(call.call_id)) continue;
        this.#begun.add(call.call_id);
        this.#spawn(this.#answer(call));
      }
    }
    this.#asked = 0;
  }

  async #answer(call: OpenCall): Promise<void> {
    const { call_id } = call;
    const tool = this.#tools.get(call.name)!;
    const run = async (signal: AbortSignal): Promise<Answer> => {
      const content = contentOf(await tool.run(call.arguments as never, { callId: call_id, signal }));
      return { outcome: "succeeded", content };
    };
    let answer = await this.#calls.answer(this.#id(call), run, this.#stop.signal);
    for (let refusals = 0; answer; refusals++) {
      try {
        // It is sent until it is received: the same answer twice is one.
        await this.#session.answerCall({ call_id, ...answer }, { ...this.#options, patience: Infinity });
        break;
      } catch (error) {
        // Another program was quicker, or the turn ended.
        if (MeerkatError.is(error, "IDEMPOTENCY_CONFLICT", "ITEM_NOT_FOUND")) break;
        if (!MeerkatError.is(error, "INVALID_REQUEST", "PAYLOAD_TOO_LARGE") || refusals > 1) throw error;
        // What the tool returned cannot be an answer, for example because it is too large. The model has to know.
        answer = failed(refusals === 0 ? error : "The tool's answer cannot be sent.");
      }
    }
    if (answer) this.#calls.end(this.#id(call));
  }

  async #decide(asked?: PendingApproval): Promise<void> {
    if (!this.#onApproval) return;
    for (const approval of await this.#pending(asked)) {
      if (this.#begun.has(approval.call_id)) continue;
      this.#begun.add(approval.call_id);
      this.#spawn(this.#decided(approval));
    }
  }

  async #decided(approval: PendingApproval): Promise<void> {
    const decision = await this.#onApproval!(approval, { signal: this.#stop.signal });
    if (!decision) return;
    const body = typeof decision === "string" ? { decision } : decision;
    try {
      await this.#session.decideApproval({ call_id: approval.call_id, ...body }, this.#options);
    } catch (error) {
      // It was decided elsewhere, or the turn ended.
      if (!MeerkatError.is(error, "IDEMPOTENCY_CONFLICT", "ITEM_NOT_FOUND")) throw error;
    }
  }

  async #pending(asked: PendingApproval | undefined): Promise<PendingApproval[]> {
    try {
      return (await this.#session.read({}, this.#options)).pending_approvals ?? [];
    } catch (error) {
      // A server without a store cannot say it, and has no old events.
      if (!MeerkatError.is(error, "SESSION_PERSISTENCE_DISABLED")) throw error;
      return asked ? [asked] : [];
    }
  }
}
