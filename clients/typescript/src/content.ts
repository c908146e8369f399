// What a prompt or a tool's answer may have beside text.
import type { CallContent, PromptBlock } from "./generated/api.js";

/** A prompt: a text, or texts, images and files in order. */
export type PromptInput = string | (string | PromptBlock)[];
/** An image, for a prompt or a tool's answer. */
export type ImageBlock = { type: "image"; media_type: string; data: string };
/** A text file or a PDF. */
export type FileBlock = { type: "file"; name: string; media_type: string; data: string };

/** Media types of files that are not `text/plain`. */
const TYPES: Record<string, string> = {
  csv: "text/csv",
  html: "text/html",
  js: "application/javascript",
  json: "application/json",
  jsonl: "application/x-ndjson",
  md: "text/markdown",
  ndjson: "application/x-ndjson",
  pdf: "application/pdf",
  sh: "application/x-sh",
  sql: "application/sql",
  toml: "application/toml",
  ts: "application/typescript",
  xml: "application/xml",
  yaml: "application/yaml",
  yml: "application/yaml",
};
const IMAGES: [string, RegExp][] = [
  ["image/png", /^\x89PNG/],
  ["image/jpeg", /^\xff\xd8\xff/],
  ["image/gif", /^GIF8/],
  ["image/webp", /^RIFF....WEBP/s],
];

/** Reads an image: a path, or its bytes. */
export async function image(source: string | Uint8Array): Promise<ImageBlock> {
  const text = binary(await bytesOf(source));
  const media_type = IMAGES.find(([, beginning]) => beginning.test(text))?.[0];
  if (!media_type) {
    const what = typeof source === "string" ? source : "the image";
    throw new TypeError(`${what} is neither PNG, JPEG, GIF nor WebP: convert it, or send it with \`file\``);
  }
  return { type: "image", media_type, data: btoa(text) };
}

/** Reads a text file or a PDF: a path, or its bytes and its name. */
export async function file(source: string | Uint8Array, name?: string): Promise<FileBlock> {
  name ??= typeof source === "string" ? source.split(/[\\/]/).pop()! : undefined;
  if (!name) throw new TypeError('give the file a name, such as `file(bytes, "notes.txt")`');
  const text = binary(await bytesOf(source));
  const ending = name.split(".").pop()!.toLowerCase();
  const media_type = text.startsWith("%PDF-") ? "application/pdf" : (TYPES[ending] ?? "text/plain");
  return { type: "file", name, media_type, data: btoa(text) };
}

async function bytesOf(source: string | Uint8Array): Promise<Uint8Array> {
  if (typeof source !== "string") return source;
  const { readFile } = await import("node:fs/promises");
  return readFile(source);
}

/** A string with a character for each byte. */
function binary(bytes: Uint8Array): string {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return text;
}

export function promptOf(prompt: PromptInput): string | PromptBlock[] {
  if (typeof prompt === "string") return prompt;
  if (!Array.isArray(prompt)) throw new TypeError("a prompt is a text, or a list of texts, images and files");
  return prompt.map((part) => (typeof part === "string" ? { type: "text", text: part } : part));
}

/** What a tool returned, as the model gets it: a string is text, blocks are themselves, everything else is JSON. */
export function contentOf(value: unknown): CallContent[] {
  if (value === undefined) return [];
  const parts: unknown[] = Array.isArray(value) ? value : [value];
  if (parts.some(isFile)) throw new TypeError("A tool returns text, images or JSON, but no files.");
  const isMixed = parts.some(isBlock) && parts.every((part) => typeof part === "string" || isBlock(part));
  if (typeof value === "string" || isMixed) {
    const blocks = parts.map((part) => (typeof part === "string" ? { type: "text", text: part } : part));
    return blocks.map((block) => JSON.parse(jsonOf(block)!));
  }
  const json = jsonOf(value);
  if (json === undefined) throw new TypeError("The tool returned neither a text, JSON nor blocks.");
  return [{ type: "json", value: JSON.parse(json) }];
}

/** Half a character cannot be sent. */
const jsonOf = (value: unknown): string | undefined =>
  JSON.stringify(value, (_, each) => (typeof each === "string" ? each.toWellFormed() : each));

function isFile(value: unknown): boolean {
  return typeof value === "object" && value !== null && (value as FileBlock).type === "file" && "media_type" in value;
}

function isBlock(value: unknown): value is CallContent {
  if (typeof value !== "object" || value === null) return false;
  const block = value as CallContent;
  if (block.type === "text") return typeof block.text === "string";
  if (block.type === "image") return typeof block.data === "string" && typeof block.media_type === "string";
  return block.type === "json" && "value" in block;
}
