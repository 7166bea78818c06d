/** Time, chance and ids, handed in: a test gives a client another clock. */

import { randomBytes } from "#platform";

export interface Clock {
  /** Milliseconds on a line that never goes back and knows no dates. */
  now(): number;
  /** Milliseconds since 1970, UTC; may jump in either direction. */
  utcNow(): number;
  /** Resolves after the time, or as soon as the signal is there. */
  sleep(millis: number, signal?: AbortSignal): Promise<void>;
  /** At random, from 0 to 1. */
  chance(): number;
  /** Bytes that nobody can guess. */
  randomBytes(count: number): Uint8Array;
}

/** What a timer takes at most, some 24 days; one that is longer rings at once. */
const LONGEST_TIMER = 2 ** 31 - 1;

/** The machine's clock. */
export const systemClock: Clock = {
  now: () => performance.now(),
  utcNow: () => Date.now(),
  sleep: (millis, signal) =>
    new Promise((resolve) => {
      if (signal?.aborted) return resolve();
      const woken = (): void => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", woken);
        resolve();
      };
      let timer: ReturnType<typeof setTimeout>;
      const wait = (left: number): void => {
        const further = left > LONGEST_TIMER ? (): void => wait(left - LONGEST_TIMER) : woken;
        timer = setTimeout(further, Math.min(left, LONGEST_TIMER));
      };
      wait(millis);
      signal?.addEventListener("abort", woken);
    }),
  chance: () => Math.random(),
  randomBytes,
};

/** A new UUIDv7: sorted by the clock's time, otherwise random. */
export function newKey(clock: Clock): string {
  const bytes = new Uint8Array(16);
  bytes.set(clock.randomBytes(10), 6);
  let millis = Math.max(0, Math.floor(clock.utcNow()));
  for (let at = 5; at >= 0; at -= 1) {
    bytes[at] = millis % 256;
    millis = Math.floor(millis / 256);
  }
  bytes[6] = ((bytes[6] ?? 0) & 0x0f) | 0x70;
  bytes[8] = ((bytes[8] ?? 0) & 0x3f) | 0x80;
  const digits = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return digits.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}
