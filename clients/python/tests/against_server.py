"""One thing asked of a real server, for a test that breaks the way to it and looks into its database.

    ONCEKEY_TEST_SERVER=… ONCEKEY_API_KEY=… python3 tests/against_server.py '{"do": "send", "chat": ["c1", "hello"]}'

Says what it was told, a line of JSON each. Waits are short, so that the test need not wait, and
many, so that a busy machine does not end them.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import oncekey

KINDS = {
    oncekey.NotSent: "not_sent",
    oncekey.ConnectionLost: "connection_lost",
    oncekey.TimeoutPassed: "timed_out",
    oncekey.OurSide: "our_side",
    oncekey.YourInput: "your_input",
}


def say(told):
    print(json.dumps(told), flush=True)


class Folder:
    def __init__(self, folder):
        self.folder = Path(folder)

    def begun(self, key, operation):
        (self.folder / key).write_bytes(operation)

    def ended(self, key):
        (self.folder / key).unlink()


def operation(client, ask, folder):
    if ask["do"] == "resume":
        (kept,) = Path(folder).iterdir()
        return oncekey.Operation.from_kept(kept.read_bytes())
    metadata, key = ask.get("metadata", {}), ask.get("key")
    if "file" in ask:
        content = Path(ask["file"]).read_bytes()
        return client.begin(oncekey.ParseRequest.of_file(content, allow_gaps=True, metadata=metadata), key)
    if "text" in ask:
        return client.begin(oncekey.ParseRequest.of_text(ask["text"], allow_gaps=True, metadata=metadata), key)
    return client.begin(oncekey.ChatRequest(*ask["chat"], metadata=metadata), key)


def say_reply(reply):
    answer, body = asdict(reply.answer), reply.body.decode()
    told = {"answer": answer, "body": body, "key": reply.key, "replayed": reply.replayed}
    say({"reply": {**told, "request_id": reply.request_id, "attempts": reply.attempts}})


def hear(events):
    for event in events:
        if isinstance(event, oncekey.Started):
            say({"started": event.request_id})
        elif isinstance(event, oncekey.Delta):
            say({"delta": event.text})
        elif isinstance(event, oncekey.Progress):
            say({"progress": [event.done, event.chunks]})
        elif isinstance(event, oncekey.Restarted):
            say({"restarted": True})
        else:
            say_reply(event.reply)


def perform(client, ask, folder):
    if ask["do"] in ("record", "cancel"):
        record = client.record(ask["key"]) if ask["do"] == "record" else client.cancel(ask["key"])
        told = {"state": record.state, "attempts": record.attempts, "operation_id": record.operation_id}
        say({"record": told})
    elif ask["do"] == "attach":
        hear(client.attach(ask["key"], "chat"))
    else:
        asked = operation(client, ask, folder)
        say({"began": asked.key})
        if ask["do"] == "stream":
            hear(client.stream(asked))
        else:
            say_reply(client.send(asked))


def main():
    folder = os.environ.get("ONCEKEY_TEST_JOURNAL")
    client = oncekey.Client(
        os.environ["ONCEKEY_TEST_SERVER"],
        os.environ["ONCEKEY_API_KEY"],
        retry=oncekey.RetryPolicy(waits=(0.05,) * 400, jitter=0.0, longest_wait=1.0),
        on_repeat=lambda repeat: say({"repeat": {"attempt": repeat.attempt, "status": repeat.status}}),
        journal=Folder(folder) if folder else None,
    )
    try:
        perform(client, json.loads(sys.argv[1]), folder)
    except oncekey.ClientError as error:
        problem = error.problem
        told = {"kind": KINDS[type(error)], "attempts": error.attempts, "again": error.may_be_asked_again}
        status, code = (problem.status, problem.error) if problem else (None, None)
        say({"error": {**told, "status": status, "error": code, "message": str(error)}})


if __name__ == "__main__":
    main()
