// Answers the calls and approvals of a session.
import { MeerkatError } from "./error.js";
import { contentOf } from "./content.js";
import type { AnswerCallRequest, DecideApprovalRequest } from "./generated/operations.js";
import type { OpenCall, PendingApproval } from "./generated/api.js";
import type { MeerkatEvent, Session } from "./session.js";
import type { Tool } from "./tool.js";

type Answer = Pick<AnswerCallRequest, "outcome" | "content">;
export type Decision = DecideApprovalRequest["decision"] | Omit<DecideApprovalRequest, "session_id" | "call_id">;

/** Decides a call that asks, or answers a tool server's question (`approval.form`); without a decision the call goes on
 * waiting. */
export type OnApproval = (
  approval: PendingApproval,
  call: { signal: AbortSignal },
) => Decision | undefined | void | Promise<Decision | undefined | void>;

/** The calls of a session whose functions have begun in this program. None runs twice here, whatever streams see it. */
export class Calls {
  /** What they returned, until it is received. */
  readonly ran = new Map<string, Promise<Answer> | "received">();
  readonly stops = new Map<string, AbortController>();
}

/** What one stream answers. */
export class Answering {
  readonly #session: Session;
  readonly #calls: Calls;
  readonly #tools: Map<string, Tool>;
  readonly #onApproval: OnApproval | undefined;
  readonly #stop: AbortController;
  readonly #begun = new Set<string>();

  /** `stop` ends everything that runs; a failure aborts it with its reason. */
  constructor(
    session: Session,
    calls: Calls,
    options: { tools?: readonly Tool[]; onApproval?: OnApproval },
    stop: AbortController,
  ) {
    this.#session = session;
    this.#calls = calls;
    this.#tools = new Map((options.tools ?? []).map((tool) => [tool.name, tool]));
    this.#onApproval = options.onApproval;
    this.#stop = stop;
  }

  /** Begins to answer what an event asks. The event may be old, so the session is asked what waits. */
  see(event: MeerkatEvent): void {
    if (event.type === "call_requested") this.#spawn(this.#answerCalls());
    if (event.type === "approval_requested") this.#spawn(this.#decide({ ...event, turn: event.turn! }));
    if (event.type === "tool_finished") this.#calls.stops.get(event.call_id)?.abort();
  }

  /** Answers what waits already. */
  seeOpen(): void {
    this.#spawn(this.#answerCalls());
    this.#spawn(this.#decide());
  }

  #spawn(work: Promise<void>): void {
    work.catch((error) => this.#stop.abort(error));
  }

  async #answerCalls(): Promise<void> {
    if (this.#tools.size === 0) return;
    const { items } = await this.#session.calls({}, { signal: this.#stop.signal });
    const isNew = (call: OpenCall) => this.#tools.has(call.name) && !this.#begun.has(call.call_id);
    // A call of a tool that this program does not have is for another one.
    const calls = items.filter(isNew);
    for (const call of calls) this.#begun.add(call.call_id);
    await Promise.all(calls.map((call) => this.#answer(call)));
  }

  async #answer(call: OpenCall): Promise<void> {
    const { call_id } = call;
    const answer = await this.#ran(call);
    if (answer === "received") return;
    this.#stop.signal.throwIfAborted();
    const send = async (answer: Answer) => {
      try {
        // It is sent until it is received: the same answer twice is one.
        await this.#session.answerCall({ call_id, ...answer }, { signal: this.#stop.signal, patience: Infinity });
      } catch (error) {
        // Another program was quicker, or the turn ended.
        if (!MeerkatError.is(error, "IDEMPOTENCY_CONFLICT", "ITEM_NOT_FOUND")) throw error;
      }
    };
    try {
      await send(answer);
    } catch (error) {
      // What the tool returned cannot be an answer, for example because it is too large. The model has to know.
      if (!MeerkatError.is(error, "INVALID_REQUEST", "PAYLOAD_TOO_LARGE") || answer.outcome === "failed") throw error;
      await send(failed(error));
    }
    this.#calls.ran.set(call_id, "received");
  }

  /** Runs a call's function, unless it ran already. */
  #ran(call: OpenCall): Promise<Answer> | "received" {
    const { ran, stops } = this.#calls;
    const known = ran.get(call.call_id);
    if (known) return known;
    const stop = new AbortController();
    const signal = AbortSignal.any([stop.signal, this.#stop.signal]);
    const tool = this.#tools.get(call.name)!;
    const run = async (): Promise<Answer> => {
      try {
        const content = contentOf(await tool.run(call.arguments as never, { callId: call.call_id, signal }));
        return { outcome: "succeeded", content };
      } catch (error) {
        // A function that was stopped has no outcome: it may run again.
        if (signal.aborted) ran.delete(call.call_id);
        return failed(error);
      } finally {
        stops.delete(call.call_id);
      }
    };
    stops.set(call.call_id, stop);
    const answer = run();
    ran.set(call.call_id, answer);
    return answer;
  }

  async #decide(asked?: PendingApproval): Promise<void> {
    if (!this.#onApproval) return;
    const { signal } = this.#stop;
    for (const approval of await this.#pending(asked)) {
      if (this.#begun.has(approval.call_id)) continue;
      this.#begun.add(approval.call_id);
      this.#spawn(this.#decided(approval, signal));
    }
  }

  async #decided(approval: PendingApproval, signal: AbortSignal): Promise<void> {
    const decision = await this.#onApproval!(approval, { signal });
    if (!decision) return;
    const body = typeof decision === "string" ? { decision } : decision;
    try {
      await this.#session.decideApproval({ call_id: approval.call_id, ...body }, { signal });
    } catch (error) {
      // It was decided elsewhere, or the turn ended.
      if (!MeerkatError.is(error, "ITEM_NOT_FOUND")) throw error;
    }
  }

  async #pending(asked: PendingApproval | undefined): Promise<PendingApproval[]> {
    try {
      return (await this.#session.read({}, { signal: this.#stop.signal })).pending_approvals ?? [];
    } catch (error) {
      // A server without a store cannot say it, and has no old events.
      if (!MeerkatError.is(error, "SESSION_PERSISTENCE_DISABLED")) throw error;
      return asked ? [asked] : [];
    }
  }
}

function failed(error: unknown): Answer {
  return {
    outcome: "failed",
    content: [{ type: "text", text: error instanceof Error ? error.message : String(error) }],
  };
}
