// The only file that asks the server: its public REST operations and event streams, by addresses beside the page's own.

export const SECRET = "meerkat.secret";
const TOKEN = "meerkat.token";

/** A refusal of the server: its code, its message, and whether the same request can succeed later. */
export class Failure extends Error {
  constructor(body, status) {
    super(body.message ?? `The server answered ${status}.`);
    Object.assign(this, { code: body.code, details: body.details ?? {}, status });
  }
}

const unreachable = () => new Failure({ message: "The server cannot be reached." }, 0);

/** Called when the server knows this browser no longer. */
export const onSignedOut = { act: () => {} };

function credentials() {
  const token = sessionStorage.getItem(TOKEN);
  if (token) return { authorization: `Bearer ${token}` };
  const secret = localStorage.getItem(SECRET);
  return secret ? { "x-meerkat-console": secret } : {};
}

async function send(path, options) {
  const headers = { ...credentials(), ...options.headers };
  const response = await fetch(path, { ...options, headers, cache: "no-store" }).catch((error) => {
    throw error.name === "AbortError" ? error : unreachable();
  });
  if (response.ok) return response;
  const failure = new Failure(await response.json().catch(() => ({})), response.status);
  if (response.status === 401 && path.startsWith("v1/")) onSignedOut.act();
  throw failure;
}

const query = (values) => {
  const given = Object.entries(values ?? {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length > 0 ? `?${new URLSearchParams(given)}` : "";
};

async function ask(method, path, { body, params, headers, signal } = {}) {
  const asked = { method, signal, headers: { ...headers } };
  if (method !== "GET" && method !== "DELETE") {
    asked.headers["content-type"] = "application/json";
    asked.body = JSON.stringify(body ?? {});
  }
  return (await send(`v1/${path}${query(params)}`, asked)).json();
}

export const get = (path, params, signal) => ask("GET", path, { params, signal });
export const post = (path, body, options) => ask("POST", path, { body, ...options });
export const patch = (path, body) => ask("PATCH", path, { body });
export const remove = (path, params) => ask("DELETE", path, { params });
export const ready = async () => (await fetch("readyz", { cache: "no-store" })).json();

/** What the server can do, as it said when this page began. */
export const capabilities = {};
export const learnCapabilities = async () => Object.assign(capabilities, await get("capabilities"));

/** Starts a turn and waits only for its acceptance. The key lets a request that was lost be sent again. */
export const startTurn = (session, prompt, policy, options) =>
  post(`sessions/${session}/turns`, { prompt, policy, options, attended: true }, {
    headers: { prefer: "respond-async", "idempotency-key": crypto.getRandomValues(new Uint32Array(4)).join("-") },
  });

/** A piece of a blob as text, with the offset of the next one. */
export async function blob(session, name, offset) {
  const response = await send(`v1/sessions/${session}/blobs/${encodeURIComponent(name)}${query({ offset })}`, {});
  return { text: await response.text(), next: response.headers.get("next-offset") };
}

/** Exchanges a one-time code for this browser's sign-in. */
export async function signIn(code) {
  const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ code }) };
  const { secret } = await (await send("console/sign-in", options)).json();
  sessionStorage.removeItem(TOKEN);
  localStorage.setItem(SECRET, secret);
}

/** Uses the server's token in this tab alone, until the tab is closed. */
export const useToken = (token) => sessionStorage.setItem(TOKEN, token.trim());
export const isSignedIn = () => Object.keys(credentials()).length > 0;

/** Ends the sign-in, here and on the server. */
export async function signOut() {
  if (!sessionStorage.getItem(TOKEN)) await send("console/sign-in", { method: "DELETE" }).catch(() => {});
  forget();
}

export function forget() {
  sessionStorage.removeItem(TOKEN);
  localStorage.removeItem(SECRET);
}

/** The events in the text of a stream, as they come. */
async function* frames(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : unreachable();
    });
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n");
      const field = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      if (field("data")) yield { kind: field("event"), id: field("id"), data: JSON.parse(field("data")) };
    }
  }
}

/** The frames of an event stream, until it ends; `onOpen` is called when the server has begun to answer. */
export async function* stream(path, params, signal, onOpen) {
  const response = await send(`v1/${path}${query(params)}`, { headers: { accept: "text/event-stream" }, signal });
  onOpen();
  yield* frames(response);
}
