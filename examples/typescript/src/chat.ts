// A chat backend that keeps nothing: what was said is in meerkat.
import { createServer } from "node:http";
import { json } from "node:stream/consumers";
import { image, Meerkat, MeerkatError, type Result, type Session, tool } from "meerkat-client";

const meerkat = new Meerkat();
const orders: Record<string, string> = { "17": "sent on Monday", "18": "being packed" };

const findOrder = tool(
  {
    name: "find_order",
    description: "Says how far an order is.",
    input_schema: { type: "object", properties: { number: { type: "string" } }, required: ["number"] },
    effect: "read_only",
  },
  ({ number }) => orders[number] ?? "There is no such order.",
);

const SUMMARY = {
  type: "object",
  properties: { title: { type: "string" }, is_solved: { type: "boolean" } },
  required: ["title", "is_solved"],
} as const;

/** Only the last turn of a chat can go on. */
async function canGoOn(session: Session, { error, seq }: Result, key: string): Promise<boolean> {
  if (error?.details.reason !== "process_ended") return false;
  const next = (await session.events({ since_seq: seq })).items.find((event) => event.type === "turn_started");
  return !next || next.key?.key === key;
}

const server = createServer(async (request, response) => {
  const [, , chat, what] = request.url!.split("/");
  try {
    if (!chat) return response.end(JSON.stringify({ chat: (await meerkat.session()).id }));
    const session = meerkat.session(chat);
    if (request.method === "GET") return response.end(JSON.stringify(await session.history()));
    // The page makes the key, and sends its message again under it until it has the whole answer.
    const { key, text, picture } = (await json(request)) as { key: string; text: string; picture?: string };
    if (!key || !text) throw new TypeError("a message has a key and a text");
    if (what === "summary") {
      const { output, error } = await session.run(text, { key, policy: "queue", output: SUMMARY });
      return response.end(JSON.stringify(output ?? error));
    }
    const pictures = picture ? [await image(Buffer.from(picture, "base64"))] : [];
    const onText = (piece: string) => void response.write(piece);
    const options = { tools: [findOrder], onText };
    let result: Result = await session.run([text, ...pictures], { key, policy: "queue", ...options });
    // If meerkat itself was killed in the middle of an answer, the turn goes on.
    for (let n = 0; await canGoOn(session, result, `${key}/${n}`); n++) {
      result = await session.resume({ key: `${key}/${n}`, ...options });
    }
    response.end(result.error ? `\n[${result.error.message}]` : "");
  } catch (error) {
    // The page sees that the answer broke off.
    if (response.headersSent) return response.destroy();
    const isRefused = error instanceof MeerkatError;
    response.writeHead(isRefused ? (error.retryable ? 503 : (error.status ?? 500)) : 400).end(String(error));
  }
});
server.listen(Number(process.env.PORT ?? 8080), "127.0.0.1", () => {
  console.log("listening", server.address());
});
