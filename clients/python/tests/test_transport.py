"""The way over real sockets: what a broken one looks like, and what time runs out."""

import itertools
import re
import socket
import threading
import unittest
from pathlib import Path

import oncekey
from oncekey import Broken, Elapsed, HttpTransport

HEAD = b"HTTP/1.1 200 OK\r\nX-Thing: 1\r\n"


class Server:
    """Answers each connection with the next of these texts, and closes it unless a text ends with ``HOLD``."""

    HOLD = object()

    def __init__(self, *answers):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/base/"
        self.answers = answers
        self.requests = []
        self.held = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        for answer in self.answers:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(65_536)
            length = int((re.search(rb"content-length: (\d+)", head, re.I) or [0, 0])[1])
            body = head.partition(b"\r\n\r\n")[2]
            while len(body) < length:
                body += connection.recv(65_536)
            self.requests.append(head)
            try:
                for part in answer:
                    if part is self.HOLD:
                        self.held.append(connection)
                        break
                    connection.sendall(part)
                else:
                    connection.close()
            except OSError:
                # Whoever asked has left.
                connection.close()

    def close(self):
        self.listener.close()
        for connection in self.held:
            connection.close()


class Ways(unittest.TestCase):
    def serve(self, *answers):
        server = Server(*answers)
        self.addCleanup(server.close)
        return server, HttpTransport(server.url)

    def whole(self, transport, body=b"{}", timeout=30.0):
        response = transport.send("POST", "/v1/chat?x=1", {"X-End-User": "ü"}, body, timeout)
        try:
            pieces = []
            while True:
                piece = response.read(timeout)
                if not piece:
                    return response, b"".join(pieces)
                pieces.append(piece)
        finally:
            response.close()

    def test_whole_answers(self):
        chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        counted = HEAD + b"Content-Length: 5\r\n\r\nabcde"
        none = b"HTTP/1.1 204 No Content\r\n\r\n"
        hold = Server.HOLD
        server, transport = self.serve([chunked], [counted], [counted, hold], [chunked, hold], [none, hold])
        for _ in range(4):
            response, body = self.whole(transport)
            self.assertEqual((response.status, response.header("x-thing"), body), (200, "1", b"abcde"))
        self.assertEqual(self.whole(transport)[1], b"")
        self.assertTrue(server.requests[0].startswith(b"POST /base/v1/chat?x=1 HTTP/1.1\r\n"))

    def test_answers_that_break_off(self):
        for text in (b"", b"HTTP/1.1 2", HEAD + b"Content-Length: 5\r\n\r\nabc",
                     HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nab",
                     HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", b"nonsense\r\n\r\n"):
            with self.subTest(text):
                _, transport = self.serve([text])
                self.assertRaises(Broken, self.whole, transport)

    def test_nobody_listens(self):
        server, transport = self.serve()
        server.close()
        with self.assertRaises(Broken) as caught:
            self.whole(transport)
        self.assertIn("refused", str(caught.exception).lower())

    def test_time_that_runs_out_is_not_a_broken_connection(self):
        hold = Server.HOLD
        _, transport = self.serve([hold], [HEAD + b"Content-Length: 5\r\n\r\nabc", hold])
        self.assertRaises(Elapsed, self.whole, transport, timeout=0.2)
        self.assertRaises(Elapsed, self.whole, transport, timeout=0.5)

    def test_interim_answers_are_passed_over_and_put_no_time_off(self):
        counted = HEAD + b"Content-Length: 5\r\n\r\nabcde"
        hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        going_on = b"HTTP/1.1 100 Continue\r\n\r\n"
        _, transport = self.serve([hints, going_on, hints, counted], itertools.repeat(going_on))
        response, body = self.whole(transport)
        self.assertEqual((response.status, response.header("Link"), body), (200, None, b"abcde"))
        self.assertRaises(Elapsed, self.whole, transport, timeout=0.2)

    def test_a_time_without_an_end(self):
        _, transport = self.serve([HEAD + b"Content-Length: 5\r\n\r\nabcde"])
        self.assertEqual(self.whole(transport, timeout=float("inf"))[1], b"abcde")

    def test_an_own_time_out_ends_without_a_repeat(self):
        server, _ = self.serve([Server.HOLD], [Server.HOLD])
        repeats = []
        client = oncekey.Client(server.url, "ok_x", timeout=0.2, on_repeat=repeats.append)
        operation = client.begin(oncekey.ChatRequest("c1", "hello"))
        self.assertRaises(oncekey.TimeoutPassed, client.send, operation)
        self.assertEqual(repeats, [])


class Package(unittest.TestCase):
    def test_the_version_is_the_packages(self):
        text = (Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8")
        self.assertIn(f'version = "{oncekey.__version__}"', text)


if __name__ == "__main__":
    unittest.main()
