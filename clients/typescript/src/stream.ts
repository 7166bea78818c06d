/** An operation as a stream of events that a broken connection does not end. */

import type { Answers, Endpoint, Reply } from "./answers.js";
import { setbackOf } from "./client.js";
import type { Inner } from "./client.js";
import { ClientError, NotSent } from "./errors.js";
import { Decoder } from "./events.js";
import type { Event } from "./events.js";
import type { Operation } from "./operation.js";
import { isObject, parsed, readProblem } from "./problem.js";
import type { Problem } from "./problem.js";
import { Elapsed, LONGEST_ANSWER } from "./transport.js";
import type { Answer } from "./transport.js";
import { Stopped } from "./tries.js";
import type { Tries } from "./tries.js";

/** A body comes up at least as fast as this, in bytes a second; the head of the stream is waited for accordingly. */
const SLOWEST_UPLOAD = 16 * 1024;
const FORM = "text/event-stream";

/** What an operation says while it runs. */
export type StreamEvent<E extends Endpoint = Endpoint> =
  /** A run began, or one that was there was joined. */
  | { type: "started"; requestId: string }
  /** The next piece of the answer's text. */
  | { type: "delta"; text: string }
  /** How far a parse is, in chunks. */
  | { type: "progress"; done: number; chunks: number }
  /** Everything so far is void: the text begins anew, of another run or from its start. */
  | { type: "restarted" }
  /** The answer; the last event. */
  | { type: "completed"; reply: Reply<Answers[E]> };

/**
 * The events of one operation, over however many connections. Each text comes once: after a connection was lost the
 * stream goes on behind the last event, or says `restarted`. Throws `ClientError`, once, where there is no answer and a
 * repeat no longer helps. Leaving the loop cancels nothing.
 */
export class EventStream<E extends Endpoint> implements AsyncIterableIterator<StreamEvent<E>> {
  readonly #inner: Inner;
  readonly #endpoint: E;
  readonly #key: string;
  /** Absent: its body is another's, and the run is only attached to. */
  readonly #operation: Operation<E> | undefined;
  readonly #signal: AbortSignal | undefined;
  readonly #tries: Tries;
  #begun = false;
  #answer: Answer | undefined;
  #decoder = new Decoder(LONGEST_ANSWER);
  #events: Event[] = [];
  #lastId: string | undefined;
  /** The run whose events were told, and whether it told something that another would make void. */
  #run: string | undefined;
  #told = false;
  /** The server knows the operation of this sending: an event of it came. */
  #joined = false;
  /** There is a run to go back to, without the body. */
  #attach: boolean;
  /** What an attached run ended with. */
  #failed: Problem | undefined;
  #ready: StreamEvent<E>[] = [];
  #over = false;

  /** @internal */
  constructor(
    inner: Inner,
    endpoint: E,
    key: string,
    operation: Operation<E> | undefined,
    signal: AbortSignal | undefined,
  ) {
    this.#inner = inner;
    this.#endpoint = endpoint;
    this.#key = key;
    this.#operation = operation;
    this.#attach = operation === undefined;
    this.#signal = signal;
    this.#tries = inner.tries();
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<StreamEvent<E>, undefined>> {
    if (this.#over) return { done: true, value: undefined };
    try {
      this.#signal?.throwIfAborted();
      const value = this.#ready.shift() ?? (await this.#goOn());
      if (value.type === "completed") {
        this.#close();
        if (this.#operation !== undefined) await this.#inner.ended(this.#key);
      }
      return { done: false, value };
    } catch (error) {
      this.#close();
      const known = error instanceof ClientError && !(error instanceof NotSent);
      if (this.#operation !== undefined && known) await this.#inner.ended(this.#key, error);
      throw error;
    }
  }

  async return(): Promise<IteratorResult<StreamEvent<E>, undefined>> {
    this.#close();
    return { done: true, value: undefined };
  }

  async #goOn(): Promise<StreamEvent<E>> {
    if (!this.#begun) {
      this.#begun = true;
      if (this.#operation !== undefined) await this.#inner.begun(this.#operation);
    }
    for (;;) {
      const ready = this.#ready.shift();
      if (ready !== undefined) return ready;
      try {
        const event = this.#events.shift();
        if (event !== undefined) this.#take(event, this.#answer);
        else if (this.#answer === undefined) await this.#open();
        else await this.#read(this.#answer);
      } catch (error) {
        const setback = setbackOf(error);
        this.#hangUp();
        this.#attach = this.#operation === undefined || (this.#joined && setback.kind === "lost");
        await this.#inner.waitOrEnd(setback, this.#key, this.#tries, this.#signal);
      }
    }
  }

  /** Opens the stream, behind what is there. */
  async #open(): Promise<void> {
    const answer = await this.#send();
    const { status } = answer;
    if (status === 200 && (answer.header("content-type") ?? "").toLowerCase().startsWith(FORM)) {
      this.#answer = answer;
      this.#decoder = new Decoder(LONGEST_ANSWER);
      return;
    }
    if (this.#attach && this.#operation !== undefined && !(status >= 502 && status <= 504)) {
      // Whatever became of the record: the request itself brings it back, or says why not.
      answer.close();
      this.#attach = false;
      return;
    }
    const body = await answer.whole(() => this.#tries.left());
    if (this.#operation === undefined && status === 204 && this.#failed !== undefined) {
      // Nothing follows what it ended with, and whoever attached cannot make it run.
      throw new Stopped({ kind: "refused", problem: { ...this.#failed, retryable: false } });
    }
    if (!(status >= 200 && status <= 299)) {
      throw new Stopped({ kind: "refused", problem: this.#inner.problem(answer, body ?? "") });
    }
    this.#completed(answer, body);
  }

  #send(): Promise<Answer> {
    const { silence, transport, post } = this.#inner;
    const operation = this.#operation;
    if (this.#attach || operation === undefined) {
      if (operation === undefined) this.#tries.attempts += 1;
      const headers: Record<string, string> = { accept: FORM };
      if (this.#lastId !== undefined) headers["last-event-id"] = this.#lastId;
      const path = `/v1/requests/${encodeURIComponent(this.#key)}/events`;
      const send = (limit: number): Promise<Answer> =>
        transport.send({ method: "GET", path, headers }, limit, this.#signal);
      return this.#within(silence, send, "the answer did not begin");
    }
    this.#joined = false;
    this.#tries.attempts += 1;
    const { attempts } = this.#tries;
    const form = { accept: FORM, behind: this.#lastId };
    const send = (limit: number): Promise<Answer> => post(operation, attempts, form, limit, this.#signal);
    const upload = (operation.uploadBytes / SLOWEST_UPLOAD) * 1_000;
    return this.#within(silence + upload, send, "the answer did not begin");
  }

  async #read(answer: Answer): Promise<void> {
    const { silence } = this.#inner;
    const piece = await this.#within(silence, (limit) => answer.next(limit), `nothing came for ${silence / 1_000} s`);
    if (piece === undefined) throw lost("the stream stopped before its end");
    const events = this.#decoder.take(piece);
    if (events === undefined) throw lost("an event is longer than any of the server's");
    this.#events.push(...events);
  }

  /** A step that has so long, and no longer than the operation. */
  async #within<T>(limit: number, step: (limit: number) => Promise<T>, elapsed: string): Promise<T> {
    const left = this.#tries.left();
    try {
      return await step(Math.min(limit, left));
    } catch (error) {
      throw error instanceof Elapsed && limit < left ? lost(elapsed) : error;
    }
  }

  #take(event: Event, answer: Answer | undefined): void {
    this.#joined = true;
    if (event.id !== undefined) this.#lastId = event.id;
    switch (event.name) {
      case "started": {
        const requestId = member(event, "request_id", isText);
        if (this.#run === requestId) return;
        if (this.#run !== undefined) this.#restart();
        this.#run = requestId;
        this.#ready.push({ type: "started", requestId });
        return;
      }
      case "restarted":
        this.#run = undefined;
        this.#restart();
        return;
      case "delta":
        this.#tell({ type: "delta", text: member(event, "text", isText) });
        return;
      case "progress": {
        const [done, chunks] = [member(event, "chunks_done", isCount), member(event, "chunks", isCount)];
        this.#tell({ type: "progress", done, chunks });
        return;
      }
      case "completed":
        if (answer !== undefined) this.#completed(answer, event.data);
        return;
      case "failed":
        this.#failed = readProblem(undefined, event.data);
        throw new Stopped({ kind: "refused", problem: this.#failed });
      default:
      // Of a later server.
    }
  }

  #tell(event: StreamEvent<E>): void {
    this.#told = true;
    this.#tries.gotFurther();
    this.#ready.push(event);
  }

  #restart(): void {
    if (this.#told) this.#ready.push({ type: "restarted" });
    this.#told = false;
  }

  #completed(answer: Answer, body: string | undefined): void {
    if (body === undefined) throw new Stopped({ kind: "unreadable", problem: this.#inner.problem(answer, "") });
    const reply = this.#inner.reply<Answers[E]>(this.#endpoint, this.#key, this.#tries.attempts, answer, body);
    this.#ready.push({ type: "completed", reply });
  }

  #hangUp(): void {
    this.#events = [];
    this.#answer?.close();
    this.#answer = undefined;
  }

  #close(): void {
    this.#over = true;
    this.#hangUp();
  }
}

function lost(reason: string): Stopped {
  return new Stopped({ kind: "lost", reason });
}

/** A member of an event of the server's. */
function member<T>(event: Event, name: string, is: (value: unknown) => value is T): T {
  const wire = parsed(event.data);
  const value = isObject(wire) ? wire[name] : undefined;
  if (is(value)) return value;
  const detail = `an event of the stream cannot be read: ${event.name} has no ${name}`;
  throw new Stopped({ kind: "unreadable", problem: { status: 200, error: "", title: "", detail } });
}

function isText(value: unknown): value is string {
  return typeof value === "string";
}

function isCount(value: unknown): value is number {
  return Number.isInteger(value);
}
