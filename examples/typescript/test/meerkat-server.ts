// A meerkat for tests: the scripted model, a free port, an empty home. Copy this file into your own tests.
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, open, readFile, rm } from "node:fs/promises";
import { type AddressInfo, connect, createServer, type Server } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { afterAll, beforeAll } from "vitest";

/** An address that stays, while the program that it leads to comes and goes, each time at a new port. */
export class Door {
  /** The port of the program, or 0 while there is none: then every connection is closed. */
  port = 0;
  /** The first lines of requests that found no program. */
  readonly missed: string[] = [];
  readonly #listener: Server = createServer((client) => {
    client.on("error", () => client.destroy());
    if (this.port === 0) {
      return void client.once("data", (data) => {
        this.missed.push(data.toString("latin1").split("\r\n", 1)[0]!);
        client.destroy();
      });
    }
    const program = connect(this.port, "127.0.0.1", () => client.pipe(program).pipe(client));
    program.on("error", () => client.destroy()).on("close", () => client.destroy());
    client.on("close", () => program.destroy());
  });

  /** Opens it, and returns its address. */
  async open(): Promise<string> {
    if (!this.#listener.listening) await once(this.#listener.listen(0, "127.0.0.1"), "listening");
    return `127.0.0.1:${(this.#listener.address() as AddressInfo).port}`;
  }

  close(): void {
    this.#listener.close();
  }
}

/** A `meerkat serve` with a folder of its own. Its sessions survive `kill` and `start`. */
export class MeerkatServer {
  readonly token = "the-token-of-every-test";
  url = "";
  folder = "";
  /** Its address is the same after each start. */
  readonly door = new Door();
  #process?: ChildProcess;

  /** Starts the server and waits until it listens. */
  async start(): Promise<void> {
    this.folder ||= await mkdtemp(join(tmpdir(), "meerkat-"));
    await mkdir(join(this.folder, "tools"), { recursive: true });
    const address = await this.door.open();
    this.url = `http://${address}`;
    // Nothing else of this environment: a vendor's key in it would make the tests cost money.
    const env = {
      PATH: process.env.PATH,
      HOME: this.folder,
      MEERKAT_MODEL__NAME: "scripted",
      MEERKAT_SERVE__ALLOWED_HOSTS: JSON.stringify([address]),
      MEERKAT_TOKEN: this.token,
      MEERKAT_TOOLS__TEST_DIR: join(this.folder, "tools"),
    };
    const data = join(this.folder, "data");
    const options = ["serve", "--rest", "--json", "--listen", "127.0.0.1:0", "--data-dir", data];
    const log = await open(join(this.folder, "log"), "a");
    const stdio = ["ignore", "pipe", log.fd] as const;
    const server = spawn(process.env.MEERKAT ?? "meerkat", options, { cwd: this.folder, env, stdio: [...stdio] });
    this.#process = server;
    // Its first line says where it listens. If it ends before, there is none.
    const [line] = await Promise.race([once(createInterface(server.stdout!), "line"), once(server, "exit")]);
    await log.close();
    if (typeof line !== "string") throw new Error(await readFile(join(this.folder, "log"), "utf8"));
    this.door.port = Number(new URL(JSON.parse(line).listening).port);
  }

  /** Ends it like a power failure: no signal handler runs. */
  async kill(): Promise<void> {
    if (!this.#process || this.#process.exitCode !== null || this.#process.signalCode !== null) return;
    this.door.port = 0;
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
    server.door.close();
    await rm(server.folder, { recursive: true });
  });
  return server;
}
