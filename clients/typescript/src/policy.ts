/** When and how often to send again, as a caller sets it, and what a caller is told of it. */

export interface RetryPolicy {
  /** Before each repeat after a broken connection or 502, 503, 504; as many repeats as there are waits. */
  waits: readonly number[];
  /** Each wait is longer at random, by up to this share of it (0 to 1). */
  jitter: number;
  /** A server that asks for more than this is not waited for. */
  longestWait: number;
}

/** What helps at all has helped by then. */
export const DEFAULT_RETRY: RetryPolicy = { waits: [1_000, 3_000], jitter: 0.2, longestWait: 60_000 };

/** Sends once. A 409 is waited out all the same. */
export const NEVER: RetryPolicy = { ...DEFAULT_RETRY, waits: [] };

/** Told before a request is sent again. */
export interface Repeat {
  key: string;
  /** Of the sending that comes, from 2. */
  attempt: number;
  after: number;
  /** What the server answered; absent: the connection broke. */
  status?: number;
}
