// One thing asked of a real server, for a test that breaks the way to it and looks into its database.
//
//   ONCEKEY_TEST_SERVER=… ONCEKEY_API_KEY=… node tests/against_server.mjs '{"do": "send", "chat": ["c1", "hello"]}'
//
// Says what it was told, a line of JSON each. Waits are short, so that the test need not wait,
// and many, so that a busy machine does not end them.

import { readFileSync, readdirSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";

import { Client, ClientError, Operation, chat, parseFile, parseText } from "../dist/index.js";

const { ONCEKEY_TEST_SERVER: server, ONCEKEY_API_KEY: apiKey, ONCEKEY_TEST_JOURNAL: folder } = process.env;
const ask = JSON.parse(process.argv[2]);

const say = (told) => writeSync(1, `${JSON.stringify(told)}\n`);

const journal = folder && {
  begun: (key, operation) => writeFileSync(join(folder, key), operation, { flush: true }),
  ended: (key) => rmSync(join(folder, key), { force: true }),
};

const client = new Client(server, {
  apiKey,
  retry: { waits: Array(400).fill(50), jitter: 0, longestWait: 1_000 },
  onRepeat: ({ attempt, status = null }) => say({ repeat: { attempt, status } }),
  ...(journal && { journal }),
});

function operation() {
  if (ask.do === "resume") {
    const [kept, ...more] = readdirSync(folder);
    if (more.length > 0) throw new Error("more than one is left");
    return Operation.fromKept(readFileSync(join(folder, kept), "utf8"));
  }
  const metadata = ask.metadata ?? {};
  const options = { metadata, allowGaps: true };
  if (ask.file !== undefined) return client.begin(parseFile(readFileSync(ask.file), options), ask.key);
  if (ask.text !== undefined) return client.begin(parseText(ask.text, options), ask.key);
  return client.begin(chat(...ask.chat, { metadata }), ask.key);
}

function sayReply({ answer, body, key, replayed, requestId, attempts }) {
  say({ reply: { answer, body, key, replayed, request_id: requestId ?? null, attempts } });
}

async function hear(events) {
  for await (const { type, reply, requestId, text, done, chunks } of events) {
    if (type === "started") say({ started: requestId });
    if (type === "delta") say({ delta: text });
    if (type === "progress") say({ progress: [done, chunks] });
    if (type === "restarted") say({ restarted: true });
    if (type === "completed") sayReply(reply);
  }
}

async function perform() {
  if (ask.do === "record" || ask.do === "cancel") {
    const { state, attempts, operation_id } = await client[ask.do](ask.key);
    return say({ record: { state, attempts, operation_id } });
  }
  if (ask.do === "attach") return hear(client.attach(ask.key, "chat"));
  const asked = operation();
  say({ began: asked.key });
  return ask.do === "stream" ? hear(client.stream(asked)) : sayReply(await client.send(asked));
}

try {
  await perform();
} catch (error) {
  if (!(error instanceof ClientError)) throw error;
  const { kind, attempts, problem, mayBeAskedAgain: again, message } = error;
  say({ error: { kind, attempts, again, status: problem?.status ?? null, error: problem?.error ?? null, message } });
}
