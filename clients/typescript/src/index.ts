/**
 * The client's half of the contract, for programs that call the service.
 *
 * The server makes one outcome of one key. Whether the client keeps to one key for one thing that its user did,
 * and knows when a repeat helps, is decided here: a key is minted once, before anything is sent, together with the
 * bytes of the body; both are sent again, unchanged, where a repeat helps, and nothing is where it does not.
 *
 * ```ts
 * const client = new Client("http://127.0.0.1:8080", { apiKey });
 * const operation = client.begin(chat("kitchen", "Is it boiling?"));
 * console.log((await client.send(operation)).answer.message.content);
 * ```
 *
 * Times are milliseconds.
 */

export type {
  Answers,
  ChatAnswer,
  ChatMessage,
  Endpoint,
  Gap,
  ParseAnswer,
  RecordAnswer,
  Reply,
  Usage,
} from "./answers.js";
export { Client, DEFAULT_SILENCE, DEFAULT_TIMEOUT } from "./client.js";
export type { CallOptions, ClientOptions } from "./client.js";
export { systemClock } from "./clock.js";
export type { Clock } from "./clock.js";
export { decide, toldWait } from "./decide.js";
export type { Decision, Ending, Situation } from "./decide.js";
export { ClientError, ConnectionLost, NotSent, OurSide, TimeoutPassed, YourInput } from "./errors.js";
export type { Journal } from "./journal.js";
export { Operation } from "./operation.js";
export type { Json } from "./operation.js";
export { DEFAULT_RETRY, NEVER } from "./policy.js";
export type { Repeat, RetryPolicy } from "./policy.js";
export { problemText } from "./problem.js";
export type { Problem } from "./problem.js";
export { chat, parseCapture, parseFile, parseText } from "./request.js";
export type { ChatOptions, ParseOptions, Request } from "./request.js";
export type { EventStream, StreamEvent } from "./stream.js";
export { VERSION } from "./version.js";
