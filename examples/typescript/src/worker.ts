// A program that may be killed at any time: started again with the same key, it goes on with the same turn.
import { createInterface } from "node:readline";
import { Meerkat, tool } from "meerkat-client";

const [id, key, prompt] = process.argv.slice(2) as [string, string, string];
const lines = createInterface(process.stdin)[Symbol.asyncIterator]();

const pay = tool(
  {
    name: "pay",
    description: "Pays an amount, when the person at the terminal has typed a receipt.",
    input_schema: { type: "object", properties: { amount: { type: "number" } }, required: ["amount"] },
  },
  async ({ amount }, { callId }) => {
    console.log("paying", amount, callId);
    return { amount, receipt: (await lines.next()).value };
  },
);

const session = new Meerkat().session(id);
const result = await session.run(prompt, { key, tools: [pay] });
console.log(result.status, result.text);
process.exit();
