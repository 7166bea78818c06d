/**
 * An operation asked for until there is an answer, or none is to be had. What is performed here, `decide` has
 * decided.
 */

import { readAnswer } from "./answers.js";
import type { Answers, Endpoint, RecordAnswer, Reply } from "./answers.js";
import { newKey, systemClock } from "./clock.js";
import type { Clock } from "./clock.js";
import { decide, toldWait } from "./decide.js";
import type { Ending, Situation } from "./decide.js";
import { ClientError, ConnectionLost, NotSent, OurSide, TimeoutPassed, YourInput } from "./errors.js";
import type { Journal } from "./journal.js";
import { checkedKey } from "./operation.js";
import type { Operation } from "./operation.js";
import { DEFAULT_RETRY } from "./policy.js";
import type { Repeat, RetryPolicy } from "./policy.js";
import { readProblem } from "./problem.js";
import type { Problem } from "./problem.js";
import { freeze } from "./request.js";
import type { Request } from "./request.js";
import { EventStream } from "./stream.js";
import { Broken, Elapsed, Transport } from "./transport.js";
import type { Answer } from "./transport.js";
import { Stopped, Tries } from "./tries.js";
import type { Setback } from "./tries.js";

/**
 * How long an operation is waited for, all its repeats included. Above the longest honest run of a server with its
 * settings at their defaults: 4 calls of 10 minutes each, 30 s of waiting for a place before each, 8 s between them.
 */
export const DEFAULT_TIMEOUT = 2_700_000;

/** A stream that says nothing for so long is broken: a server says something every 15 s. */
export const DEFAULT_SILENCE = 45_000;

export interface ClientOptions {
  /** Of role `client`. Absent where another adds it: an app's own server, which the app asks. */
  apiKey?: string;
  /** On behalf of whom a tenant's server asks (`X-End-User`). */
  endUser?: string;
  /** When and how often to send again. */
  retry?: Partial<RetryPolicy>;
  /** For an operation with all its repeats; a shorter one than the default gives up on answers that are on their way. */
  timeout?: number;
  /** How long a stream may say nothing. */
  silence?: number;
  /** Keeps operations over the end of the process. */
  journal?: Journal;
  /** Called before a request is sent again. */
  onRepeat?: (repeat: Repeat) => void;
  /** Another way to send, such as one through a proxy or with headers of its own. */
  fetch?: typeof fetch;
  /** For tests. */
  clock?: Clock;
}

export interface CallOptions {
  /** Ends the waiting, and cancels nothing: the operation runs on, and the same operation sent again finds it. */
  signal?: AbortSignal;
}

/** @internal What a stream needs of its client. */
export interface Inner {
  readonly clock: Clock;
  readonly silence: number;
  readonly transport: Transport;
  tries(): Tries;
  begun(operation: Operation): Promise<void>;
  ended(key: string, error?: ClientError): Promise<void>;
  waitOrEnd(setback: Setback, key: string, tries: Tries, signal: AbortSignal | undefined): Promise<void>;
  problem(answer: Answer, body: string): Problem;
  reply<A>(endpoint: Endpoint | "record", key: string, attempts: number, answer: Answer, body: string): Reply<A>;
  post(operation: Operation, attempt: number, form: Form, limit: number, signal: AbortSignal | undefined): Promise<Answer>;
}

/** @internal In what form an answer is wanted, and behind which event. */
export interface Form {
  accept: string;
  behind?: string | undefined;
}

/** Calls one server (as in `https://oncekey.example`). */
export class Client {
  readonly #inner: Inner;

  /** Throws {@link NotSent} for a setting that nothing could be sent with. */
  constructor(server: string, options: ClientOptions = {}) {
    this.#inner = inner(server, options);
  }

  /**
   * One thing that a user did, under a new key (UUIDv7), or under one that is known: that of a job in a queue, say.
   * Nothing is sent yet: call it when the user acts, and keep what it returns until there is an answer. Throws
   * {@link NotSent} for a text that is no key, and for what JSON cannot hold.
   */
  begin<E extends Endpoint>(request: Request<E>, key?: string): Operation<E> {
    return freeze(request, key === undefined ? newKey(this.#inner.clock) : checkedKey(key));
  }

  /**
   * Sends the operation until there is an answer or a repeat no longer helps. Throws {@link ClientError}, which tells
   * whom it concerns.
   */
  async send<E extends Endpoint>(operation: Operation<E>, { signal }: CallOptions = {}): Promise<Reply<Answers[E]>> {
    const { begun, ended, post, tries: begin } = this.#inner;
    await begun(operation);
    const tries = begin();
    const once = (attempt: number): Promise<Answer> =>
      post(operation, attempt, { accept: "application/json" }, tries.left(), signal);
    try {
      const reply = await this.#ask<Answers[E]>(operation.endpoint, operation.key, tries, once, signal);
      await ended(operation.key);
      return reply;
    } catch (error) {
      if (error instanceof ClientError) await ended(operation.key, error);
      throw error;
    }
  }

  /**
   * The operation as a stream of events, which comes back behind what it has when the connection breaks; sent when the
   * first is asked for.
   */
  stream<E extends Endpoint>(operation: Operation<E>, { signal }: CallOptions = {}): EventStream<E> {
    return new EventStream(this.#inner, operation.endpoint, operation.key, operation, signal);
  }

  /**
   * The events of what runs, or ran, under a key, by whoever does not have its body. Makes nothing run: a run that
   * failed stays so until its sender asks again.
   */
  attach<E extends Endpoint>(key: string, endpoint: E, { signal }: CallOptions = {}): EventStream<E> {
    return new EventStream(this.#inner, endpoint, checkedKey(key), undefined, signal);
  }

  /**
   * What became of an operation, which need not be one of this process. Throws {@link YourInput} with status 404 where
   * the key is not known.
   */
  record(key: string, options: CallOptions = {}): Promise<RecordAnswer> {
    return this.#ofRecord("GET", key, "", options);
  }

  /**
   * Ends the run of an operation, at whatever node, and frees its conversation; whoever waits for it is refused with
   * `cancelled`. Changes nothing where nothing runs. The record as it is then.
   */
  cancel(key: string, options: CallOptions = {}): Promise<RecordAnswer> {
    return this.#ofRecord("POST", key, "/cancel", options);
  }

  async #ofRecord(method: string, key: string, action: string, { signal }: CallOptions): Promise<RecordAnswer> {
    const sentKey = checkedKey(key);
    const tries = this.#inner.tries();
    const path = `/v1/requests/${encodeURIComponent(sentKey)}${action}`;
    const headers = { accept: "application/json" };
    const once = (): Promise<Answer> => this.#inner.transport.send({ method, path, headers }, tries.left(), signal);
    return (await this.#ask<RecordAnswer>("record", sentKey, tries, once, signal)).answer;
  }

  async #ask<A>(
    endpoint: Endpoint | "record",
    key: string,
    tries: Tries,
    once: (attempt: number) => Promise<Answer>,
    signal: AbortSignal | undefined,
  ): Promise<Reply<A>> {
    for (;;) {
      tries.attempts += 1;
      let setback: Setback;
      try {
        const answer = await once(tries.attempts);
        const body = await answer.whole(() => tries.left());
        const success = answer.status >= 200 && answer.status <= 299;
        if (success && body !== undefined) return this.#inner.reply(endpoint, key, tries.attempts, answer, body);
        const problem = this.#inner.problem(answer, success ? "" : (body ?? ""));
        setback = { kind: success ? "unreadable" : "refused", problem };
      } catch (error) {
        setback = setbackOf(error);
      }
      await this.#inner.waitOrEnd(setback, key, tries, signal);
    }
  }
}

/** What a broken or an elapsed exchange means; everything else is thrown on. @internal */
export function setbackOf(error: unknown): Setback {
  if (error instanceof Broken) return { kind: "lost", reason: error.message };
  if (error instanceof Elapsed) return { kind: "timed_out" };
  if (error instanceof Stopped) return error.setback;
  throw error;
}

function inner(server: string, options: ClientOptions): Inner {
  const { apiKey, endUser, journal, onRepeat } = options;
  const { timeout = DEFAULT_TIMEOUT, silence = DEFAULT_SILENCE, clock = systemClock } = options;
  const policy: RetryPolicy = { ...DEFAULT_RETRY, ...options.retry };
  const transport = new Transport(server, { apiKey, endUser }, options.fetch, clock);
  const problem = (answer: Answer, body: string): Problem => {
    const read = readProblem(answer.status, body);
    const retryAfter = toldWait(read.retryAfter, answer.header("retry-after"), clock.utcNow());
    const requestId = read.requestId ?? answer.header("x-request-id") ?? undefined;
    return { ...read, ...(retryAfter !== undefined && { retryAfter }), ...(requestId !== undefined && { requestId }) };
  };
  return {
    clock,
    silence,
    transport,
    problem,
    tries: () => new Tries(clock, timeout),
    async begun(operation) {
      if (journal === undefined || operation.resumed) return;
      try {
        await journal.begun(operation.key, operation.kept());
      } catch (error) {
        throw new NotSent(`it could not be kept: ${error instanceof Error ? error.message : String(error)}`);
      }
    },
    async ended(key, error) {
      if (error !== undefined && error.mayBeAskedAgain) return;
      try {
        await journal?.ended(key);
      } catch {
        // The answer is what was asked for; one that is left is asked for once more, and replayed.
      }
    },
    async waitOrEnd(setback, key, tries, signal) {
      if (setback.kind === "unreadable") throw new OurSide(key, tries.attempts, setback.problem);
      const decision = decide(policy, situationOf(setback), tries.repeats(), tries.left(), clock.chance());
      if (decision.kind !== "again") {
        // A failure that calls itself a success is the server's.
        const ending = decision.kind === "stop" ? decision.ending : "our_side";
        throw errorOf(ending, setback, key, tries.attempts, timeout);
      }
      const { after, counts } = decision;
      tries.count(setback, counts);
      const status = setback.kind === "refused" ? { status: setback.problem.status } : {};
      onRepeat?.({ key, attempt: tries.attempts + 1, after, ...status });
      await clock.sleep(after, signal);
      signal?.throwIfAborted();
    },
    reply<A>(endpoint: Endpoint | "record", key: string, attempts: number, answer: Answer, body: string): Reply<A> {
      const read = readAnswer(endpoint, body);
      if (read === undefined) throw new OurSide(key, attempts, problem(answer, ""));
      const requestId = answer.header("x-request-id");
      const replayed = answer.header("idempotency-replayed") === "true";
      return { answer: read as A, body, key, replayed, ...(requestId !== null && { requestId }), attempts };
    },
    post(operation, attempt, { accept, behind }, limit, signal) {
      const { contentType, query, body } = operation.sending(attempt, clock.utcNow());
      const headers: Record<string, string> = { "idempotency-key": operation.key, "content-type": contentType, accept };
      if (behind !== undefined) headers["last-event-id"] = behind;
      return transport.send({ method: "POST", path: `/v1/${operation.endpoint}`, query, headers, body }, limit, signal);
    },
  };
}

function situationOf(setback: Setback): Situation {
  if (setback.kind === "lost" || setback.kind === "timed_out") return { kind: setback.kind };
  const { status, retryAfter: wait, retryable } = setback.problem;
  return { kind: "answered", status, wait, retryable };
}

function errorOf(ending: Ending, setback: Setback, key: string, attempts: number, timeout: number): ClientError {
  const problem = "problem" in setback ? setback.problem : undefined;
  const some = problem ?? { status: 0, error: "", title: "", detail: "" };
  switch (ending) {
    case "connection_lost":
      return new ConnectionLost(key, attempts, setback.kind === "lost" ? setback.reason : "");
    case "timed_out":
      return new TimeoutPassed(key, attempts, timeout, problem);
    case "our_side":
      return new OurSide(key, attempts, some);
    case "your_input":
      return new YourInput(key, attempts, some);
  }
}
