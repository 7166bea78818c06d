// A way to a server that says what a test scripted, and a clock that only moves when somebody sleeps.

import { webcrypto } from "node:crypto";

export class ManualClock {
  time = 1_787_000_000_500;
  slept = [];
  now = () => this.time;
  utcNow = () => this.time;
  chance = () => 0;
  randomBytes = (count) => webcrypto.getRandomValues(new Uint8Array(count));
  // A sleep that can be woken is the end of a step's time, which comes only where a script says so.
  alarms = [];
  sleep = (millis, signal) => {
    if (signal === undefined) {
      this.slept.push(Math.round(millis));
      this.time += millis;
      return Promise.resolve();
    }
    if (signal.aborted) return Promise.resolve();
    return new Promise((resolve) => {
      this.alarms.push({ millis, ring: resolve });
      signal.addEventListener("abort", () => resolve());
    });
  };
}

/** Stands in an answer, or for one, where the connection breaks. */
export const CUT = Symbol("cut");
/** Where nothing more comes until somebody's time is over. */
export const SILENCE = Symbol("silence");

export function reply(status, pieces = [], headers = {}) {
  return { status, pieces: [pieces].flat(), headers };
}

export function problem(status, error, more = {}) {
  return reply(status, JSON.stringify({ status, error, detail: "So it is.", ...more }));
}

export function answer(content = "Yes.", headers = {}) {
  return reply(200, JSON.stringify(chatAnswer(content)), headers);
}

export function stream(...pieces) {
  return reply(200, pieces, { "content-type": "text/event-stream" });
}

export function event(name, data, id) {
  return `${id === undefined ? "" : `id: ${id}\n`}event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}

export function chatAnswer(content) {
  return {
    request_id: "r1",
    conversation_id: "c1",
    turn_id: "t1",
    message: { role: "assistant", content },
    model: "default",
    stop_reason: "end",
    usage: { input_tokens: 1, output_tokens: 2, cache_read_tokens: null, cache_write_tokens: 0 },
  };
}

/** `fetch`, and what it was asked. */
export function scripted(clock, ...replies) {
  const sent = [];
  const silent = (signal) =>
    new Promise((_, reject) => {
      signal.addEventListener("abort", () => reject(signal.reason));
      queueMicrotask(() => clock.alarms.at(-1)?.ring());
    });
  const fetch = async (url, { method, headers, body, signal, redirect }) => {
    const { pathname, searchParams } = new URL(url);
    sent.push({ method, path: pathname, query: searchParams, headers, body, redirect });
    const next = replies.shift();
    if (next === CUT) throw new TypeError("fetch failed", { cause: new Error("connection reset") });
    if (next === SILENCE) return silent(signal);
    const pieces = [...next.pieces];
    const body_ = new ReadableStream(
      {
        async pull(controller) {
          const piece = pieces.shift();
          if (piece === undefined) controller.close();
          else if (piece === CUT) controller.error(new TypeError("terminated"));
          else if (piece === SILENCE) await silent(signal).catch((error) => controller.error(error));
          else controller.enqueue(typeof piece === "string" ? new TextEncoder().encode(piece) : piece);
        },
      },
      { highWaterMark: 0 },
    );
    return new Response(next.status === 204 ? null : body_, { status: next.status, headers: next.headers });
  };
  return { fetch, sent };
}
