/** What a caller asks for, before it has a key. */

import type { Endpoint } from "./answers.js";
import { NotSent } from "./errors.js";
import { Operation } from "./operation.js";
import type { Json } from "./operation.js";

export interface ChatOptions {
  /** One of the server's models; `default` where none is said. */
  model?: string;
  /** 0 to 2. */
  temperature?: number;
  /** The longest answer, in tokens. */
  maxTokens?: number;
  /**
   * Stored with the turn, no part of the request's meaning. The client adds `attempt`, `sent_at` and, for an operation
   * that another process began, `resumed`.
   */
  metadata?: Record<string, Json>;
}

export interface ParseOptions {
  /** What is to be produced; `script` where none is said. */
  profile?: string;
  /** Whether a result with gaps is better than none. */
  allowGaps?: boolean;
  /** One of the server's models; `default` where none is said. */
  model?: string;
  /** As for a chat. */
  metadata?: Record<string, Json>;
}

/** What an operation can be begun with. */
export interface Request<E extends Endpoint> {
  readonly endpoint: E;
  /** A JSON object; absent for a file. */
  readonly json?: Record<string, unknown>;
  readonly query?: Record<string, string>;
  readonly file?: Uint8Array;
  readonly metadata: Record<string, Json>;
}

/** A message of a user's in a conversation (1 to 255 characters of the caller's own choice). */
export function chat(conversation: string, message: string, options: ChatOptions = {}): Request<"chat"> {
  const { model, temperature, maxTokens, metadata = {} } = options;
  const limits = given({ temperature, max_tokens: maxTokens });
  const some = Object.keys(limits).length > 0 ? limits : undefined;
  return { endpoint: "chat", json: given({ conversation_id: conversation, message, model, options: some }), metadata };
}

/** A text to be parsed. */
export function parseText(text: string, options: ParseOptions = {}): Request<"parse"> {
  return parseJson({ text }, options);
}

/** An input that an earlier parse stored, by that parse's `operation_id`. */
export function parseCapture(operationId: string, options: ParseOptions = {}): Request<"parse"> {
  return parseJson({ capture_id: operationId }, options);
}

/** A file to be parsed (PDF, PNG, JPEG, WebP, plain text); its bytes decide what it is. */
export function parseFile(bytes: Uint8Array | ArrayBuffer, options: ParseOptions = {}): Request<"parse"> {
  const query: Record<string, string> = {};
  for (const [name, value] of Object.entries(parseOptions(options))) query[name] = String(value);
  // A copy: what the caller does to it later changes nothing here.
  return { endpoint: "parse", query, file: new Uint8Array(bytes).slice(), metadata: options.metadata ?? {} };
}

/** The operation of a request. */
export function freeze<E extends Endpoint>(request: Request<E>, key: string): Operation<E> {
  const metadata = JSON.parse(written(request.metadata)) as Record<string, Json>;
  const { endpoint, json, query = {}, file } = request;
  if (json !== undefined) return new Operation(endpoint, key, { json: written(json) }, metadata);
  return new Operation(endpoint, key, { query: new URLSearchParams(query).toString(), file: file ?? new Uint8Array() }, metadata);
}

function parseJson(input: Record<string, string>, options: ParseOptions): Request<"parse"> {
  return { endpoint: "parse", json: { ...input, ...parseOptions(options) }, metadata: options.metadata ?? {} };
}

function parseOptions({ profile, allowGaps, model }: ParseOptions): Record<string, unknown> {
  return given({ profile, allow_gaps: allowGaps, model });
}

function given(members: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(members).filter(([, value]) => value !== undefined));
}

function written(value: unknown): string {
  try {
    return JSON.stringify(value, (_, member: unknown) => {
      // It would be written as null.
      if (typeof member === "number" && !Number.isFinite(member)) throw new TypeError(`${member} is no number in JSON`);
      return member;
    });
  } catch (error) {
    throw new NotSent(`the request cannot be written: ${String(error)}`);
  }
}
