/** One thing that a user did: its key, and the bytes that mean it. */

import type { Endpoint } from "./answers.js";
import { NotSent } from "./errors.js";
import { isObject, parsed } from "./problem.js";

export type Json = null | boolean | number | string | readonly Json[] | { readonly [name: string]: Json };

/**
 * The bytes of a request without its metadata, which alone differs from one sending to the next and is no part of the
 * request's meaning: a JSON object, or a file as it is and the query that holds its options.
 */
type Body = { json: string } | { query: string; file: Uint8Array };

/** One sending. */
export interface Sending {
  contentType: string;
  query: string;
  body: Uint8Array;
}

const MAX_KEY_CHARS = 255;
const MEMBERS = ["endpoint", "key", "json", "query", "file_base64", "metadata"];

/**
 * A key and the body that it stands for, for ever the same. Made by `Client.begin` when the user acts, not when a
 * request is sent; kept, it can be taken up again by another process.
 */
export class Operation<E extends Endpoint = Endpoint> {
  readonly #body: Body;
  readonly #metadata: Record<string, Json>;

  /** @internal */
  constructor(
    readonly endpoint: E,
    /** The idempotency key. */
    readonly key: string,
    body: Body,
    metadata: Record<string, Json>,
    /** Whether another process began it. */
    readonly resumed: boolean = false,
  ) {
    this.#body = body;
    this.#metadata = metadata;
  }

  /** The form in which it is kept, by whatever client; {@link Operation.fromKept} takes it. */
  kept(): string {
    const body = this.#body;
    const parts = "json" in body ? { json: body.json } : { query: body.query, file_base64: toBase64(body.file) };
    return JSON.stringify({ endpoint: this.endpoint, key: this.key, ...parts, metadata: this.#metadata });
  }

  /** What a journal kept. Throws {@link NotSent} where it is no kept operation (of that endpoint). */
  static fromKept<E extends Endpoint = Endpoint>(kept: string, of?: E): Operation<E> {
    const wire = parsed(kept);
    if (!isObject(wire) || !Object.keys(wire).every((name) => MEMBERS.includes(name))) {
      throw new NotSent("this is no kept operation");
    }
    const { endpoint, key, json, query, file_base64: file, metadata = {} } = wire;
    if (endpoint !== "chat" && endpoint !== "parse") {
      throw new NotSent("the operation is of no endpoint that this client knows");
    }
    if (of !== undefined && of !== endpoint) throw new NotSent(`the operation is one of ${endpoint}, not of ${of}`);
    if (typeof key !== "string" || !isObject(metadata)) {
      throw new NotSent("the operation has no key, or metadata that is no object");
    }
    const body = bodyOf(json, query, file);
    if (body === undefined) throw new NotSent("the operation has no body");
    return new Operation(endpoint as E, checkedKey(key), body, metadata as Record<string, Json>, true);
  }

  /** What goes up with it, about. @internal */
  get uploadBytes(): number {
    return "json" in this.#body ? this.#body.json.length : this.#body.file.length;
  }

  /** The request as it goes out for the `attempt`th time, from 1. @internal */
  sending(attempt: number, sentAt: number): Sending {
    const told: Record<string, Json> = { ...this.#metadata, attempt, sent_at: new Date(sentAt).toISOString() };
    if (this.resumed) told["resumed"] = true;
    const metadata = JSON.stringify(told);
    const body = this.#body;
    if ("json" in body) {
      // An object that is never empty, see where bodies are made and read.
      const opened = body.json.trimEnd().replace(/\}$/, "");
      const text = `${opened},"metadata":${metadata}}`;
      return { contentType: "application/json", query: "", body: new TextEncoder().encode(text) };
    }
    const query = new URLSearchParams(body.query);
    query.append("metadata", metadata);
    return { contentType: "application/octet-stream", query: query.toString(), body: body.file };
  }
}

/** A key in the form in which it is sent. Throws {@link NotSent} for text that the server would not take for one. */
export function checkedKey(given: string): string {
  let text = given.replace(/^[ \t\r\n\f]+|[ \t\r\n\f]+$/g, "");
  if (text.length >= 2 && text.startsWith('"') && text.endsWith('"')) {
    const inner = text.slice(1, -1);
    if (!/^(?:[^"\\]|\\["\\])*$/.test(inner)) throw new NotSent("the key is not well quoted");
    text = inner.replace(/\\(.)/g, "$1");
    if (text.startsWith('"') || text.endsWith('"')) throw new NotSent("the key is not well quoted");
  } else if (text.startsWith('"') || text.endsWith('"')) {
    throw new NotSent("the key is not well quoted");
  }
  if (text === "") throw new NotSent("the key is empty");
  if (!/^[!-+\--~]+$/.test(text)) {
    throw new NotSent("the key holds a character that is not allowed: printable ASCII without blanks and commas is");
  }
  if (text.length > MAX_KEY_CHARS) throw new NotSent(`the key is longer than ${MAX_KEY_CHARS} characters`);
  const uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-(.)[0-9a-f]{3}-(.)[0-9a-f]{3}-[0-9a-f]{12}$/i.exec(text);
  // A version 8 of the caller's own is text like any other to the server.
  const opaque = uuid === null || (uuid[1] === "8" && /[89ab]/i.test(uuid[2] ?? ""));
  return opaque ? text : text.toLowerCase();
}

function bodyOf(json: unknown, query: unknown, file: unknown): Body | undefined {
  if (typeof json === "string" && query === undefined && file === undefined) {
    const object = parsed(json);
    // Whether metadata can stand behind its last member.
    return isObject(object) && Object.keys(object).length > 0 ? { json } : undefined;
  }
  if (json !== undefined || typeof query !== "string" || typeof file !== "string") return undefined;
  const bytes = fromBase64(file);
  return bytes && { query, file: bytes };
}

function toBase64(bytes: Uint8Array): string {
  let text = "";
  // In pieces: arguments are few.
  for (let at = 0; at < bytes.length; at += 32_766) {
    text += btoa(String.fromCharCode(...bytes.subarray(at, at + 32_766)));
  }
  return text;
}

function fromBase64(text: string): Uint8Array | undefined {
  if (text.length % 4 !== 0 || !/^[A-Za-z0-9+/]*={0,2}$/.test(text)) return undefined;
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}
