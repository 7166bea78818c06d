/**
 * The same for Node.js, which has no global crypto in version 18, and whose `fetch` cannot be used here: it never
 * settles where a connection is closed as soon as it is made, which is what a way to a server that is being replaced
 * looks like (Node.js 20, undici 6.24), and it gives up after 300 s without a byte, which no setting of its own changes.
 */

// The types of Node.js would be a dependency for a few names.
// @ts-expect-error see above
import { webcrypto } from "node:crypto";
// @ts-expect-error see above
import * as http from "node:http";
// @ts-expect-error see above
import * as https from "node:https";

/** A connection that is not there by then goes to nobody. */
const CONNECT_TIMEOUT = 10_000;
/** The system asks a silent peer whether it is there, from then on. */
const KEEP_ALIVE = 30_000;

interface Emitter {
  on(event: string, told: (value: any) => void): void;
  once(event: string, told: (value: any) => void): void;
  destroy(error?: Error): void;
}

interface Socket extends Emitter {
  connecting: boolean;
  setKeepAlive(enable: boolean, after: number): void;
}

interface Outgoing extends Emitter {
  end(body?: Uint8Array): void;
}

interface Incoming extends Emitter {
  statusCode: number;
  headers: Record<string, string | string[] | undefined>;
  complete: boolean;
  pause(): void;
  resume(): void;
}

/** Bytes that nobody can guess. */
export function randomBytes(count: number): Uint8Array {
  return (webcrypto as Crypto).getRandomValues(new Uint8Array(count));
}

/** One request, on a connection of its own. Of what `fetch` takes, that which this package gives. */
export const send: typeof fetch = (input, init = {}) =>
  new Promise((resolve, reject) => {
    const url = new URL(String(input));
    const { method = "GET", signal } = init;
    const body = init.body as Uint8Array | undefined;
    const length = body && { "content-length": String(body.length) };
    const headers = { ...(init.headers as Record<string, string>), ...length };
    const { request } = (url.protocol === "https:" ? https : http) as typeof http;
    const call = request(url, { method, headers, agent: false, ...(signal && { signal }) }) as Outgoing;
    call.on("error", reject);
    call.once("socket", (socket: Socket) => settle(socket, call));
    call.once("response", (response: Incoming) => {
      try {
        resolve(answer(response));
      } catch (error) {
        response.destroy();
        reject(error);
      }
    });
    call.end(body);
  });

function settle(socket: Socket, call: Outgoing): void {
  socket.setKeepAlive(true, KEEP_ALIVE);
  if (!socket.connecting) return;
  const late = (): void => call.destroy(new Error(`no connection within ${CONNECT_TIMEOUT / 1_000} s`));
  const timer = setTimeout(late, CONNECT_TIMEOUT);
  for (const event of ["connect", "close"]) socket.once(event, () => clearTimeout(timer));
}

function answer(response: Incoming): Response {
  const headers = new Headers();
  for (const [name, value] of Object.entries(response.headers)) headers.set(name, [value].flat().join(", "));
  // No Response holds one above, and it is refused like any other of its kind.
  const init = { status: Math.min(response.statusCode, 599), headers };
  if ([204, 205, 304].includes(init.status)) {
    response.resume();
    return new Response(null, init);
  }
  return new Response(pieces(response), init);
}

function pieces(response: Incoming): ReadableStream<Uint8Array> {
  let over = false;
  return new ReadableStream({
    start(controller) {
      const end = (error?: Error): void => {
        if (over) return;
        over = true;
        if (error === undefined) controller.close();
        else controller.error(error);
      };
      response.on("data", (piece: Uint8Array) => {
        if (over) return;
        controller.enqueue(new Uint8Array(piece));
        if ((controller.desiredSize ?? 0) <= 0) response.pause();
      });
      response.once("end", () => end());
      response.on("error", end);
      response.once("close", () => end(new Error("the answer stopped before its end")));
    },
    pull() {
      response.resume();
    },
    cancel() {
      over = true;
      response.destroy();
    },
  });
}
