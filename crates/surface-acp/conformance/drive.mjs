// Drives `meerkat acp` with the protocol's official client for TypeScript: the whole life of a session.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Readable, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

// The package is in the target folder, not beside this file.
const packages = createRequire(join(process.env.ACP_PACKAGES, "package.json"));
const acp = await import(pathToFileURL(packages.resolve("@agentclientprotocol/sdk")));
const { agent: asks, client: answers } = acp.methods;

const folder = realpathSync(mkdtempSync(join(tmpdir(), "acp-")));
const [data, work, home] = ["data", "work", "home"].map((name) => join(folder, name));
mkdirSync(work);
mkdirSync(home);
const env = {
  HOME: home,
  PATH: process.env.PATH,
  MEERKAT_MODEL__NAME: "scripted",
  MEERKAT_SERVE__DRAIN_MS: "100",
  MEERKAT_TOOLS__TEST_DIR: home,
};

/** Works with a process of its own; `answer` is what its user says to each question, or null to say nothing. */
async function editor(answer, act) {
  const process = spawn(globalThis.process.env.MEERKAT, ["--data-dir", data, "acp"], {
    cwd: work,
    env,
    stdio: ["pipe", "pipe", "ignore"],
  });
  const ended = new Promise((resolve) => process.on("exit", resolve));
  const seen = { shown: [], asked: [], forms: [], process, ended };
  const news = [];
  seen.until = (holds) =>
    new Promise((resolve) => {
      const look = () => holds() && resolve();
      news.push(look);
      look();
    });
  const app = acp
    .client({ name: "trial" })
    .onNotification(answers.session.update, ({ params }) => {
      seen.shown.push(params.update);
      news.forEach((look) => look());
    })
    .onRequest(answers.elicitation.create, ({ params }) => {
      seen.forms.push(params);
      return { action: "accept", content: { name: "Ann" } };
    })
    .onRequest(answers.session.requestPermission, ({ params }) => {
      seen.asked.push(params);
      news.forEach((look) => look());
      return answer === null
        ? new Promise(() => {})
        : { outcome: { outcome: "selected", optionId: answer } };
    });
  const stream = acp.ndJsonStream(Writable.toWeb(process.stdin), Readable.toWeb(process.stdout));
  try {
    return await app.connectWith(stream, async (agent) => {
      const clientCapabilities = { elicitation: { form: {} } };
      const met = await agent.request(asks.initialize, { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities });
      assert.equal(met.protocolVersion, 1);
      return act(agent, seen);
    });
  } finally {
    process.kill();
    await ended;
  }
}

const said = (seen, kind) =>
  seen.shown
    .filter((update) => update.sessionUpdate === kind)
    .map((update) => update.content.text ?? "")
    .join("");
const prompt = (sessionId, text) => ({ sessionId, prompt: [{ type: "text", text }] });

// Each wait for something that never comes ends the program.
const patience = setTimeout(() => {
  console.error("it took longer than two minutes");
  process.exit(1);
}, 120_000);

try {
  const session = await editor("once", async (agent, seen) => {
    const { sessionId } = await agent.request(asks.session.new, { cwd: work, mcpServers: [] });
    const ended = await agent.request(asks.session.prompt, prompt(sessionId, "@think Hm. @say Hello."));
    assert.equal(ended.stopReason, "end_turn");
    assert.deepEqual([said(seen, "agent_thought_chunk"), said(seen, "agent_message_chunk")], ["Hm.", "Hello."]);

    const call = '@call write {"path":"a.txt","content":"one\\n"} @say Written.';
    await agent.request(asks.session.prompt, prompt(sessionId, call));
    assert.equal(readFileSync(join(work, "a.txt"), "utf8"), "one\n");
    assert.deepEqual(seen.asked[0].options.map((option) => option.kind), ["allow_once", "allow_always", "reject_once"]);
    const last = seen.shown.findLast((update) => update.sessionUpdate === "tool_call_update");
    assert.equal(last.status, "completed");
    assert.deepEqual([last.content[0].type, last.content[0].newText], ["diff", "one\n"]);

    await agent.request(asks.session.setMode, { sessionId, modeId: "read" });
    const second = '@call write {"path":"b.txt","content":"two"} @say Refused.';
    await agent.request(asks.session.prompt, prompt(sessionId, second));
    assert.ok(!existsSync(join(work, "b.txt")) && seen.asked.length === 1);
    const set = { sessionId, configId: "mode", value: "edit" };
    const { configOptions } = await agent.request(asks.session.setConfigOption, set);
    assert.equal(configOptions.find(({ id }) => id === "mode").currentValue, "edit");

    const form = '@call test_form {"message":"Who are you?"} @say Asked.';
    await agent.request(asks.session.prompt, prompt(sessionId, form));
    assert.deepEqual(seen.forms.map(({ requestedSchema }) => requestedSchema.required), [["name"]]);

    const waits = agent.request(asks.session.prompt, prompt(sessionId, "@say Wait @stall"));
    await seen.until(() => said(seen, "agent_message_chunk").includes("Wait"));
    await agent.notify(asks.session.cancel, { sessionId });
    assert.equal((await waits).stopReason, "cancelled");
    return sessionId;
  });
  console.log("new, prompt, permission, diff, mode, option, form, cancel: good");

  await editor(null, async (agent, seen) => {
    await agent.request(asks.session.resume, { sessionId: session, cwd: work, mcpServers: [] });
    assert.deepEqual([said(seen, "agent_message_chunk"), said(seen, "user_message_chunk")], ["", ""]);
    const call = '@call write {"path":"k.txt","content":"kept"} @say Done.';
    agent.request(asks.session.prompt, prompt(session, call)).catch(() => {});
    await seen.until(() => seen.asked.length === 1);
    seen.process.kill("SIGKILL");
    await seen.ended;
  }).catch((error) => assert.match(error.message, /closed/));
  await editor("once", async (agent, seen) => {
    await agent.request(asks.session.load, { sessionId: session, cwd: work, mcpServers: [] });
    const texts = said(seen, "agent_message_chunk");
    assert.ok(texts.startsWith("Hello.Written.Refused.Asked.Wait"), texts);
    assert.equal(said(seen, "user_message_chunk").split("@think Hm.").length, 2);
    await seen.until(() => said(seen, "agent_message_chunk").includes("Done."));
    assert.equal(readFileSync(join(work, "k.txt"), "utf8"), "kept");
  });
  console.log("resume, killed, load: good");

  await editor("once", async (agent) => {
    const listed = async () => (await agent.request(asks.session.list, { cwd: work })).sessions;
    assert.deepEqual((await listed()).map((info) => [info.sessionId, info.cwd]), [[session, work]]);
    await agent.request(asks.session.delete, { sessionId: session });
    assert.deepEqual(await listed(), []);
    await assert.rejects(agent.request(asks.session.load, { sessionId: session, cwd: work, mcpServers: [] }), (error) => {
      assert.equal(error.data.code, "SESSION_NOT_FOUND");
      return true;
    });
  });
  console.log("list, delete: good");
} finally {
  clearTimeout(patience);
  rmSync(folder, { recursive: true, force: true });
}
