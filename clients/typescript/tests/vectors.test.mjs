// The table that all client libraries share.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { DEFAULT_RETRY, DEFAULT_TIMEOUT, Operation, decide, problemText, toldWait, chat, Client } from "../dist/index.js";
import { Decoder } from "../dist/events.js";
import { checkedKey } from "../dist/operation.js";
import { readProblem } from "../dist/problem.js";
import { ManualClock, CUT, scripted, stream } from "./scripted.mjs";

const TABLE = JSON.parse(readFileSync(new URL("../../vectors.json", import.meta.url), "utf8"));
const { waits, jitter, longest_wait: longestWait, timeout } = TABLE.policy;
const POLICY = { waits, jitter, longestWait };
const NOT_SENT = { name: "NotSent" };

/** A test for each row of a section. */
function each(section, check) {
  test(section, async () => {
    assert.ok(TABLE[section].length > 3);
    for (const row of TABLE[section]) {
      try {
        await check(row);
      } catch (error) {
        error.message = `${row.name ?? JSON.stringify(row)}: ${error.message}`;
        throw error;
      }
    }
  });
}

test("the table's policy is the default", () => {
  assert.deepEqual(POLICY, DEFAULT_RETRY);
  assert.equal(timeout, DEFAULT_TIMEOUT);
});

function situation({ lost, timed_out, status, body = {}, retry_after, now = "1970-01-01T00:00:00Z" }) {
  if (lost) return { kind: "lost" };
  if (timed_out) return { kind: "timed_out" };
  const wait = toldWait(body.retry_after_ms, retry_after, Date.parse(now));
  return { kind: "answered", status, wait, retryable: body.retryable };
}

each("vectors", (row) => {
  const { repeats = 0, left = timeout, chance = 0 } = row;
  const decision = decide(POLICY, situation(row), repeats, left, chance);
  const { kind, after, counts, ending } = decision;
  const told = { done: "done", again: { again: after, counts }, stop: { stop: ending } }[kind];
  assert.deepEqual(told, row.expect);
});

each("keys", ({ text, sent }) => {
  if (sent === undefined) assert.throws(() => checkedKey(text), NOT_SENT);
  else assert.equal(checkedKey(text), sent);
});

each("sendings", (row) => {
  const operation = Operation.fromKept(JSON.stringify(row.kept));
  assert.deepEqual(JSON.parse(operation.kept()), { metadata: {}, ...row.kept }, "kept as it was");
  const { contentType, query, body } = operation.sending(row.attempt, Date.parse(row.sent_at));
  assert.equal(`/v1/${operation.endpoint}`, row.path);
  assert.equal(contentType, row.content_type);
  let metadata;
  if (row.begins !== undefined) {
    const text = new TextDecoder().decode(body);
    assert.equal(query, "");
    assert.ok(text.startsWith(row.begins), text);
    ({ metadata } = JSON.parse(text));
  } else {
    assert.equal(Buffer.from(body).toString("base64"), row.file_base64);
    const { metadata: told, ...options } = Object.fromEntries(new URLSearchParams(query));
    metadata = JSON.parse(told);
    assert.deepEqual(options, row.options);
  }
  assert.deepEqual(metadata, row.metadata);
});

each("not_kept", (text) => {
  assert.throws(() => Operation.fromKept(text), NOT_SENT);
});

each("problems", (row) => {
  const problem = readProblem(row.status, row.body);
  const { error, detail, reason, request_id: requestId, retryable, retry_after_ms: retryAfter } = row;
  const expected = { status: row.told ?? row.status, error, detail, reason, requestId, retryable, retryAfter };
  for (const [name, value] of Object.entries(expected)) assert.deepEqual(problem[name], value, name);
  assert.equal(problemText(problem), row.said);
});

each("events", ({ text, events }) => {
  const whole = new TextEncoder().encode(text);
  for (const size of [1, 2, 3, 7, whole.length]) {
    const decoder = new Decoder(1_000);
    const heard = [];
    for (let at = 0; at < whole.length; at += size) heard.push(...decoder.take(whole.slice(at, at + size)));
    const told = heard.map(({ id, name, data }) => ({ ...(id !== undefined && { id }), event: name, data }));
    assert.deepEqual(told, events, `in pieces of ${size}`);
  }
});

each("streams", async ({ events, told }) => {
  const clock = new ManualClock();
  const text = events.map(({ event, data }) => `event: ${event}\ndata: ${data}\n\n`).join("");
  const { fetch } = scripted(clock, stream(text), CUT);
  const client = new Client("http://h", { clock, fetch, retry: { waits: [] } });
  const heard = [];
  try {
    for await (const event of client.stream(client.begin(chat("c1", "hello")))) heard.push(plain(event));
  } catch (error) {
    if (error.kind === "our_side") heard.push(error.problem.error ? { failed: error.problem.status } : { unreadable: true });
    else assert.equal(error.kind, "connection_lost");
  }
  assert.deepEqual(heard, told);
});

function plain(event) {
  switch (event.type) {
    case "started":
      return { started: event.requestId };
    case "delta":
      return { delta: event.text };
    case "progress":
      return { progress: [event.done, event.chunks] };
    case "restarted":
      return { restarted: true };
    case "completed":
      return { completed: event.reply.answer.message.content };
  }
}
