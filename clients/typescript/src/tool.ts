// Tools: functions of the program that the model may call.
import type { ClientTool } from "./generated/api.js";

/** The type of the values that a JSON Schema describes, as far as it is written out in the program. */
export type FromSchema<S> = S extends { const: infer C }
  ? C
  : S extends { enum: readonly (infer E)[] }
    ? E
    : S extends { anyOf: readonly (infer A)[] }
      ? A extends unknown
        ? FromSchema<A>
        : never
      : S extends { type: infer T }
        ? T extends readonly (infer Each)[]
          ? Each extends unknown
            ? OfType<S, Each>
            : never
          : OfType<S, T>
        : unknown;
type OfType<S, T> = T extends "string"
  ? string
  : T extends "number" | "integer"
    ? number
    : T extends "boolean"
      ? boolean
      : T extends "null"
        ? null
        : T extends "array"
          ? S extends { items: infer I }
            ? FromSchema<I>[]
            : unknown[]
          : T extends "object"
            ? S extends { properties: infer P }
              ? Properties<P, S extends { required: readonly (infer R)[] } ? R : never>
              : Record<string, unknown>
            : unknown;
type Properties<P, R> = Flat<
  { -readonly [K in keyof P as K extends R ? K : never]: FromSchema<P[K]> } & {
    -readonly [K in keyof P as K extends R ? never : K]?: FromSchema<P[K]>;
  }
>;
type Flat<T> = { [K in keyof T]: T[K] };

/** A JSON Schema of an object. */
export type ObjectSchema = { readonly type: "object"; readonly [key: string]: unknown };

/** What a tool is given beside its arguments. */
export interface ToolCall {
  /** The call's id: the same if the call comes again after a restart. */
  callId: string;
  /** Aborts when the answer is not needed any more: the turn or the program's stream ended. */
  signal: AbortSignal;
}

/** What a tool returns: a text, JSON, or blocks, also in a list with texts. */
export type ToolOutput = string | number | boolean | object | null | undefined | void;

/** A tool of the program. */
export interface Tool extends ClientTool {
  /** Returns a text, JSON, or blocks such as `image` makes; if it throws, the model reads the error's message. */
  readonly run: (input: never, call: ToolCall) => ToolOutput | Promise<ToolOutput>;
}

/** Makes a tool of a function. `effect` says what a second run of a call would do: `once` (the default) is a call that
 * must not run twice. */
export function tool<const S extends ObjectSchema>(
  definition: Omit<ClientTool, "input_schema"> & { input_schema: S },
  run: (input: FromSchema<S>, call: ToolCall) => ToolOutput | Promise<ToolOutput>,
): Tool {
  return { ...definition, run };
}
