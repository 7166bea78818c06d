/**
 * When to send the same request again, and after what time: pure, so that a table can hold it.
 *
 * A repeat helps against a connection that broke and against 502, 503 and 504: nothing is known, or nothing was
 * committed. 409 with a time means that an answer is on its way. Everything else would be said again, and is not
 * asked again. `clients/vectors.json` holds this and the clients in other languages to the same answers.
 */

import type { RetryPolicy } from "./policy.js";

/** What became of one sending. */
export type Situation =
  /** The connection was refused, or broke before the answer's end. */
  | { kind: "lost" }
  /** The client's own time-out passed. */
  | { kind: "timed_out" }
  /** An answer, or the verdict at the end of a stream. `wait`: see {@link toldWait}. */
  | { kind: "answered"; status: number; wait?: number | undefined; retryable?: boolean | undefined };

/** Whom to tell, and what, where there is no answer. */
export type Ending = "connection_lost" | "timed_out" | "our_side" | "your_input";

/** What to do next. */
export type Decision =
  | { kind: "done" }
  /** Send the same request with the same key, this much later. */
  | { kind: "again"; after: number; counts: boolean }
  /** A repeat does not help, or was tried often enough. */
  | { kind: "stop"; ending: Ending };

/** The longest wait that is believed. Above it the header is garbage. */
const MAX_RETRY_AFTER = 31 * 24 * 60 * 60 * 1_000;

/**
 * The decision. `repeats`: after a broken connection or a 5xx, until now (asking again after a 409 is none). `left`:
 * until the client's own time-out. `chance`, from 0 to 1, spreads the waits of many clients that were sent away
 * together.
 *
 * A wait that the server names is a least one: neither it nor the policy's own is undercut. One longer than the
 * policy's longest ends the repeats of a 5xx, since a person should not wait for it blindly; of a 409 it is cut,
 * since asking early costs nothing. What would end after the time-out does not begin.
 */
export function decide(
  policy: RetryPolicy,
  situation: Situation,
  repeats: number,
  left: number,
  chance: number,
): Decision {
  const inTime = (wait: number, counts: boolean, ending: Ending): Decision => {
    // Never earlier, and up to the policy's share later.
    const after = Math.round(wait * (1 + clamp(policy.jitter) * clamp(chance)));
    return after < left ? { kind: "again", after, counts } : { kind: "stop", ending };
  };
  const repeat = (told: number | undefined, ending: Ending): Decision => {
    const own = policy.waits[repeats];
    if (own === undefined || (told ?? 0) > policy.longestWait) return { kind: "stop", ending };
    return inTime(Math.max(told ?? 0, own), true, ending);
  };
  if (situation.kind === "timed_out") return { kind: "stop", ending: "timed_out" };
  if (situation.kind === "lost") return repeat(undefined, "connection_lost");
  const { status, wait, retryable } = situation;
  if (status >= 200 && status <= 299) return { kind: "done" };
  if (status >= 502 && status <= 504) {
    // Told by whoever knows best; on any other status it is the status that counts.
    return retryable === false ? { kind: "stop", ending: "our_side" } : repeat(wait, "our_side");
  }
  if (status === 409 && wait !== undefined && retryable !== false) {
    return inTime(Math.min(wait, policy.longestWait), false, "timed_out");
  }
  return { kind: "stop", ending: status >= 400 && status <= 499 ? "your_input" : "our_side" };
}

function clamp(share: number): number {
  return Math.min(Math.max(share, 0), 1);
}

/**
 * The time that an answer names. `retryAfterMs` of the problem goes first, since it is exact and nobody between us
 * and the server writes it; then `Retry-After`, in seconds or as a date, counted from `now` (milliseconds since
 * 1970). `undefined` where nothing usable is said.
 */
export function toldWait(
  retryAfterMs: number | undefined,
  retryAfter: string | null | undefined,
  now: number,
): number | undefined {
  if (retryAfterMs !== undefined) return retryAfterMs;
  if (retryAfter === undefined || retryAfter === null) return undefined;
  const text = retryAfter.trim();
  const date = /^[0-9]{1,15}(\.[0-9]*)?$/.test(text) ? now + Number(text) * 1_000 : httpDate(text);
  const wait = date === undefined ? 0 : date - now;
  return wait > 0 && wait <= MAX_RETRY_AFTER ? wait : undefined;
}

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const TIME = "(?<hour>\\d{2}):(?<minute>\\d{2}):(?<second>\\d{2})";
const FORMS = [
  `(?<week>[A-Z][a-z]{2}), (?<day>\\d{2}) (?<month>[A-Z][a-z]{2}) (?<year>\\d{4}) ${TIME} GMT`,
  `(?<week>[A-Z][a-z]{5,8}), (?<day>\\d{2})-(?<month>[A-Z][a-z]{2})-(?<year>\\d{2}) ${TIME} GMT`,
  `(?<week>[A-Z][a-z]{2}) (?<month>[A-Z][a-z]{2}) (?<day>[ \\d]\\d) ${TIME} (?<year>\\d{4})`,
].map((form) => new RegExp(`^${form}$`));

/** One of the three forms of RFC 9110, in milliseconds since 1970. */
function httpDate(text: string): number | undefined {
  const found = FORMS.map((form) => form.exec(text)?.groups).find((groups) => groups !== undefined);
  if (found === undefined) return undefined;
  const { week = "", day, month = "", year = "", hour, minute, second } = found;
  const full = year.length === 2 ? Number(year) + (Number(year) < 70 ? 2_000 : 1_900) : Number(year);
  const parts = [full, MONTHS.indexOf(month), day, hour, minute, second].map(Number);
  const [y = 0, mo = 0, d = 0, h = 0, mi = 0, s = 0] = parts;
  const date = new Date(Date.UTC(y, mo, d, h, mi, s));
  // Whatever is out of range comes out as another date.
  const read = [
    date.getUTCFullYear(),
    date.getUTCMonth(),
    date.getUTCDate(),
    date.getUTCHours(),
    date.getUTCMinutes(),
    date.getUTCSeconds(),
  ];
  const name = DAYS[date.getUTCDay()] ?? "";
  const real = read.every((part, at) => part === parts[at]) && (week === name || week === name.slice(0, 3));
  return real ? date.getTime() : undefined;
}
