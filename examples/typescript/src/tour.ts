// What a program does with meerkat, one function each.
import { file, image, type Meerkat, MeerkatError, type MeerkatEvent, type Session, tool } from "meerkat-client";

/** Creates a session. */
export async function create(meerkat: Meerkat, title: string): Promise<Session> {
  const session = await meerkat.session({ title, labels: { app: "tour" } });
  return session;
}

/** Runs a turn, and waits for its end. A turn that failed is a result, too: its request succeeded. */
export async function ask(session: Session, prompt: string): Promise<string> {
  const result = await session.run(prompt);
  if (result.status !== "completed") throw new Error(result.error?.message);
  return result.text;
}

/** Shows the text while the model says it. */
export async function streamed(session: Session, prompt: string, show: (piece: string) => void): Promise<string> {
  const result = await session.run(prompt, { onText: show });
  return result.status;
}

/** Reads a turn's events as they happen, and then its result. */
export async function watch(session: Session, prompt: string): Promise<string[]> {
  const seen: string[] = [];
  const stream = session.stream(prompt);
  for await (const event of stream) {
    if (event.type === "tool_finished") seen.push(`${event.name} ${event.outcome}`);
    if (event.type === "turn_completed") seen.push(event.stop_reason);
  }
  seen.push(stream.result!.text);
  return seen;
}

/** A tool: a name, a description and a schema for the model, and a function. The schema gives the arguments their
 * types. */
export const weather = tool(
  {
    name: "get_weather",
    description: "Weather of a city, now.",
    input_schema: {
      type: "object",
      properties: { city: { type: "string" }, unit: { enum: ["celsius", "fahrenheit"] } },
      required: ["city"],
    },
    effect: "read_only",
  },
  async ({ city, unit = "celsius" }, { signal }) => {
    if (city === "Atlantis") throw new Error("There is no weather station.");
    signal.throwIfAborted();
    return { city, [unit]: unit === "celsius" ? 21 : 70 };
  },
);

/** Runs a turn whose calls this program answers. */
export async function withTools(session: Session, prompt: string): Promise<string> {
  const result = await session.run(prompt, { tools: [weather] });
  return result.text;
}

/** Shows the model a picture and a file. */
export async function look(session: Session, picture: string, notes: string): Promise<string> {
  const result = await session.run(["@echo blocks", await image(picture), await file(notes)]);
  return result.text;
}

/** Asks for JSON by a schema, and gets it with the schema's type. */
export async function extract(session: Session, prompt: string): Promise<{ city: string; people: number } | null> {
  const { output } = await session.run(prompt, {
    output: {
      type: "object",
      properties: { city: { type: "string" }, people: { type: "integer" } },
      required: ["city", "people"],
    },
  });
  return output;
}

/** Decides each call that asks. Return nothing to leave it to another program. */
export async function approve(session: Session, prompt: string, decision: "approve" | "deny"): Promise<string[]> {
  const asked: string[] = [];
  await session.run(prompt, {
    onApproval: ({ name, arguments: what }) => {
      asked.push(`${name} ${what}`);
      return decision;
    },
  });
  return asked;
}

/** Says how the model is asked, and what the turn may cost. */
export async function careful(session: Session, prompt: string): Promise<string> {
  const result = await session.run(prompt, {
    options: { temperature: 0.2, max_output_tokens: 500 },
    budgets: { steps: 5, wall_ms: 60_000 },
  });
  return `${result.text} ${result.usage.output_tokens} tokens, ${result.cost?.amount ?? "unknown"}`;
}

/** Adds a text to the running turn: the model reads it before its next step. */
export async function steer(session: Session, prompt: string): Promise<string> {
  const result = await session.run(prompt, { policy: "steer" });
  return result.text;
}

/** Runs the same turn twice, as a program that starts again does, and returns how many turns the session has. */
export async function twice(session: Session): Promise<number> {
  await session.run("@say Once.", { key: "order-17" });
  await session.run("@say Once.", { key: "order-17" });
  return (await session.read()).turn_count;
}

/** Reads what happened since a cursor that was kept, and returns the new seqs. */
export async function since(session: Session, cursor: number): Promise<number[]> {
  const page = await session.events({ since_seq: cursor });
  return page.items.map((event) => event.seq);
}

/** Reads events for ever: what was, and what comes. */
export async function follow(session: Session, cursor: number, see: (event: MeerkatEvent) => void): Promise<void> {
  for await (const event of session.follow(cursor)) see(event);
}

/** Ends a turn, and returns false if it had ended already. */
export async function interrupt(session: Session, turn: number): Promise<boolean> {
  try {
    await session.interrupt({ turn });
    return true;
  } catch (error) {
    if (MeerkatError.is(error, "SESSION_NOT_RUNNING")) return false;
    throw error;
  }
}

/** Makes a session that shares the beginning of another one, up to the end of a turn. */
export async function fork(meerkat: Meerkat, session: Session, turn: number): Promise<Session> {
  const { session_id } = await session.fork({ turn });
  return meerkat.session(session_id);
}

/** Searches the answers in all sessions, and returns the texts that fit best. */
export async function search(meerkat: Meerkat, query: string): Promise<string[]> {
  const found = await meerkat.searchMemory({ query, role: "assistant", limit: 3 });
  return found.items.map((hit) => hit.text);
}

/** Reads what was said. */
export async function said(session: Session): Promise<string[]> {
  const { items } = await session.history({ limit: 100 });
  return items.map((item) => item.role);
}

/** Chooses what to do by an error's code. The codes are in docs/ERRORS.md; a misspelt one does not compile. */
export function explain(error: MeerkatError): string {
  switch (error.code) {
    case "SESSION_NOT_FOUND":
      return "The session was deleted: start another one.";
    case "SESSION_BUSY":
      return "A turn is running: wait, interrupt it, or queue this one.";
    case "UNAUTHENTICATED":
      return "The token is wrong.";
    case "UNREACHABLE":
      return "The server does not answer.";
    default:
      return error.retryable ? "Try again later." : error.message;
  }
}
