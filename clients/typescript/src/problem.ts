/** What an answer that is no success says. */

/**
 * The members of an `application/problem+json` body. Where something between us and the server answered, `error` is
 * empty and `detail` says what is known.
 */
export interface Problem {
  status: number;
  /** The stable code, such as `nothing_found`. */
  error: string;
  title: string;
  /** For a person. */
  detail: string;
  /** What exactly, where one code has several causes. */
  reason?: string | undefined;
  requestId?: string | undefined;
  retryable?: boolean | undefined;
  /** Milliseconds after which to ask again, where that helps. */
  retryAfter?: number | undefined;
}

/** A problem in a sentence. */
export function problemText(problem: Problem): string {
  const parts = [problem.error === "" ? `status ${problem.status}` : `${problem.status} ${problem.error}`];
  if (problem.reason !== undefined) parts.push(problem.reason);
  if (problem.requestId !== undefined) parts.push(`request ${problem.requestId}`);
  return `${(problem.detail || problem.title).replace(/\.+$/, "")} (${parts.join(", ")})`;
}

/** Of a body; `status` is that of the answer (in a stream it stands in the body alone). */
export function readProblem(status: number | undefined, body: string): Problem {
  const wire = parsed(body);
  if (!isObject(wire)) return ofAStranger(status ?? 0);
  const text = (name: string): string | undefined | null => maybe(wire[name], isText);
  const number = (name: string, most: number): number | undefined | null =>
    maybe(wire[name], (value): value is number => Number.isInteger(value) && Number(value) >= 0 && Number(value) <= most);
  const [error, reason, requestId] = [text("error"), text("reason"), text("request_id")];
  const title = wire["title"] ?? "";
  const detail = wire["detail"] ?? "";
  const retryable = maybe(wire["retryable"], (value): value is boolean => typeof value === "boolean");
  const [own, retryAfter] = [number("status", 65_535), number("retry_after_ms", 2 ** 64)];
  const read = [reason, requestId, retryable, own, retryAfter];
  if (!error && error !== "") return ofAStranger(status ?? 0);
  if (!isText(title) || !isText(detail) || wire["title"] === null || wire["detail"] === null || read.includes(null)) {
    return ofAStranger(status ?? 0);
  }
  const there = (value: unknown): boolean => value !== undefined && value !== null;
  return {
    status: status ?? own ?? 0,
    error,
    title,
    detail,
    ...(there(reason) && { reason: reason as string }),
    ...(there(requestId) && { requestId: requestId as string }),
    ...(there(retryable) && { retryable: retryable as boolean }),
    ...(there(retryAfter) && { retryAfter: retryAfter as number }),
  };
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** JSON, or `undefined` where it is none. */
export function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function isText(value: unknown): value is string {
  return typeof value === "string";
}

/** `undefined`: not there. `null`: of another kind. */
function maybe<T>(value: unknown, is: (value: unknown) => value is T): T | undefined | null {
  if (value === undefined || value === null) return undefined;
  return is(value) ? value : null;
}

function ofAStranger(status: number): Problem {
  let detail = `status ${status} of something that is not this service`;
  if (status === 0) detail = "a stream ended with something that is no verdict";
  if (status >= 200 && status <= 299) detail = "the answer is not one of this service; is the address right?";
  return { status, error: "", title: "", detail };
}
