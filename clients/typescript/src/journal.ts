/**
 * Keeps what was begun, so that an app that was killed in the middle asks for its answer again instead of asking
 * anew.
 */
export interface Journal {
  /**
   * Called, and waited for, before the first byte of an operation is sent. `operation` is what
   * `Operation.fromKept` takes. Whatever it throws keeps the operation from being sent.
   */
  begun(key: string, operation: string): void | Promise<void>;
  /**
   * Called when nothing more is to be had: an answer, or a refusal that stays the same. Not called where the same key
   * may still bring an answer. What it throws changes nothing: one that is left is asked for once more, and replayed.
   */
  ended(key: string): void | Promise<void>;
}
