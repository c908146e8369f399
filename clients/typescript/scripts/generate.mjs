// Writes src/generated from docs/openapi.json: the types of everything that is sent, and a method for each operation,
// with its name in Rust.
import { mkdir, readFile, writeFile } from "node:fs/promises";
import openapiTS, { astToString } from "openapi-typescript";

const here = new URL("../src/generated/", import.meta.url);
const api = JSON.parse(await readFile(new URL("../../../docs/openapi.json", import.meta.url), "utf8"));
// Safe to repeat, although their methods do not say so: the second time nothing more changes.
const SETTLES = [
  "turn_approve",
  "turn_answer",
  "session_archive",
  "session_unarchive",
  "session_put_blob",
  "reader_create",
];

// An interrupt without a turn might meet the next one.
const SETTLES_WITH = { turn_interrupt: "turn" };
// Looks through the whole store.
const SLOW = ["store_diagnose"];

const camel = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());
const upper = (name) => name[0].toUpperCase() + name.slice(1);
const types = [];
const all = [];
const ofSession = [];
for (const [path, methods] of Object.entries(api.paths)) {
  for (const [method, operation] of Object.entries(methods)) {
    const rust = / over JSON-RPC, `(\w+)` in Rust/.exec(operation.description)?.[1];
    // The server's own addresses, such as /healthz, are not operations.
    if (!rust) continue;
    const name = camel(rust);
    const parameters = operation.parameters ?? [];
    const named = (place) => parameters.filter((each) => each.in === place).map((each) => each.name);
    const body = operation.requestBody?.content;
    const answer = operation.responses[200] ?? operation.responses[201];
    const isAsync = named("header").includes("Prefer");
    const kind = answer.content["application/json"] ? "json" : answer.content["application/x-tar"] ? "stream" : "bytes";
    const isKeyed = named("header").includes("Idempotency-Key");
    const isRepeatable = ["get", "put", "delete", "patch"].includes(method) || SETTLES.includes(operation.operationId);
    const properties = [
      `method: "${method.toUpperCase()}"`,
      `path: "${path}"`,
      `query: ${JSON.stringify(named("query"))}`,
      `kind: "${kind}"`,
      ...(body?.["application/octet-stream"] ? ["isBinary: true"] : []),
      ...(isKeyed ? ["isKeyed: true"] : []),
      ...(isAsync ? ["isAsync: true"] : []),
      ...(isRepeatable ? ["isRepeatable: true"] : []),
      ...(SETTLES_WITH[operation.operationId] ? [`repeatsWith: "${SETTLES_WITH[operation.operationId]}"`] : []),
      ...(SLOW.includes(operation.operationId) ? ["isSlow: true"] : []),
    ];
    const status = isAsync ? 202 : operation.responses[200] ? 200 : 201;
    const result = {
      json: `Answer<"${operation.operationId}", ${status}>`,
      bytes: "Uint8Array",
      stream: "ReadableStream<Uint8Array>",
    };
    types.push(`export type ${upper(name)}Request = Request<"${operation.operationId}">;`);
    types.push(`export type ${upper(name)}Answer = ${result[kind]};`);
    types.push(`const ${rust.toUpperCase()}: Operation = { ${properties.join(", ")} };`);

    const needs = (left) =>
      parameters.some((each) => each.required && each.name !== left) ||
      (body?.["application/json"]?.schema?.required ?? []).length > 0 ||
      body?.["application/octet-stream"];
    const made = (type, request, left) => `
  /** ${operation.summary}${isAsync ? " The answer comes when the turn is accepted." : ""} */
  ${name}(request: ${type}${needs(left) ? "" : " = {}"}, options: CallOptions = {}): Promise<${upper(name)}Answer> {
    return this.call(${rust.toUpperCase()}, ${request}, options);
  }`;
    all.push(made(`${upper(name)}Request`, "request"));
    // The session resumes by hand.
    if (named("path").includes("session_id") && name !== "resume") {
      const type = `Omit<${upper(name)}Request, "session_id">`;
      ofSession.push(made(type, "{ ...request, session_id: this.id }", "session_id"));
    }
  }
}
const source = `// Made from docs/openapi.json by scripts/generate.mjs. Do not edit.
import type { Answer, CallOptions, Operation, Request } from "../operation.js";

${types.join("\n")}

/** Every operation of meerkat. */
export abstract class Operations {
  protected abstract call<T>(operation: Operation, request: object, options: CallOptions): Promise<T>;
${all.join("\n")}
}

/** The operations on one session. */
export abstract class SessionOperations {
  abstract readonly id: string;
  protected abstract call<T>(operation: Operation, request: object, options: CallOptions): Promise<T>;
${ofSession.join("\n")}
}
`;
await mkdir(here, { recursive: true });
await writeFile(new URL("operations.ts", here), source);
const settings = { defaultNonNullable: false, rootTypes: true, rootTypesNoSchemaPrefix: true };
const heading = "// Made from docs/openapi.json by scripts/generate.mjs. Do not edit.\n";
await writeFile(new URL("api.ts", here), heading + astToString(await openapiTS(api, settings)));
