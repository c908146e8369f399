import type { Body } from "./generated/api.js";
import type { MeerkatEvent } from "./session.js";

// A text may begin with this character, which a decoder would else drop.
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/** Reads bytes as text. */
export const decoded = (bytes: Uint8Array): string => decoder.decode(bytes);

/** Says of each event what is new of the model's text: every character once, in order, although a stream that came back
 * begins a text again and may have missed some of it. */
export class Texts {
  /** Bytes that were shown of each run of text of a step. */
  readonly #shown = new Map<string, number>();

  async *fresh(event: MeerkatEvent, whole: (body: Body) => Promise<string>): AsyncGenerator<string> {
    if (event.type === "text_delta") yield* this.#behind(event.step, event.block, event.offset, event.text);
    if (event.type === "assistant_message") {
      // Deltas count runs: blocks of one kind that follow each other, whatever calls are between them.
      let [run, kind, offset] = [-1, "", 0];
      for (const block of event.blocks) {
        if ((block.type !== "text" && block.type !== "reasoning") || !block.text) continue;
        if (block.type !== kind) [run, kind, offset] = [run + 1, block.type, 0];
        if (block.type !== "text") continue;
        const text = await whole(block.text);
        yield* this.#behind(event.step, run, offset, text);
        offset += new TextEncoder().encode(text).length;
      }
    }
    // The texts of a step that was cut off, as one.
    if (event.type === "partial_text") {
      const runs = [...this.#shown].filter(([run]) => run.startsWith(`${event.step}/`));
      const known = runs.reduce((sum, [, bytes]) => sum + bytes, 0);
      yield* this.#behind(event.step, -1, -known, await whole(event.text));
    }
  }

  /** A delta may begin before the end of what was shown, but never behind it. */
  *#behind(step: number, run: number, offset: number, text: string): Generator<string> {
    const key = `${step}/${run}`;
    const known = this.#shown.get(key) ?? 0;
    if (offset > known) return;
    const bytes = new TextEncoder().encode(text).subarray(known - offset);
    this.#shown.set(key, known + bytes.length);
    if (bytes.length > 0) yield decoded(bytes);
  }
}
