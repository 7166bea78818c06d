// What is sent, how often and after which waits, and what a caller is told.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { test } from "node:test";

import { Client, Operation, VERSION, chat, parseCapture, parseFile, parseText, systemClock } from "../dist/index.js";
import { CUT, ManualClock, SILENCE, answer, chatAnswer, event, problem, reply, scripted, stream } from "./scripted.mjs";

function scene(replies, options = {}) {
  const clock = new ManualClock();
  const { fetch, sent } = scripted(clock, ...replies);
  const [kept, repeats] = [new Map(), []];
  const journal = { begun: async (key, operation) => void kept.set(key, operation), ended: (key) => void kept.delete(key) };
  const onRepeat = (repeat) => repeats.push(repeat);
  const client = new Client("http://h/base/", { apiKey: "ok_x", clock, fetch, journal, onRepeat, ...options });
  const operation = client.begin(chat("c1", "hello", { metadata: { screen: "kitchen" } }));
  return { client, clock, sent, kept, repeats, operation, send: () => client.send(operation) };
}

async function all(events) {
  const heard = [];
  for await (const one of events) heard.push(one);
  return heard;
}

test("the same bytes and key go out until there is an answer", async () => {
  const { send, sent, clock, repeats, operation } = scene([
    CUT,
    reply(200, ['{"requ', CUT]),
    answer("Yes.", { "idempotency-replayed": "true", "x-request-id": "r9" }),
  ]);
  const told = await send();
  assert.deepEqual(told, {
    answer: chatAnswer("Yes."),
    body: JSON.stringify(chatAnswer("Yes.")),
    key: operation.key,
    replayed: true,
    requestId: "r9",
    attempts: 3,
  });
  assert.deepEqual(clock.slept, [1_000, 3_000]);
  assert.deepEqual(repeats.map(({ attempt, status }) => [attempt, status]), [[2, undefined], [3, undefined]]);
  const texts = sent.map(({ body }) => new TextDecoder().decode(body).split(',"metadata":'));
  assert.equal(new Set(texts.map(([frozen]) => frozen)).size, 1);
  texts.forEach(([, metadata], at) => {
    const { attempt, screen, sent_at, ...more } = JSON.parse(metadata.slice(0, -1));
    assert.deepEqual([attempt, screen, more], [at + 1, "kitchen", {}]);
    assert.match(sent_at, /Z$/);
  });
  for (const { method, path, headers, redirect } of sent) {
    assert.deepEqual([method, path, redirect], ["POST", "/base/v1/chat", "manual"]);
    assert.equal(headers["idempotency-key"], operation.key);
    assert.equal(headers.authorization, "Bearer ok_x");
  }
});

test("a 409 is waited out and is no repeat", async () => {
  const busy = Array.from({ length: 5 }, () => problem(409, "in_progress", { retry_after_ms: 500 }));
  const { send, clock } = scene([...busy, reply(503, "<html>", { "retry-after": "7" }), answer()]);
  assert.equal((await send()).attempts, 7);
  assert.deepEqual(clock.slept, [500, 500, 500, 500, 500, 7_000]);
});

test("what a repeat cannot help is sent once", async () => {
  for (const [status, kind] of [[400, "your_input"], [422, "your_input"], [429, "your_input"], [500, "our_side"], [501, "our_side"], [307, "our_side"]]) {
    const { send, kept, operation } = scene([problem(status, "x", { retry_after_ms: 10 })]);
    await assert.rejects(send(), (error) => {
      const { problem: told, attempts, key } = error;
      assert.deepEqual([error.kind, told.status, attempts, key], [kind, status, 1, operation.key]);
      assert.equal(error.mayBeAskedAgain, kind === "our_side" || status === 429);
      assert.equal(kept.size, error.mayBeAskedAgain ? 1 : 0, "kept while it helps");
      return true;
    });
  }
});

test("a way that leads nowhere ends after two repeats", async () => {
  const { send, kept, operation } = scene([CUT, CUT, CUT]);
  await assert.rejects(send(), { name: "ConnectionLost", attempts: 3, reason: "connection reset" });
  assert.deepEqual([...kept.keys()], [operation.key]);
});

test("the own time-out is not sent again", async () => {
  const { send, repeats, clock } = scene([SILENCE], { timeout: 1_600_000 });
  await assert.rejects(send(), { name: "TimeoutPassed", attempts: 1, after: 1_600_000 });
  assert.deepEqual(clock.alarms.map(({ millis }) => millis), [1_600_000]);
  assert.deepEqual(repeats, []);
});

test("an answer that is none is our side", async () => {
  for (const body of ["", "[]", "{}", '{"message": {}}', "<html>"]) {
    await assert.rejects(scene([reply(200, body)]).send(), { kind: "our_side" });
  }
  await assert.rejects(scene([reply(204)]).send(), { kind: "our_side" });
});

test("an app that was killed goes on with what it kept", async () => {
  const first = scene([SILENCE], { timeout: 5 });
  await assert.rejects(first.send(), { kind: "timed_out" });
  const operation = Operation.fromKept(first.kept.get(first.operation.key), "chat");
  assert.deepEqual([operation.key, operation.endpoint, operation.resumed], [first.operation.key, "chat", true]);
  const next = scene([answer()]);
  next.kept.set(operation.key, "as the first left it");
  assert.equal((await next.client.send(operation)).answer.message.content, "Yes.");
  assert.equal(JSON.parse(new TextDecoder().decode(next.sent[0].body)).metadata.resumed, true);
  assert.equal(next.kept.size, 0);
  assert.throws(() => Operation.fromKept(operation.kept(), "parse"), { name: "NotSent" });
});

test("what cannot be kept is not sent", async () => {
  const journal = { begun: () => Promise.reject(new Error("no room")), ended: () => assert.fail("it did not begin") };
  const { send, client, operation, sent } = scene([], { journal });
  await assert.rejects(send(), { name: "NotSent", reason: "it could not be kept: no room" });
  const events = client.stream(operation);
  await assert.rejects(events.next(), { name: "NotSent" });
  assert.deepEqual(await events.next(), { done: true, value: undefined });
  assert.deepEqual(sent, []);
});

test("what cannot be sent is said at once", () => {
  for (const server of ["h", "ftp://h", "http://"]) assert.throws(() => new Client(server), { name: "NotSent" });
  assert.throws(() => new Client("http://h", { apiKey: "a\nb" }), { name: "NotSent" });
  assert.throws(() => new Client("http://h", { endUser: "\ud800" }), { name: "NotSent" });
  for (const server of ["ok_secret", "ftp://me:secret@h", "http://me:secret@h:x"]) {
    assert.throws(() => new Client(server), ({ message }) => !message.includes("secret"));
  }
  const { client } = scene([]);
  assert.throws(() => client.begin(chat("c", "m"), "a b"), { name: "NotSent" });
  assert.throws(() => client.begin(chat("c", "m", { temperature: NaN })), { name: "NotSent" });
  assert.throws(() => client.begin(chat("c", "m", { metadata: { a: 1n } })), { name: "NotSent" });
});

test("keys are of version 7 and of their time", () => {
  const { client, clock } = scene([]);
  const keys = Array.from({ length: 100 }, () => client.begin(chat("c", "m")).key);
  assert.equal(new Set(keys).size, 100);
  for (const key of keys) {
    assert.match(key, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
    assert.equal(parseInt(key.replaceAll("-", "").slice(0, 12), 16), clock.time);
  }
  assert.equal(systemClock.randomBytes(10).length, 10);
});

test("what a request means", () => {
  const { client } = scene([]);
  const kept = (request) => JSON.parse(client.begin(request).kept());
  const options = { temperature: 0.5, max_tokens: 9 };
  const full = kept(chat("c", "m", { model: "x", temperature: 0.5, maxTokens: 9 }));
  assert.deepEqual(JSON.parse(full.json), { conversation_id: "c", message: "m", model: "x", options });
  const bytes = Uint8Array.from([0, 255]);
  const file = kept(parseFile(bytes, { profile: "a&b", allowGaps: true }));
  assert.deepEqual([file.query, file.file_base64], ["profile=a%26b&allow_gaps=true", "AP8="]);
  const large = Uint8Array.from({ length: 100_001 }, (_, at) => at % 256);
  assert.equal(kept(parseFile(large)).file_base64, Buffer.from(large).toString("base64"));
  const text = JSON.parse(kept(parseText("x", { allowGaps: false })).json);
  assert.deepEqual(text, { text: "x", allow_gaps: false });
  assert.deepEqual(JSON.parse(kept(parseCapture("id")).json), { capture_id: "id" });
});

test("a record is read and a run cancelled", async () => {
  const record = { operation_id: "o", request_id: "r", state: "failed", endpoint: "chat", attempts: 1 };
  const told = reply(200, JSON.stringify(record));
  const { client, sent } = scene([told, CUT, told, problem(404, "not_found")]);
  assert.equal((await client.record("a/b")).state, "failed");
  assert.equal((await client.cancel('"A1"')).attempts, 1);
  await assert.rejects(client.record("k"), { kind: "your_input" });
  const cancel = ["POST", "/base/v1/requests/A1/cancel"];
  const expected = [["GET", "/base/v1/requests/a%2Fb"], cancel, cancel, ["GET", "/base/v1/requests/k"]];
  assert.deepEqual(sent.map(({ method, path }) => [method, path]), expected);
});

test("a caller's signal ends the waiting, and nothing else", async () => {
  const { client, operation, kept } = scene([SILENCE, CUT]);
  const already = AbortSignal.abort(new Error("no longer wanted"));
  await assert.rejects(client.send(operation, { signal: already }), { message: "no longer wanted" });
  await assert.rejects(client.stream(operation, { signal: already }).next(), { message: "no longer wanted" });
  assert.equal(kept.size, 1);
  const caller = new AbortController();
  const onRepeat = () => caller.abort(new Error("enough"));
  const waiting = scene([CUT, answer()], { onRepeat });
  await assert.rejects(waiting.client.send(waiting.operation, { signal: caller.signal }), { message: "enough" });
  assert.equal(waiting.sent.length, 1);
});

test("a stream that is cut goes on behind its last event", async () => {
  const { client, clock, sent, kept, operation } = scene([
    stream(event("started", { request_id: "r1" }, "1-1") + event("delta", { text: "a" }, "1-2"), CUT),
    stream(event("delta", { text: "b" }, "1-3"), CUT),
    stream(event("delta", { text: "c" }, "1-4")),
    CUT,
    stream(event("completed", chatAnswer("abc"), "1-5")),
  ]);
  const events = await all(client.stream(operation));
  const { reply: told } = events.pop();
  const deltas = [..."abc"].map((text) => ({ type: "delta", text }));
  assert.deepEqual(events, [{ type: "started", requestId: "r1" }, ...deltas]);
  assert.deepEqual([told.answer.message.content, told.attempts], ["abc", 1]);
  assert.deepEqual(clock.slept, [1_000, 1_000, 1_000, 3_000], "anew with every event that brings something");
  const asked = sent.map(({ method, headers }) => [method, headers["last-event-id"]]);
  assert.deepEqual(asked, [["POST", undefined], ["GET", "1-2"], ["GET", "1-3"], ["GET", "1-4"], ["GET", "1-4"]]);
  assert.equal(kept.size, 0);
});

test("a caller who leaves between two events hears no more", async () => {
  const caller = new AbortController();
  const two = event("delta", { text: "a" }) + event("delta", { text: "b" });
  const { client, operation, kept } = scene([stream(two, SILENCE)]);
  const events = client.stream(operation, { signal: caller.signal });
  assert.equal((await events.next()).value.text, "a");
  caller.abort(new Error("enough"));
  await assert.rejects(events.next(), { message: "enough" });
  assert.equal((await events.next()).done, true);
  assert.equal(kept.size, 1);
});

test("a kind of answer may be written in any case", async () => {
  const head = { "content-type": "Text/Event-Stream; charset=UTF-8" };
  const { client, operation } = scene([reply(200, event("completed", chatAnswer("Yes.")), head)]);
  const [told] = await all(client.stream(operation));
  assert.equal(told.reply.answer.message.content, "Yes.");
});

test("an answer of broken bytes is none", async () => {
  const bytes = Buffer.from(JSON.stringify(chatAnswer("Yés.")), "latin1");
  const { send, kept } = scene([reply(200, bytes)]);
  await assert.rejects(send(), { kind: "our_side", attempts: 1 });
  assert.equal(kept.size, 1);
});

test("a failure that calls itself a success is our side", async () => {
  const { client, sent, kept, operation } = scene([stream(event("failed", { status: 200, error: "x" }))]);
  await assert.rejects(all(client.stream(operation)), { kind: "our_side", attempts: 1 });
  assert.deepEqual([sent.length, kept.size], [1, 1]);
});

test("an answer is an answer also where the journal cannot let go", async () => {
  const ended = () => Promise.reject(new Error("read-only"));
  const journal = { begun: () => {}, ended };
  const sending = scene([answer()], { journal });
  assert.equal((await sending.send()).answer.message.content, "Yes.");
  const streaming = scene([answer()], { journal });
  const [told] = await all(streaming.client.stream(streaming.operation));
  assert.equal(told.reply.answer.message.content, "Yes.");
});

test("a time that is longer than a timer's does not ring at once", async () => {
  const leaving = new AbortController();
  let over = false;
  const sleeping = systemClock.sleep(Infinity, leaving.signal).then(() => (over = true));
  // What would have rung at once has rung by the second of these.
  for (let turn = 0; turn < 2; turn += 1) await systemClock.sleep(20);
  assert.equal(over, false);
  leaving.abort();
  await sleeping;
});

test("a run that failed is asked for anew", async () => {
  const failed = { status: 502, error: "provider_failed", retryable: true };
  const { client, sent, operation } = scene([
    stream(event("started", { request_id: "r1" }, "1-1"), event("delta", { text: "a" }, "1-2"), event("failed", failed, "1-3")),
    stream(event("restarted", { request_id: "r2" }), event("started", { request_id: "r2" }, "2-1"), event("completed", chatAnswer("x"), "2-3")),
  ]);
  const events = await all(client.stream(operation));
  assert.deepEqual(events.slice(2, 4), [{ type: "restarted" }, { type: "started", requestId: "r2" }]);
  assert.equal(events.at(-1).reply.attempts, 2);
  assert.deepEqual(sent.map(({ method }) => method), ["POST", "POST"]);
});

test("a way that fell silent is left, and the own time-out ends", async () => {
  const silent = stream(event("started", { request_id: "r1" }, "1-1"), SILENCE);
  const { client, sent, operation } = scene([silent, problem(410, "erased"), problem(410, "erased")]);
  await assert.rejects(all(client.stream(operation)), { kind: "your_input" });
  assert.deepEqual(sent.map(({ method }) => method), ["POST", "GET", "POST"]);
  const short = scene([stream(SILENCE)], { timeout: 30_000 });
  await assert.rejects(all(short.client.stream(short.operation)), { kind: "timed_out" });
});

test("a refusal before the stream, and an answer instead of it", async () => {
  const { client, operation } = scene([problem(409, "in_progress", { retry_after_ms: 500 }), answer()]);
  const [completed, ...more] = await all(client.stream(operation));
  assert.deepEqual([completed.reply.answer.message.content, more], ["Yes.", []]);
});

test("whoever attaches hears a run without its body, and cannot make it begin again", async () => {
  const { client, sent } = scene([
    problem(503, "slot_timeout", { retry_after_ms: 10 }),
    stream(event("started", { request_id: "r1" }, "1-1"), event("completed", chatAnswer("x"), "1-2")),
    stream(event("failed", { status: 502, error: "provider_failed", retryable: true }, "1-1")),
    problem(503, "slot_timeout", { retry_after_ms: 10 }),
    reply(204),
    problem(404, "not_found"),
  ]);
  const [started, completed] = await all(client.attach("K", "chat"));
  assert.deepEqual([started.requestId, completed.reply.answer.message.content], ["r1", "x"]);
  await assert.rejects(all(client.attach("K", "parse")), (error) => error.problem.error === "provider_failed");
  await assert.rejects(all(client.attach("K", "chat")), { kind: "your_input" });
  for (const { method, path } of sent) assert.deepEqual([method, path], ["GET", "/base/v1/requests/K/events"]);
});

test("a stream that is left says nothing more", async () => {
  const text = event("started", { request_id: "r1" }, "1-1") + event("delta", { text: "a" }, "1-2");
  const { client, operation, kept } = scene([stream(text)]);
  const events = client.stream(operation);
  for await (const _ of events) break;
  assert.deepEqual(await events.next(), { done: true, value: undefined });
  assert.equal(kept.size, 1, "it runs on");
});

test("over real sockets: nobody there, an answer that breaks off, and time that runs out", async () => {
  let connections = 0;
  const server = createServer((socket) => {
    socket.on("error", () => {});
    connections += 1;
    // Closed as soon as it is there, as by something whose servers are being replaced.
    if (connections <= 10) return socket.destroy();
    socket.once("data", (head) => {
      if (String(head).includes("/hold")) return;
      if (String(head).includes("/odd")) return socket.end("HTTP/1.1 700 Odd\r\ncontent-length: 0\r\n\r\n");
      if (String(head).includes("/none")) return socket.end("HTTP/1.1 204 No Content\r\n\r\n");
      const whole = String(head).includes("/chunked");
      socket.end(
        whole
          ? "HTTP/1.1 422 No\r\ntransfer-encoding: chunked\r\nx-request-id: r7\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
          : "HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nabc",
      );
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${server.address().port}`;
  const never = { retry: { waits: [] } };
  const send = (server_, options) => {
    const client = new Client(server_, { ...never, ...options });
    return client.send(client.begin(chat("c1", "hello")));
  };
  await assert.rejects(send(url, { retry: { waits: Array(9).fill(0) } }), { kind: "connection_lost", attempts: 10 });
  await assert.rejects(send(url), { kind: "connection_lost", attempts: 1 });
  await assert.rejects(send(`${url}/none`), (error) => error.kind === "our_side" && error.problem.status === 204);
  await assert.rejects(send(`${url}/odd`), { kind: "our_side", attempts: 1 });
  const refused = (error) => error.kind === "your_input" && error.problem.requestId === "r7";
  await assert.rejects(send(`${url}/chunked`), refused);
  await assert.rejects(send(`${url}/hold`, { timeout: 200 }), { kind: "timed_out" });
  server.close();
  await assert.rejects(send("http://127.0.0.1:1"), { kind: "connection_lost" });
});

test("the version is the package's", () => {
  assert.equal(JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8")).version, VERSION);
});
