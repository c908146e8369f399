import type { Body } from "./generated/api.js";
import type { MeerkatEvent } from "./session.js";

/** Says of each event what is new of the model's text: every character once, in order, although a stream that came back
 * begins a text anew and may have missed some of it. */
export class Texts {
  /** Bytes that were shown of each block of a step. */
  readonly #shown = new Map<string, number>();
  readonly #whole: (body: Body) => Promise<string>;

  constructor(whole: (body: Body) => Promise<string>) {
    this.#whole = whole;
  }

  async *fresh(event: MeerkatEvent): AsyncGenerator<string> {
    if (event.type === "text_delta") yield* this.#behind(event.step, event.block, event.offset, event.text);
    if (event.type === "assistant_message") {
      const blocks = event.blocks.filter((block) => block.type === "text" || block.type === "reasoning");
      for (const [number, { type, text }] of blocks.entries()) {
        if (type === "text" && text) yield* this.#behind(event.step, number, 0, await this.#whole(text));
      }
    }
    // The texts of a step that was cut off, as one.
    if (event.type === "partial_text") {
      const blocks = [...this.#shown].filter(([block]) => block.startsWith(`${event.step}/`));
      const known = blocks.reduce((sum, [, bytes]) => sum + bytes, 0);
      yield* this.#behind(event.step, -1, -known, await this.#whole(event.text));
    }
  }

  /** A delta may begin before the end of what was shown, but never behind it. */
  *#behind(step: number, block: number, offset: number, text: string): Generator<string> {
    const key = `${step}/${block}`;
    const known = this.#shown.get(key) ?? 0;
    if (offset > known) return;
    const bytes = new TextEncoder().encode(text).subarray(known - offset);
    this.#shown.set(key, known + bytes.length);
    if (bytes.length > 0) yield new TextDecoder().decode(bytes);
  }
}
