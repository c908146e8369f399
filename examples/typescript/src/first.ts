// The smallest program with a tool and a schema. Its prompt is a script for the model that answers without a key; ask a
// real model in your own words.
import { Meerkat, tool } from "meerkat-client";

const add = tool(
  {
    name: "add",
    description: "Adds two numbers.",
    input_schema: {
      type: "object",
      properties: { a: { type: "number" }, b: { type: "number" } },
      required: ["a", "b"],
    },
    effect: "read_only",
  },
  ({ a, b }) => ({ sum: a + b }),
);

const session = await new Meerkat().session();
const result = await session.run('@call add {"a":17,"b":25} @json {"sum":42}', {
  tools: [add],
  output: { type: "object", properties: { sum: { type: "number" } }, required: ["sum"] },
});
console.log(result.output?.sum ?? result.error);
