/** A frame of a stream of server-sent events. */
export interface Frame {
  event: string;
  data: string;
  /** The newest id so far. */
  id: string;
}

/** Reads frames from bytes that may be split anywhere. A frame without its end is dropped. */
export async function* frames(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<Frame, void, undefined> {
  const decoder = new TextDecoder();
  let rest = "";
  let endsWithCr = false;
  let id = "";
  let frame = { event: "", data: [] as string[] };
  for await (const chunk of chunks) {
    let text = decoder.decode(chunk, { stream: true });
    if (text === "") continue;
    // A line may end with CR, LF or both, and they may be in two chunks.
    if (endsWithCr && text.startsWith("\n")) text = text.slice(1);
    endsWithCr = text.endsWith("\r");
    const lines = (rest + text).split(/\r\n|\r|\n/);
    rest = lines.pop()!;
    for (const line of lines) {
      if (line === "") {
        if (frame.data.length > 0) yield { event: frame.event || "message", data: frame.data.join("\n"), id };
        frame = { event: "", data: [] };
        continue;
      }
      const colon = line.indexOf(":");
      const name = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (name === "data") frame.data.push(value);
      if (name === "event") frame.event = value;
      if (name === "id") id = value;
    }
  }
}
