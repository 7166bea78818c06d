"""The table that all client libraries share."""

import base64
import json
import unittest
from datetime import datetime
from pathlib import Path
from urllib.parse import parse_qsl

import oncekey
from oncekey._errors import NotSent, OurSide
from oncekey._events import Decoder
from oncekey._operation import Operation, checked_key
from oncekey._problem import read_problem
from oncekey._stream import EventStream, _Stopped

TABLE = json.loads((Path(__file__).parents[2] / "vectors.json").read_text("utf-8"))
POLICY = oncekey.RetryPolicy(
    waits=tuple(wait / 1000 for wait in TABLE["policy"]["waits"]),
    jitter=TABLE["policy"]["jitter"],
    longest_wait=TABLE["policy"]["longest_wait"] / 1000,
)


def seconds(text):
    return datetime.fromisoformat(text.replace(".5Z", ".500Z").replace("Z", "+00:00")).timestamp()


def situation(vector):
    if vector.get("lost"):
        return oncekey.Lost()
    if vector.get("timed_out"):
        return oncekey.TimedOut()
    body = vector.get("body", {})
    now = seconds(vector.get("now", "1970-01-01T00:00:00Z"))
    ms = body.get("retry_after_ms")
    wait = oncekey.told_wait(None if ms is None else ms / 1000, vector.get("retry_after"), now)
    return oncekey.Answered(vector["status"], wait, body.get("retryable"))


def decided(vector):
    left = vector.get("left", TABLE["policy"]["timeout"]) / 1000
    chance = vector.get("chance", 0)
    decision = oncekey.decide(POLICY, situation(vector), vector.get("repeats", 0), left, chance)
    if isinstance(decision, oncekey.Again):
        return {"again": round(decision.after * 1000, 6), "counts": decision.counts}
    if isinstance(decision, oncekey.Stop):
        return {"stop": decision.ending.value}
    return "done"


class Vectors(unittest.TestCase):
    def each(self, section):
        rows = TABLE[section]
        self.assertGreater(len(rows), 3)
        for row in rows:
            with self.subTest(row["name"] if "name" in row else row):
                yield row

    def test_the_policy_is_the_default(self):
        self.assertEqual(POLICY, oncekey.RetryPolicy())
        self.assertEqual(TABLE["policy"]["timeout"] / 1000, oncekey.DEFAULT_TIMEOUT)

    def test_decisions(self):
        for vector in self.each("vectors"):
            self.assertEqual(decided(vector), vector["expect"])

    def test_keys(self):
        for row in self.each("keys"):
            if "sent" in row:
                self.assertEqual(checked_key(row["text"]), row["sent"])
            else:
                self.assertRaises(NotSent, checked_key, row["text"])

    def test_sendings(self):
        for row in self.each("sendings"):
            kept = json.dumps(row["kept"])
            operation = Operation.from_kept(kept)
            again = json.loads(operation.kept())
            self.assertEqual(again, {"metadata": {}, **row["kept"]}, "kept as it was")
            sending = operation._sending(row["attempt"], seconds(row["sent_at"]))
            self.assertEqual(f"/v1/{operation.endpoint}", row["path"])
            self.assertEqual(sending.content_type, row["content_type"])
            if "begins" in row:
                self.assertEqual(sending.query, "")
                text = sending.body.decode()
                self.assertTrue(text.startswith(row["begins"]), text)
                metadata = json.loads(text)["metadata"]
            else:
                self.assertEqual(sending.body, base64.b64decode(row["file_base64"]))
                options = dict(parse_qsl(sending.query, strict_parsing=True))
                metadata = json.loads(options.pop("metadata"))
                self.assertEqual(options, row["options"])
            self.assertEqual(metadata, row["metadata"])

    def test_what_is_no_kept_operation_is_not_sent(self):
        for text in self.each("not_kept"):
            self.assertRaises(NotSent, Operation.from_kept, text)

    def test_problems(self):
        for row in self.each("problems"):
            problem = read_problem(row.get("status"), row["body"].encode())
            self.assertEqual(problem.status, row.get("told", row.get("status")))
            for name in ("error", "detail", "reason", "request_id", "retryable"):
                self.assertEqual(getattr(problem, name), row.get(name), name)
            millis = row.get("retry_after_ms")
            self.assertEqual(problem.retry_after, None if millis is None else millis / 1000)
            self.assertEqual(str(problem), row["said"])

    def test_events_however_they_are_cut(self):
        for row in self.each("events"):
            whole = row["text"].encode()
            expected = [(event.get("id"), event["event"], event["data"]) for event in row["events"]]
            for size in (1, 2, 3, 7, len(whole)):
                decoder = Decoder(1000)
                events = []
                for at in range(0, len(whole), size):
                    events += decoder.take(whole[at : at + size])
                self.assertEqual([(event.id, event.name, event.data) for event in events], expected, size)

    def test_streams(self):
        for row in self.each("streams"):
            self.assertEqual(told(row["events"]), row["told"])


class Head:
    status = 200

    def header(self, name):
        return None

    def close(self):
        pass


def told(events):
    client = oncekey.Client("http://127.0.0.1:1", "ok_x")
    stream = EventStream(client, "chat", "k", client.begin(oncekey.ChatRequest("c1", "hello")))
    stream._response = Head()
    end = []
    text = "".join(f"event: {event['event']}\ndata: {event['data']}\n\n" for event in events)
    for event in Decoder(10_000).take(text.encode()):
        try:
            stream._take(event)
        except OurSide:
            end = [{"unreadable": True}]
        except _Stopped as stopped:
            problem = stopped.setback.problem
            end = [{"failed": problem.status} if stopped.setback.readable else {"unreadable": True}]
    return [plain(event) for event in stream._ready] + end


def plain(event):
    if isinstance(event, oncekey.Started):
        return {"started": event.request_id}
    if isinstance(event, oncekey.Delta):
        return {"delta": event.text}
    if isinstance(event, oncekey.Progress):
        return {"progress": [event.done, event.chunks]}
    if isinstance(event, oncekey.Completed):
        return {"completed": event.reply.answer.message.content}
    return {"restarted": True}


if __name__ == "__main__":
    unittest.main()
