/** One HTTP request, from its first byte to the head or the end of its answer. Repeats nothing. */

import { send } from "#platform";

import type { Clock } from "./clock.js";
import { NotSent } from "./errors.js";

/** Far above the longest answer that is stored: whoever sends more is not the server. */
export const LONGEST_ANSWER = 64 * 1024 * 1024;

/** The connection broke; the transport's words. */
export class Broken extends Error {}

/** The time that was given passed. */
export class Elapsed extends Error {}

export interface Sent {
  method: string;
  path: string;
  query?: string;
  headers: Record<string, string>;
  body?: Uint8Array;
}

/** The way to one server. */
export class Transport {
  readonly #base: string;
  readonly #headers: Record<string, string>;
  readonly #fetch: typeof fetch;
  readonly #clock: Clock;

  constructor(
    server: string,
    credentials: { apiKey?: string | undefined; endUser?: string | undefined },
    fetcher: typeof fetch | undefined,
    clock: Clock,
  ) {
    // Without the text: it may hold a password, or be the API key in the wrong place.
    const wrong = (what: string): NotSent =>
      new NotSent(`the server's address ${what}; give it as http://HOST:PORT or https://HOST`);
    let url: URL;
    try {
      url = new URL(server);
    } catch {
      throw wrong("is no URL");
    }
    if (url.protocol !== "http:" && url.protocol !== "https:") throw wrong("is not reached over HTTP");
    this.#base = `${url.origin}${url.pathname.replace(/\/+$/, "")}`;
    this.#headers = {};
    const { apiKey, endUser } = credentials;
    if (apiKey !== undefined) this.#headers["authorization"] = `Bearer ${header("the API key", apiKey)}`;
    // As bytes of UTF-8, which fetch wants spelled as Latin-1.
    if (endUser !== undefined) this.#headers["x-end-user"] = header("the end user", latin1(endUser));
    this.#fetch = fetcher ?? send;
    this.#clock = clock;
  }

  /**
   * Sends a request and waits so long for the head of its answer. Throws {@link Broken}, {@link Elapsed}, or the
   * reason of the caller's signal.
   */
  async send(sent: Sent, limit: number, signal: AbortSignal | undefined): Promise<Answer> {
    signal?.throwIfAborted();
    const line = new Line(this.#clock, signal);
    const query = sent.query ? `?${sent.query}` : "";
    // Called as a function: some check what they are called on.
    const fetch = this.#fetch;
    const response = await line.within(limit, () =>
      fetch(`${this.#base}${sent.path}${query}`, {
        method: sent.method,
        headers: { ...this.#headers, ...sent.headers },
        // A credential goes to the named server alone.
        redirect: "manual",
        cache: "no-store",
        signal: line.signal,
        ...(sent.body && { body: sent.body as BodyInit }),
      }),
    );
    return new Answer(response, line);
  }
}

/** An answer whose head is there. */
export class Answer {
  readonly status: number;
  readonly #response: Response;
  readonly #line: Line;
  #reader: ReadableStreamDefaultReader<Uint8Array> | undefined;
  #over = false;

  constructor(response: Response, line: Line) {
    this.#response = response;
    this.#line = line;
    // A browser does not tell which redirect it was.
    this.status = response.type === "opaqueredirect" ? 307 : response.status;
  }

  header(name: string): string | null {
    return this.#response.headers.get(name);
  }

  /** The next piece of the body, for which is waited so long; `undefined` at its end. Throws as `send` does. */
  async next(limit: number): Promise<Uint8Array | undefined> {
    if (this.#over) return undefined;
    const { body } = this.#response;
    if (!body) {
      // None, or an old engine that gives it whole.
      this.#over = true;
      return new Uint8Array(await this.#line.within(limit, () => this.#response.arrayBuffer()));
    }
    const reader = (this.#reader ??= body.getReader());
    const { done, value } = await this.#line.within(limit, () => reader.read());
    this.#over = done;
    return done ? undefined : value;
  }

  /** The whole body as text; `undefined` where it is none, or longer than any of the server's. */
  async whole(left: () => number): Promise<string | undefined> {
    const decoder = new TextDecoder("utf-8", { fatal: true });
    const decoded = (piece?: Uint8Array): string | undefined => {
      try {
        return decoder.decode(piece, { stream: piece !== undefined });
      } catch {
        return undefined;
      }
    };
    let [text, length] = ["", 0];
    for (;;) {
      const piece = await this.next(left());
      const more = decoded(piece);
      length += piece?.length ?? 0;
      if (more === undefined || length > LONGEST_ANSWER) {
        this.close();
        return undefined;
      }
      text += more;
      if (piece === undefined) return text;
    }
  }

  close(): void {
    this.#over = true;
    this.#line.hangUp();
  }
}

/** What ends one request: its time, or the caller. */
class Line {
  readonly #controller = new AbortController();
  readonly #clock: Clock;
  readonly #caller: AbortSignal | undefined;

  constructor(clock: Clock, caller: AbortSignal | undefined) {
    this.#clock = clock;
    this.#caller = caller;
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  hangUp(): void {
    if (!this.#controller.signal.aborted) this.#controller.abort();
  }

  async within<T>(limit: number, step: () => Promise<T>): Promise<T> {
    if (this.#caller?.aborted) this.hangUp();
    this.#caller?.throwIfAborted();
    const over = new AbortController();
    const hangUp = (): void => this.hangUp();
    this.#caller?.addEventListener("abort", hangUp);
    const alarm = this.#clock.sleep(limit, over.signal).then(() => {
      if (over.signal.aborted) return new Promise<never>(() => {});
      this.hangUp();
      throw new Elapsed();
    });
    try {
      return await Promise.race([step(), alarm]);
    } catch (error) {
      this.hangUp();
      this.#caller?.throwIfAborted();
      throw error instanceof Elapsed ? error : new Broken(reason(error));
    } finally {
      over.abort();
      this.#caller?.removeEventListener("abort", hangUp);
    }
  }
}

/** The innermost cause, which is the one that says something ("connection refused"). */
function reason(error: unknown): string {
  let cause = error;
  while (cause instanceof Error && cause.cause !== undefined) cause = cause.cause;
  if (!(cause instanceof Error)) return String(cause);
  const code = (cause as { code?: unknown }).code;
  return cause.message || (typeof code === "string" ? code : cause.name);
}

function header(what: string, text: string): string {
  if (!/^[\x20-\x7e\x80-\xff]*$/.test(text)) throw new NotSent(`${what} has characters that no header can carry`);
  return text;
}

function latin1(text: string): string {
  // Half a character would be sent as another, and so for somebody else.
  if (/\p{Surrogate}/u.test(text)) throw new NotSent("the end user has characters that no header can carry");
  return Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join("");
}
