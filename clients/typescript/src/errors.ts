/** Why there is no answer, told apart by whom it concerns. */

import type { Ending } from "./decide.js";
import { problemText } from "./problem.js";
import type { Problem } from "./problem.js";

/**
 * Why there is no answer. The same operation may be sent again after {@link ConnectionLost}, {@link TimeoutPassed}
 * and {@link OurSide}; after {@link YourInput} it gets the same refusal (but for 429, where a person may try later).
 */
export abstract class ClientError extends Error {
  /** For a `switch`, and where two copies of this package meet. */
  abstract readonly kind: Ending | "not_sent";
  readonly key?: string;
  /** How often the request was sent. */
  readonly attempts: number = 0;
  /** What the server told, where it told something. */
  readonly problem?: Problem | undefined;

  /** Whether the same key may bring an answer later. */
  get mayBeAskedAgain(): boolean {
    return true;
  }
}

/** Nothing was sent. */
export class NotSent extends ClientError {
  readonly kind = "not_sent";
  override readonly name = "NotSent";

  constructor(readonly reason: string) {
    super(`nothing was sent: ${reason}`);
  }

  override get mayBeAskedAgain(): boolean {
    return false;
  }
}

/** The way to the server broke, also when it was tried again; the operation may have run, or may still. */
export class ConnectionLost extends ClientError {
  readonly kind = "connection_lost";
  override readonly name = "ConnectionLost";

  /** `reason`: the transport's words. */
  constructor(override readonly key: string, override readonly attempts: number, readonly reason: string) {
    super(`the connection was lost (${reason}; sent ${attempts} times)`);
  }
}

/**
 * The client's own time-out passed; the operation may still run. `problem` is what the server said last, where it
 * said something: that the operation runs, say.
 */
export class TimeoutPassed extends ClientError {
  readonly kind = "timed_out";
  override readonly name = "TimeoutPassed";

  constructor(
    override readonly key: string,
    override readonly attempts: number,
    readonly after: number,
    override readonly problem: Problem | undefined,
  ) {
    super(`no answer within ${Math.floor(after / 1_000)} s`);
  }
}

/** The service failed: 5xx, or an answer that is none. */
export class OurSide extends ClientError {
  readonly kind = "our_side";
  override readonly name = "OurSide";

  constructor(override readonly key: string, override readonly attempts: number, override readonly problem: Problem) {
    super(`the service failed: ${problemText(problem)}`);
  }
}

/** The request was refused: 4xx. */
export class YourInput extends ClientError {
  readonly kind = "your_input";
  override readonly name = "YourInput";

  constructor(override readonly key: string, override readonly attempts: number, override readonly problem: Problem) {
    super(problemText(problem));
  }

  override get mayBeAskedAgain(): boolean {
    return this.problem.status === 429;
  }
}
