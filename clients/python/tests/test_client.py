"""What is sent, how often and after which waits, and what a caller is told."""

import json
import tempfile
import threading
import traceback
import unittest
import uuid
from pathlib import Path

import oncekey
from oncekey import Broken, ChatRequest, Client, Elapsed, ParseRequest

from .scripted import ManualClock, Reply, Transport, answer, chat, event, problem, stream


class Journal:
    def __init__(self):
        self.kept = {}

    def begun(self, key, operation):
        self.kept[key] = operation

    def ended(self, key):
        self.kept.pop(key, None)


class Scene:
    def __init__(self, *replies, **settings):
        self.transport = Transport(*replies)
        self.clock = ManualClock()
        self.journal = Journal()
        self.repeats = []
        settings = {"journal": self.journal, "on_repeat": self.repeats.append, **settings}
        self.client = Client("http://h", "ok_x", clock=self.clock, transport=self.transport, **settings)
        self.operation = self.client.begin(ChatRequest("c1", "hello", metadata={"screen": "kitchen"}))

    def send(self):
        return self.client.send(self.operation)


class Sending(unittest.TestCase):
    def test_the_same_bytes_and_key_go_out_until_there_is_an_answer(self):
        scene = Scene(Broken("reset"), Reply(200, b'{"requ', Broken("reset")), answer(idempotency_replayed="true"))
        reply = scene.send()
        self.assertEqual((reply.answer.message.content, reply.replayed, reply.attempts), ("Yes.", True, 3))
        self.assertEqual(json.loads(reply.body), chat("Yes."))
        self.assertEqual(scene.clock.slept, [1.0, 3.0])
        self.assertEqual([(repeat.attempt, repeat.status) for repeat in scene.repeats], [(2, None), (3, None)])
        bodies, metadata = [], []
        for method, target, headers, body, _ in scene.transport.sent:
            self.assertEqual((method, target), ("POST", "/v1/chat"))
            self.assertEqual(headers["Idempotency-Key"], scene.operation.key)
            self.assertEqual(headers["Authorization"], "Bearer ok_x")
            frozen, _, rest = body.partition(b',"metadata":')
            bodies.append(frozen)
            metadata.append(json.loads(rest[:-1]))
        self.assertEqual(len(set(bodies)), 1)
        self.assertEqual([told["attempt"] for told in metadata], [1, 2, 3])
        self.assertTrue(all(told["screen"] == "kitchen" and "resumed" not in told for told in metadata))

    def test_a_409_is_waited_out_and_is_no_repeat(self):
        busy = [problem(409, "in_progress", retry_after_ms=500) for _ in range(5)]
        scene = Scene(*busy, Reply(503, b"<html>", retry_after="7"), answer())
        self.assertEqual(scene.send().attempts, 7)
        self.assertEqual(scene.clock.slept, [0.5] * 5 + [7.0])

    def test_what_a_repeat_cannot_help_is_sent_once(self):
        for status, kind in ((400, oncekey.YourInput), (422, oncekey.YourInput), (429, oncekey.YourInput),
                             (500, oncekey.OurSide), (501, oncekey.OurSide), (307, oncekey.OurSide)):
            with self.subTest(status):
                scene = Scene(problem(status, "x", retry_after_ms=10))
                with self.assertRaises(kind) as caught:
                    scene.send()
                error = caught.exception
                self.assertEqual((error.problem.status, error.attempts, error.key), (status, 1, scene.operation.key))
                may_come = kind is oncekey.OurSide or status == 429
                self.assertEqual(error.may_be_asked_again, may_come)
                self.assertEqual(len(scene.journal.kept), int(may_come), "kept while it helps")

    def test_a_way_that_leads_nowhere_ends_after_two_repeats(self):
        scene = Scene(Broken("refused"), Broken("refused"), Broken("refused"))
        with self.assertRaises(oncekey.ConnectionLost) as caught:
            scene.send()
        self.assertEqual((caught.exception.attempts, caught.exception.cause), (3, "refused"))
        self.assertIn("sent 3 times", str(caught.exception))
        self.assertEqual(list(scene.journal.kept), [scene.operation.key])

    def test_the_own_time_out_is_not_sent_again(self):
        scene = Scene(Elapsed(), timeout=1600)
        with self.assertRaises(oncekey.TimeoutPassed) as caught:
            scene.send()
        self.assertEqual((caught.exception.after, caught.exception.attempts), (1600, 1))
        self.assertEqual(scene.transport.sent[0][4], 1600)
        self.assertEqual(scene.repeats, [])

    def test_an_answer_that_is_none_is_our_side(self):
        for body in (b"", b"[]", b"{}", b'{"message": {}}', b"<html>"):
            with self.subTest(body):
                self.assertRaises(oncekey.OurSide, Scene(Reply(200, body)).send)

    def test_an_app_that_was_killed_goes_on_with_what_it_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            journal = oncekey.FolderJournal(folder)
            scene = Scene(KeyboardInterrupt(), journal=journal)
            scene.transport.send = interrupted
            self.assertRaises(KeyboardInterrupt, scene.send)
            (left,) = list(oncekey.FolderJournal(folder).left())
            self.assertEqual((left.key, left.endpoint, left.resumed), (scene.operation.key, "chat", True))
            again = Scene(answer(), journal=journal)
            self.assertEqual(again.client.send(left).answer.message.content, "Yes.")
            self.assertIn(b'"resumed":true', again.transport.sent[0][3])
            self.assertEqual(list(journal.left()), [])

    def test_what_cannot_be_kept_is_not_sent(self):
        class Full(Journal):
            def begun(self, key, operation):
                raise OSError("no room")

        scene = Scene(journal=Full())
        with self.assertRaisesRegex(oncekey.NotSent, "no room"):
            scene.send()
        events = scene.client.stream(scene.operation)
        self.assertRaises(oncekey.NotSent, next, events)
        self.assertRaises(StopIteration, next, events)
        self.assertEqual(scene.transport.sent, [])

    def test_a_file_that_is_not_whole_keeps_nothing_else_back(self):
        with tempfile.TemporaryDirectory() as folder:
            journal = oncekey.FolderJournal(folder)
            operation = Scene().operation
            Path(folder, "a.kept").write_bytes(operation.kept()[:20])
            Path(folder, "b.kept").symlink_to(Path(folder, "gone"))
            journal.begun(operation.key, operation.kept())
            with self.assertWarnsRegex(RuntimeWarning, "a.kept is left out"):
                left = list(journal.left())
            self.assertEqual([one.key for one in left], [operation.key])
            self.assertTrue(Path(folder, "a.kept").exists())

    def test_one_operation_may_be_kept_from_many_sides(self):
        with tempfile.TemporaryDirectory() as folder:
            journal = oncekey.FolderJournal(folder)
            operation = Scene().operation
            failed = []

            def keep():
                try:
                    for _ in range(50):
                        journal.begun(operation.key, operation.kept())
                except OSError as error:
                    failed.append(error)

            threads = [threading.Thread(target=keep) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(failed, [])
            self.assertEqual([path.name for path in Path(folder).iterdir()], [f"{operation.key}.kept"])
            self.assertEqual(next(Path(folder).iterdir()).stat().st_mode & 0o077, 0, "holds what a user said")

    def test_an_answer_is_an_answer_also_where_the_journal_cannot_let_go(self):
        class Stuck(Journal):
            def ended(self, key):
                raise OSError("read-only")

        for ask in (Scene.send, lambda scene: list(scene.client.stream(scene.operation))[-1].reply):
            with self.assertWarnsRegex(RuntimeWarning, "stays in the journal: read-only"):
                self.assertEqual(ask(Scene(answer(), journal=Stuck())).answer.message.content, "Yes.")

    def test_what_cannot_be_sent_is_said_at_once(self):
        for server in ("h:80", "ftp://h", "http://", "http://h:x"):
            self.assertRaises(oncekey.NotSent, Client, server, "ok_x")
        self.assertRaises(oncekey.NotSent, Client, "http://h", "a\nb")
        self.assertRaises(oncekey.NotSent, Client, "http://h", "ok_x", end_user="\ud800")
        for server in ("ok_secret", "ftp://me:secret@h", "http://me:secret@h:x"):
            with self.assertRaises(oncekey.NotSent) as caught:
                Client(server, "ok_x")
            self.assertNotIn("secret", "".join(traceback.format_exception_only(None, caught.exception)))
        scene = Scene()
        self.assertRaises(oncekey.NotSent, scene.client.begin, ChatRequest("c", "m"), "a b")
        for request in (ChatRequest("c", "m", temperature=float("nan")), ChatRequest("c", "m", metadata={"a": {1}}),
                        ParseRequest("x", "file")):
            self.assertRaises(oncekey.NotSent, scene.client.begin, request)

    def test_keys_are_version_7_and_of_their_time(self):
        scene = Scene()
        keys = [uuid.UUID(scene.client.begin(ChatRequest("c", "m")).key) for _ in range(100)]
        self.assertEqual(len(set(keys)), 100)
        for key in keys:
            self.assertEqual((key.version, key.variant), (7, uuid.RFC_4122))
            self.assertEqual(key.int >> 80, int(scene.clock.time * 1000))

    def test_what_a_request_means(self):
        client = Scene().client
        chat = json.loads(client.begin(ChatRequest("c", "m", model="x", temperature=0.5, max_tokens=9)).kept())
        self.assertEqual(json.loads(chat["json"]), {"conversation_id": "c", "message": "m", "model": "x",
                                                    "options": {"temperature": 0.5, "max_tokens": 9}})
        file = json.loads(client.begin(ParseRequest.of_file(b"\0\xff", profile="a&b", allow_gaps=True)).kept())
        self.assertEqual((file["query"], file["file_base64"]), ("profile=a%26b&allow_gaps=true", "AP8="))
        stored = json.loads(client.begin(ParseRequest.of_capture("id", allow_gaps=False)).kept())
        self.assertEqual(json.loads(stored["json"]), {"capture_id": "id", "allow_gaps": False})
        self.assertNotIn("hello", repr(Scene().operation), "what a user said is not for logs")

    def test_a_record_is_read_and_a_run_cancelled(self):
        record = {"operation_id": "o", "request_id": "r", "state": "failed", "endpoint": "chat", "attempts": 1}
        body = json.dumps(record).encode()
        scene = Scene(Reply(200, body), Broken("reset"), Reply(200, body), problem(404, "not_found"))
        self.assertEqual(scene.client.record("a/b").state, "failed")
        self.assertEqual(scene.client.cancel('"A1"').attempts, 1)
        self.assertRaises(oncekey.YourInput, scene.client.record, "k")
        sent = [(method, target) for method, target, *_ in scene.transport.sent]
        cancel = ("POST", "/v1/requests/A1/cancel")
        self.assertEqual(sent, [("GET", "/v1/requests/a%2Fb"), cancel, cancel, ("GET", "/v1/requests/k")])


def interrupted(*_):
    raise KeyboardInterrupt


class Streaming(unittest.TestCase):
    def test_a_stream_that_is_cut_goes_on_behind_its_last_event(self):
        cut = Broken("reset")
        scene = Scene(
            stream(event("started", {"request_id": "r1"}, "1-1") + event("delta", {"text": "a"}, "1-2"), cut),
            stream(event("delta", {"text": "b"}, "1-3"), cut),
            stream(event("delta", {"text": "c"}, "1-4")),
            Broken("refused"),
            stream(event("completed", chat("abc"), "1-5")),
        )
        events = list(scene.client.stream(scene.operation))
        self.assertEqual(events[:4], [oncekey.Started("r1")] + [oncekey.Delta(text) for text in "abc"])
        self.assertEqual((events[4].reply.answer.message.content, events[4].reply.attempts), ("abc", 1))
        self.assertEqual(scene.clock.slept, [1.0, 1.0, 1.0, 3.0], "anew with every event that brings something")
        sent = [(method, headers.get("Last-Event-ID")) for method, _, headers, *_ in scene.transport.sent]
        self.assertEqual(sent, [("POST", None), ("GET", "1-2"), ("GET", "1-3"), ("GET", "1-4"), ("GET", "1-4")])
        self.assertEqual(scene.journal.kept, {})

    def test_a_run_that_failed_is_asked_for_anew(self):
        failed = {"status": 502, "error": "provider_failed", "retryable": True}
        scene = Scene(
            stream(event("started", {"request_id": "r1"}, "1-1"), event("delta", {"text": "a"}, "1-2"),
                   event("failed", failed, "1-3")),
            stream(event("restarted", {"request_id": "r2"}), event("started", {"request_id": "r2"}, "2-1"),
                   event("delta", {"text": "x"}, "2-2"), event("completed", chat("x"), "2-3")),
        )
        events = list(scene.client.stream(scene.operation))
        self.assertEqual(events[2:4], [oncekey.Restarted(), oncekey.Started("r2")])
        self.assertEqual(events[-1].reply.attempts, 2)
        self.assertEqual([method for method, *_ in scene.transport.sent], ["POST", "POST"])

    def test_a_kind_of_answer_may_be_written_in_any_case(self):
        scene = Scene(Reply(200, event("completed", chat("Yes.")), content_type="Text/Event-Stream; charset=UTF-8"))
        [told] = scene.client.stream(scene.operation)
        self.assertEqual(told.reply.answer.message.content, "Yes.")

    def test_a_failure_that_calls_itself_a_success_is_our_side(self):
        scene = Scene(stream(event("failed", {"status": 200, "error": "x"})))
        with self.assertRaises(oncekey.OurSide) as caught:
            list(scene.client.stream(scene.operation))
        self.assertEqual((caught.exception.attempts, len(scene.journal.kept)), (1, 1))

    def test_a_way_that_fell_silent_is_left_and_the_own_time_out_ends(self):
        first = stream(event("started", {"request_id": "r1"}, "1-1"), Elapsed())
        scene = Scene(first, problem(410, "erased"), problem(410, "erased"))
        self.assertRaises(oncekey.YourInput, list, scene.client.stream(scene.operation))
        self.assertTrue(first.closed)
        self.assertEqual([method for method, *_ in scene.transport.sent], ["POST", "GET", "POST"])
        scene = Scene(stream(Elapsed()), timeout=30)
        self.assertRaises(oncekey.TimeoutPassed, list, scene.client.stream(scene.operation))

    def test_a_refusal_before_the_stream_and_an_answer_instead_of_it(self):
        scene = Scene(problem(409, "in_progress", retry_after_ms=500), answer())
        (completed,) = list(scene.client.stream(scene.operation))
        self.assertEqual(completed.reply.answer.message.content, "Yes.")

    def test_whoever_attaches_hears_a_run_without_its_body(self):
        scene = Scene(
            problem(503, "slot_timeout", retry_after_ms=10),
            stream(event("started", {"request_id": "r1"}, "1-1"), event("completed", chat("x"), "1-2")),
        )
        events = list(scene.client.attach("K", "chat"))
        self.assertEqual((events[0].request_id, events[1].reply.answer.message.content), ("r1", "x"))
        self.assertEqual([sent[:2] for sent in scene.transport.sent], [("GET", "/v1/requests/K/events")] * 2)

    def test_whoever_attaches_cannot_make_a_failed_run_begin_again(self):
        failed = {"status": 502, "error": "provider_failed", "retryable": True}
        busy = problem(503, "slot_timeout", retry_after_ms=10)
        scene = Scene(stream(event("failed", failed, "1-1")), busy, Reply(204))
        with self.assertRaises(oncekey.OurSide) as caught:
            list(scene.client.attach("K", "parse"))
        self.assertEqual(caught.exception.problem.error, "provider_failed")
        self.assertRaises(oncekey.YourInput, list, Scene(problem(404, "not_found")).client.attach("K", "chat"))

    def test_a_stream_that_is_closed_says_nothing_more(self):
        first = stream(event("started", {"request_id": "r1"}, "1-1"), event("delta", {"text": "a"}, "1-2"))
        scene = Scene(first)
        with scene.client.stream(scene.operation) as events:
            next(events)
        self.assertTrue(first.closed)
        self.assertRaises(StopIteration, next, events)
        self.assertEqual(len(scene.journal.kept), 1, "it runs on")


class Threads(unittest.TestCase):
    def test_one_client_serves_many_threads(self):
        scene = Scene(*[answer(str(number)) for number in range(20)])
        heard = []
        threads = [threading.Thread(target=lambda: heard.append(scene.send().answer.message.content)) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(heard, key=int), [str(number) for number in range(20)])


if __name__ == "__main__":
    unittest.main()
