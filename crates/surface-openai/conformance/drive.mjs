// Drives meerkat with OpenAI's package for TypeScript, and with the AI SDK: what their users do.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { createInterface } from "node:readline";

const [program, data, packages] = process.argv.slice(2);
const required = createRequire(`${packages}/package.json`);
const load = (name) => import(pathToFileURL(required.resolve(name)).href);
const { default: OpenAI } = await load("openai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { generateText, streamText, stepCountIs, tool } = await load("ai");
const { z } = await load("zod");

const token = process.env.MEERKAT_TOKEN;
const ASK = '@call weather {"city":"Rome"} @echo last_result';
const CALLED = "last_result: Sunny in Rome.";
const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
const weather = { type: "function", name: "weather", description: "Weather.", parameters, strict: true };

async function serve() {
  const args = ["--json", "serve", "--openai", "--data-dir", data, "--listen", "127.0.0.1:0"];
  const server = spawn(program, args, { stdio: ["ignore", "pipe", "inherit"] });
  for await (const line of createInterface({ input: server.stdout })) {
    return { server, baseURL: `${JSON.parse(line).listening}/v1` };
  }
  throw new Error("the server did not start");
}

async function official(client) {
  assert((await client.models.list()).data.some((model) => model.id === "scripted"));
  const made = await client.responses.create({ model: "scripted", input: "@say Hello.", metadata: { a: "b" } });
  assert.equal(made.output_text, "Hello.");
  assert.deepEqual((await client.responses.retrieve(made.id)).output, made.output);
  let text = "";
  for await (const event of await client.responses.create({ model: "scripted", input: "@say One two.", stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, "One two.");
  const asked = await client.responses.create({ model: "scripted", input: ASK, tools: [weather] });
  const output = { type: "function_call_output", call_id: asked.output[0].call_id, output: "Sunny in Rome." };
  const done = await client.responses.create({ model: "scripted", previous_response_id: asked.id, input: [output] });
  assert.equal(done.output_text, CALLED);
  const format = { type: "json_schema", name: "answer", schema: { type: "object", properties: { n: { type: "number" } } } };
  const parsed = await client.responses.parse({ model: "scripted", input: '@json {"n":1}', text: { format } });
  assert.equal(JSON.parse(parsed.output_text).n, 1);
  const conversation = await client.conversations.create({ metadata: { a: "b" } });
  const said = await client.responses.create({ model: "scripted", input: "@say Two.", conversation: conversation.id });
  assert.equal(said.conversation.id, conversation.id);
  assert((await client.conversations.delete(conversation.id)).deleted);
  const stalled = await client.responses.create({ model: "scripted", input: "@stall", background: true });
  assert.equal((await client.responses.cancel(stalled.id)).status, "cancelled");
  const messages = [{ role: "user", content: "@say Hello." }];
  const chat = await client.chat.completions.create({ model: "scripted", messages });
  assert.equal(chat.choices[0].message.content, "Hello.");
  await client.responses.delete(made.id);
  const error = await client.responses.retrieve(made.id).then(
    () => assert.fail("it was deleted"),
    (error) => error,
  );
  assert.equal(error.code, "SESSION_NOT_FOUND");
}

async function sdk(baseURL) {
  const openai = createOpenAI({ baseURL, apiKey: token });
  const tools = {
    weather: tool({
      description: "Weather.",
      inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => `Sunny in ${city}.`,
    }),
  };
  for (const model of [openai.responses("scripted"), openai.chat("scripted")]) {
    const asked = { model, prompt: ASK, tools, stopWhen: stepCountIs(3), maxRetries: 0 };
    assert.equal((await generateText(asked)).text, CALLED);
    assert.equal(await streamText(asked).text, CALLED);
  }
}

const { server, baseURL } = await serve();
try {
  await official(new OpenAI({ baseURL, apiKey: token, maxRetries: 0 }));
  console.log("ok: openai for TypeScript");
  await sdk(baseURL);
  console.log("ok: ai with @ai-sdk/openai");
} finally {
  server.kill("SIGKILL");
}
