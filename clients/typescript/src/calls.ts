// The calls whose functions run in this program, or ran.
import type { AnswerCallRequest } from "./generated/operations.js";

/** What a call is answered with. */
export type Answer = Pick<AnswerCallRequest, "outcome" | "content">;

/** Calls that are over and still known, so that a late list of open calls does not start one again. */
const KEPT = 1_000;
/** Characters of an error's message that the model reads. */
const MESSAGE = 4_000;

interface Call {
  /** Nothing if the function was stopped. */
  answer: Promise<Answer | undefined>;
  stop: AbortController;
  /** Streams that wait for the answer. */
  waiting: number;
  isOver: boolean;
}

/** No function of a call runs twice in one program, whatever streams see the call. */
export class Calls {
  readonly #all = new Map<string, Call>();

  /** Runs a call's function, or waits for the run that began already. It is stopped when no stream waits for it any
   * more; if another one comes then, it runs again. There is no answer if the call is over, or `signal` aborts. */
  async answer(
    id: string,
    run: (signal: AbortSignal) => Promise<Answer>,
    signal: AbortSignal,
  ): Promise<Answer | undefined> {
    while (!signal.aborted) {
      const call = this.#all.get(id) ?? this.#begun(id, run);
      const leave = () => {
        if (--call.waiting === 0) call.stop.abort(signal.reason);
      };
      call.waiting++;
      signal.addEventListener("abort", leave);
      const answer = await call.answer;
      signal.removeEventListener("abort", leave);
      if (signal.aborted || call.isOver) return undefined;
      call.waiting--;
      if (answer) return answer;
    }
    return undefined;
  }

  #begun(id: string, run: (signal: AbortSignal) => Promise<Answer>): Call {
    const stop = new AbortController();
    const ran = async () => {
      try {
        return await run(stop.signal);
      } catch (error) {
        if (!stop.signal.aborted) return failed(error);
        // It has no outcome, and may run again.
        if (!this.#all.get(id)?.isOver) this.#all.delete(id);
        return undefined;
      }
    };
    const call = { answer: ran(), stop, waiting: 0, isOver: false };
    this.#all.set(id, call);
    return call;
  }

  /** The call has its answer, or needs none any more. */
  end(id: string): void {
    const call = this.#all.get(id);
    if (!call || call.isOver) return;
    call.isOver = true;
    call.answer = Promise.resolve(undefined);
    call.stop.abort();
    for (const [old, { isOver }] of this.#all) {
      if (this.#all.size <= KEPT) return;
      if (isOver) this.#all.delete(old);
    }
  }
}

/** The answer of a call that failed. */
export function failed(error: unknown): Answer {
  const message = (error instanceof Error && error.message) || String(error);
  return { outcome: "failed", content: [{ type: "text", text: message.slice(0, MESSAGE).toWellFormed() }] };
}
