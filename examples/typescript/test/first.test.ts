// The first program of docs/typescript.md, as it is there.
import { Meerkat } from "meerkat-client";
import { expect, test } from "vitest";
import { meerkatServer } from "./meerkat-server.js";
import { Program } from "./processes.js";

const server = meerkatServer();

test("the first program", async () => {
  expect(await new Program(server, "src/first").line()).toBe("42");
  const [made] = (await new Meerkat(server).list()).items;
  const events = (await new Meerkat(server).session(made!.session_id).events()).items;
  expect(events.filter((event) => event.type === "tool_finished")).toMatchObject([{ output: '{"sum":42}' }]);
});
