// How the model is asked: what the next turn says of it, chosen beside its prompt.

import { el } from "../dom.js";

const EFFORTS = ["none", "low", "medium", "high"];

/** What was chosen for sessions: another view must not lose it. */
const chosen = new Map();

/** The fields, and what they say. A field without a value leaves its option to the session. */
export function options(id) {
  const values = chosen.get(id) ?? {};
  chosen.set(id, values);
  const heading = el("summary.facts");
  const draw = () => {
    const set = Object.entries(values).map(([name, value]) => `${name} ${value}`);
    heading.replaceChildren(`Options${set.length > 0 ? `: ${set.join(", ")}` : ""}`);
  };
  const field = (name, text, input, read) => {
    input.value = values[name] ?? "";
    input.addEventListener("input", () => {
      // What is half written is no number yet, and is not sent (`areValid`).
      if (input.value === "" || !input.checkValidity()) delete values[name];
      else values[name] = read(input.value);
      draw();
    });
    return el("label.facts", {}, text, " ", input);
  };
  const effort = el("select", {}, el("option", { value: "" }, "the session's"),
    EFFORTS.map((level) => el("option", { value: level }, level)));
  const numbers = { type: "number", placeholder: "the session's" };
  const node = el("details.options", {}, heading, el("div.actions", {},
    field("effort", "Effort", effort, String),
    field("max_output_tokens", "Most tokens of an answer", el("input", { ...numbers, min: "1", step: "1" }), Number),
    field("temperature", "Temperature", el("input", { ...numbers, min: "0", max: "2", step: "any" }), Number)));
  draw();
  /** True if no field has what cannot be sent; else the first one that has says so. */
  const areValid = () => {
    const wrong = [...node.querySelectorAll("input")].find((input) => !input.checkValidity());
    if (!wrong) return true;
    node.open = true;
    return wrong.reportValidity();
  };
  return { node, areValid, values: () => ({ ...values }) };
}
