"""A way to a server that says what a test scripted, and a clock that only moves when somebody sleeps."""

import json

import oncekey


class ManualClock(oncekey.Clock):
    def __init__(self):
        self.time = 1_787_000_000.5
        self.slept = []

    def now(self):
        return self.time

    def utc_now(self):
        return self.time

    def sleep(self, seconds):
        self.slept.append(round(seconds, 6))
        self.time += seconds

    def chance(self):
        return 0.0


class Reply:
    """An answer in pieces; an exception among them is raised where it stands."""

    def __init__(self, status, *pieces, **headers):
        self.status = status
        self.pieces = list(pieces)
        self.headers = {name.replace("_", "-").lower(): value for name, value in headers.items()}
        self.closed = False

    def header(self, name):
        return self.headers.get(name.lower())

    def read(self, timeout):
        piece = self.pieces.pop(0) if self.pieces else b""
        if isinstance(piece, Exception):
            raise piece
        return piece

    def close(self):
        self.closed = True


class Transport:
    def __init__(self, *replies):
        self.replies = list(replies)
        self.sent = []

    def send(self, method, target, headers, body, timeout):
        self.sent.append((method, target, dict(headers), body, timeout))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


def problem(status, error, **more):
    return Reply(status, json.dumps({"status": status, "error": error, "detail": "So it is.", **more}).encode())


def answer(content="Yes.", **headers):
    return Reply(200, json.dumps(chat(content)).encode(), **headers)


def chat(content):
    usage = {"input_tokens": 1, "output_tokens": 2, "cache_read_tokens": None, "cache_write_tokens": 0}
    return {
        "request_id": "r1",
        "conversation_id": "c1",
        "turn_id": "t1",
        "message": {"role": "assistant", "content": content},
        "model": "default",
        "stop_reason": "end",
        "usage": usage,
    }


def event(name, data, id=None):
    head = "" if id is None else f"id: {id}\n"
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def stream(*pieces):
    return Reply(200, *pieces, content_type="text/event-stream")
