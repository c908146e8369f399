// Images and files of a prompt: those of the next one are dropped on its text or pasted into it, and a prompt that was sent
// has a line for each.

import { button, el, number } from "./dom.js";

/** Describes the images and files of a prompt, one in a line. */
export const linesOf = (blocks) => (blocks ?? []).map((block) => el("p.facts", {},
  block.type === "image"
    ? `Image: ${block.media_type}, ${block.width} x ${block.height} pixels, ${number(block.bytes)} bytes`
    : `File: ${block.name}, ${block.media_type}, ${number(block.bytes)} bytes`));

const read = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});

/** A file as the block of a prompt. Browsers name few types; what has no other is sent as text. */
async function blockOf(file) {
  const data = await read(file);
  const type = file.type.split(";")[0];
  // A drawing in SVG is a text.
  if (type.startsWith("image/") && type !== "image/svg+xml") return { type: "image", media_type: type, data };
  const isKnown = type === "application/pdf" || type === "application/json" || type.startsWith("text/");
  return { type: "file", name: file.name, media_type: isKnown ? type : "text/plain", data };
}

/** The files of the next prompt, which `text` takes. */
export function attachments(text) {
  const node = el("div.attached");
  let files = [];
  const show = (now) => {
    files = now;
    node.replaceChildren(...files.map((file) => el("p.facts", {}, `${file.name}, ${number(file.size)} bytes `,
      button("Remove", () => show(files.filter((other) => other !== file)), { class: "quiet" }))));
  };
  const take = (event, from) => {
    if (!from?.files.length) return;
    event.preventDefault();
    show([...files, ...from.files]);
  };
  // Office programs copy a picture beside the text that is meant.
  text.addEventListener("paste", (event) => event.clipboardData?.types.includes("text/plain")
    || take(event, event.clipboardData));
  text.addEventListener("dragover", (event) => event.preventDefault());
  text.addEventListener("drop", (event) => take(event, event.dataTransfer));
  return {
    node,
    isEmpty: () => files.length === 0,
    /** Takes them out; `back` brings them again if the prompt was not sent. */
    take() {
      const taken = files;
      show([]);
      return { blocks: () => Promise.all(taken.map(blockOf)), back: () => show([...taken, ...files]) };
    },
  };
}
