// A meerkat for tests: the scripted model, a free port, an empty home. Copy this file into your own tests.
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, open, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { afterAll, beforeAll } from "vitest";

/** A `meerkat serve` with a folder of its own. Its sessions survive `kill` and `start`. */
export class MeerkatServer {
  readonly token = "the-token-of-every-test";
  url = "";
  folder = "";
  #address = "127.0.0.1:0";
  #process?: ChildProcess;

  /** Starts the server and waits until it listens. The first time it takes a free port, then the same again. */
  async start(): Promise<void> {
    this.folder ||= await mkdtemp(join(tmpdir(), "meerkat-"));
    await mkdir(join(this.folder, "tools"), { recursive: true });
    // Nothing else of this environment: a vendor's key in it would make the tests cost money.
    const env = {
      PATH: process.env.PATH,
      HOME: this.folder,
      MEERKAT_MODEL__NAME: "scripted",
      MEERKAT_TOKEN: this.token,
      MEERKAT_TOOLS__TEST_DIR: join(this.folder, "tools"),
    };
    const data = join(this.folder, "data");
    const options = ["serve", "--rest", "--json", "--listen", this.#address, "--data-dir", data];
    const log = await open(join(this.folder, "log"), "a");
    const stdio = ["ignore", "pipe", log.fd] as const;
    const server = spawn(process.env.MEERKAT ?? "meerkat", options, { cwd: this.folder, env, stdio: [...stdio] });
    this.#process = server;
    // Its first line says where it listens. If it ends before, there is none.
    const [line] = await Promise.race([once(createInterface(server.stdout!), "line"), once(server, "exit")]);
    await log.close();
    if (typeof line !== "string") throw new Error(await readFile(join(this.folder, "log"), "utf8"));
    this.url = JSON.parse(line).listening;
    this.#address = new URL(this.url).host;
  }

  /** Ends it like a power failure: no signal handler runs. */
  async kill(): Promise<void> {
    if (!this.#process || this.#process.exitCode !== null || this.#process.signalCode !== null) return;
    const exit = once(this.#process, "exit");
    this.#process.kill("SIGKILL");
    await exit;
  }
}

/** Makes a server for the tests of a file. Each test makes a session of its own. */
export function meerkatServer(): MeerkatServer {
  const server = new MeerkatServer();
  beforeAll(() => server.start());
  afterAll(async () => {
    await server.kill();
    await rm(server.folder, { recursive: true });
  });
  return server;
}
