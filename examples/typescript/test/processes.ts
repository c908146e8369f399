// Programs of this folder as processes that a test kills.
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface, type Interface } from "node:readline";
import { afterEach } from "vitest";
import type { MeerkatServer } from "./meerkat-server.js";

const running = new Set<Program>();
afterEach(async () => {
  await Promise.all([...running].map((program) => program.kill()));
});

/** A compiled program. `tsc` has written it. */
export class Program {
  readonly #process: ChildProcess;
  readonly #lines: AsyncIterator<string>;

  constructor(server: MeerkatServer, path: string, args: string[] = []) {
    const file = new URL(`../build/${path}.js`, import.meta.url).pathname;
    const env = { PATH: process.env.PATH, MEERKAT_URL: server.url, MEERKAT_TOKEN: server.token, PORT: "0" };
    this.#process = spawn(process.execPath, [file, ...args], { env, stdio: ["pipe", "pipe", "inherit"] });
    const lines: Interface = createInterface(this.#process.stdout!);
    this.#lines = lines[Symbol.asyncIterator]();
    running.add(this);
  }

  /** The next line that it prints. */
  async line(): Promise<string | undefined> {
    return (await this.#lines.next()).value;
  }

  write(line: string): void {
    this.#process.stdin!.write(`${line}\n`);
  }

  /** Ends it like a power failure: no handler runs. */
  async kill(): Promise<void> {
    running.delete(this);
    if (this.#process.exitCode !== null || this.#process.signalCode !== null) return;
    const exit = once(this.#process, "exit");
    this.#process.kill("SIGKILL");
    await exit;
  }
}
