/** How often and how long one operation is asked for: what the decisions are fed with. */

import type { Clock } from "./clock.js";
import type { Problem } from "./problem.js";

/** Why one sending brought no answer. */
export type Setback =
  | { kind: "lost"; reason: string }
  | { kind: "timed_out" }
  /** A problem, as an answer or at the end of a stream. */
  | { kind: "refused"; problem: Problem }
  /** A success that cannot be read. */
  | { kind: "unreadable"; problem: Problem };

/** A setback on its way to whoever decides. */
export class Stopped extends Error {
  constructor(readonly setback: Setback) {
    super(setback.kind);
  }
}

/** The count for one operation. */
export class Tries {
  /** Sendings so far. */
  attempts = 0;
  #lost = 0;
  #failed = 0;
  readonly #clock: Clock;
  readonly #deadline: number;

  constructor(clock: Clock, timeout: number) {
    this.#clock = clock;
    this.#deadline = clock.now() + timeout;
  }

  /** Until the client's own time-out; never less than a moment. */
  left(): number {
    return Math.max(this.#deadline - this.#clock.now(), 1);
  }

  repeats(): number {
    return this.#lost + this.#failed;
  }

  /** The stream brought something new: a way that breaks every minute is not one that leads nowhere. */
  gotFurther(): void {
    this.#lost = 0;
  }

  count(setback: Setback, counts: boolean): void {
    if (setback.kind === "lost") this.#lost += 1;
    else if (counts) this.#failed += 1;
  }
}
