/** What comes back, in the server's own words. */

import { isObject, parsed } from "./problem.js";

/** An answer, and how it came. */
export interface Reply<A> {
  answer: A;
  /** As it came: byte for byte the same at every replay. */
  body: string;
  key: string;
  /** Whether it was there already when it was asked for. */
  replayed: boolean;
  /** Of this arrival at the server (`X-Request-Id`); that of the run stands in the answer. */
  requestId?: string;
  /** How often the request was sent for it. */
  attempts: number;
}

/** Tokens; `null` is what the provider did not tell. */
export interface Usage {
  input_tokens: number | null;
  output_tokens: number | null;
  cache_read_tokens: number | null;
  cache_write_tokens: number | null;
}

export interface ChatMessage {
  role: string;
  content: string;
}

/** The answer to a chat. */
export interface ChatAnswer {
  /** Of the run that produced it. */
  request_id: string;
  conversation_id: string;
  turn_id: string;
  message: ChatMessage;
  model: string;
  /** `end`, or `max_tokens` where the answer was cut. */
  stop_reason: string;
  usage: Usage;
}

/** A piece of the text that could not be parsed. */
export interface Gap {
  /** From 0. */
  chunk: number;
  /** In characters of the text that was read. */
  from: number;
  to: number;
  reason: string;
}

/** The answer to a parse. */
export interface ParseAnswer {
  /** Of the run that produced it. */
  request_id: string;
  /** In the form of the profile; of `script`: `title`, `characters`, `dialogue`. */
  result: any;
  /** What is missing, where that was allowed. */
  gaps: Gap[];
  usage: Usage;
}

/** What became of an operation. */
export interface RecordAnswer {
  /** Of a parse, this is also the name of its stored input. */
  operation_id: string;
  request_id: string;
  state: "in_progress" | "committed" | "failed";
  endpoint: string;
  attempts: number;
  key_source: string;
  claimed_at: string;
  completed_at: string | null;
  failure?: { kind: string; error: string; final: boolean };
}

/** What each endpoint answers. */
export interface Answers {
  chat: ChatAnswer;
  parse: ParseAnswer;
}

export type Endpoint = keyof Answers;

/** The members that an answer must have, each of its kind; others are a later server's. */
const FORMS: Record<Endpoint | "record", Record<string, (value: unknown) => boolean>> = {
  chat: {
    request_id: isText,
    conversation_id: isText,
    turn_id: isText,
    message: (value) => isObject(value) && isText(value["role"]) && isText(value["content"]),
    model: isText,
    stop_reason: isText,
    usage: isUsage,
  },
  parse: {
    request_id: isText,
    result: (value) => value !== undefined,
    gaps: (value) => Array.isArray(value) && value.every(isGap),
    usage: isUsage,
  },
  record: { operation_id: isText, request_id: isText, state: isText, endpoint: isText, attempts: Number.isInteger },
};

/** The answer that a body holds; `undefined` where it is another's. */
export function readAnswer(endpoint: Endpoint | "record", body: string): unknown {
  const wire = parsed(body);
  if (!isObject(wire)) return undefined;
  const fits = Object.entries(FORMS[endpoint]).every(([name, is]) => is(wire[name]));
  return fits ? wire : undefined;
}

function isText(value: unknown): boolean {
  return typeof value === "string";
}

function isGap(value: unknown): boolean {
  const numbers = ["chunk", "from", "to"] as const;
  return isObject(value) && numbers.every((name) => Number.isInteger(value[name])) && isText(value["reason"]);
}

function isUsage(value: unknown): boolean {
  const names = ["input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"] as const;
  const told = (count: unknown): boolean => count === undefined || count === null || Number.isInteger(count);
  return isObject(value) && names.every((name) => told(value[name]));
}
