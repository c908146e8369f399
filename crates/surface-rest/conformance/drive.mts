// Drives a client of the generated TypeScript types: a session, a turn, its events, a list, an error.
import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

declare const process: { env: Record<string, string>; exit(code: number): never };

const client = createClient<paths>({
  baseUrl: process.env.MEERKAT_URL,
  headers: { Authorization: `Bearer ${process.env.MEERKAT_TOKEN}` },
});

function check(holds: boolean, what: unknown): asserts holds {
  if (!holds) {
    console.error("not as it should be:", JSON.stringify(what));
    process.exit(1);
  }
}

const created = await client.POST("/v1/sessions", { body: {} });
check(created.data !== undefined, created.error);
const path = { session_id: created.data.session_id };
const turn = await client.POST("/v1/sessions/{session_id}/turns", { params: { path }, body: { prompt: "@say Hello." } });
check(typeof turn.data === "object" && "text" in turn.data && turn.data.text === "Hello.", turn);
const listed = await client.GET("/v1/sessions", {});
check(listed.data?.items.some((summary) => summary.session_id === path.session_id) === true, listed);
const page = await client.GET("/v1/sessions/{session_id}/events", { params: { path } });
check(typeof page.data === "object", page);
const last: components["schemas"]["Event"] | undefined = page.data.items.at(-1);
// The discriminator tells which kind it is, and so which members it has.
check(last?.type === "turn_completed" && last.totals.steps === 1, page);
const refused = await client.POST("/v1/sessions/{session_id}/turns", { params: { path }, body: { prompt: " " } });
check(refused.error?.code === "INVALID_REQUEST", refused);
