import type { ErrorBody } from "./generated/api.js";

/** A code of meerkat (docs/ERRORS.md), or one of this package: there was no answer, or not one of meerkat's. */
export type Code = ErrorBody["code"] | "UNREACHABLE" | "UNEXPECTED_ANSWER";

/** A refused request, or one without an answer. Branch on `code`; the message is for people and may change. */
export class MeerkatError extends Error {
  override readonly name = "MeerkatError";
  readonly code: Code;
  /** The same request may succeed later. */
  readonly retryable: boolean;
  readonly details: ErrorBody["details"];
  /** The HTTP status, if there was an answer. */
  readonly status: number | undefined;

  constructor(
    body: { code: Code; message: string; retryable: boolean; details?: ErrorBody["details"] },
    status?: number,
    cause?: unknown,
  ) {
    super(`${body.code}: ${body.message}`, cause === undefined ? {} : { cause });
    this.code = body.code;
    this.retryable = body.retryable;
    this.details = body.details ?? {};
    this.status = status;
  }

  /** True if the error is meerkat's, with one of these codes. */
  static is(error: unknown, ...codes: Code[]): error is MeerkatError {
    return error instanceof MeerkatError && codes.includes(error.code);
  }
}

/** The connection failed, or broke before the whole answer was there. */
export function lost(url: string, cause: unknown): MeerkatError {
  const reason = (cause as { cause?: { code?: string; message?: string } } | null)?.cause ?? {};
  const why = reason.code ?? reason.message ?? (cause instanceof Error ? cause.message : String(cause));
  const help = "start the server with `meerkat serve --rest`, or set MEERKAT_URL to its address";
  const message = `no answer from ${url} (${why}): ${help}`;
  return new MeerkatError(
    { code: "UNREACHABLE", message, retryable: true, details: { reason: why } },
    undefined,
    cause,
  );
}

/** The connection was never there, so nothing was done. */
export function isUnsent(error: unknown): boolean {
  const reasons = ["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "bad port"];
  return MeerkatError.is(error, "UNREACHABLE") && reasons.includes(String(error.details.reason));
}

/** There was no answer, or a proxy's in its place: the request may have been done or not. */
export function isLost(error: unknown): error is MeerkatError {
  if (MeerkatError.is(error, "UNREACHABLE")) return true;
  return MeerkatError.is(error, "UNEXPECTED_ANSWER") && [502, 503, 504].includes(error.status!);
}

/** An answer that is not meerkat's: a proxy's page, for example. */
export function unexpected(url: string, status: number, text: string): MeerkatError {
  const asked = `is a proxy before ${url}, or another program there?`;
  const message = `the answer (HTTP ${status}) is not meerkat's; ${asked} It begins: ${text.slice(0, 200)}`;
  // What proxies say while the server behind them is away.
  const retryable = [429, 502, 503, 504].includes(status);
  return new MeerkatError(
    { code: "UNEXPECTED_ANSWER", message, retryable, details: { body: text.slice(0, 2000) } },
    status,
  );
}

/** The error of an answer that is not a success. */
export function refusal(url: string, status: number, text: string): MeerkatError {
  let body: ErrorBody;
  try {
    body = JSON.parse(text);
  } catch {
    return unexpected(url, status, text);
  }
  if (typeof body?.code !== "string" || typeof body.message !== "string") return unexpected(url, status, text);
  if (body.code !== "UNAUTHENTICATED") return new MeerkatError(body, status);
  const message = "the token is wrong: export MEERKAT_TOKEN=$(meerkat token), or pass the server's as `token`";
  return new MeerkatError({ ...body, message }, status);
}
