"""One HTTP request, from its first byte to the head or the end of its answer. Repeats nothing.

A connection a request: no connection that went stale in between, and none that two operations share.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from typing import Any, Mapping, Optional, Protocol, cast
from urllib.parse import urlsplit

from ._errors import NotSent

CONNECT_TIMEOUT = 10.0
"""A connection that is not there by then goes to nobody."""

LONGEST_ANSWER = 64 * 1024 * 1024
"""Far above the longest answer that is stored: whoever sends more is not the server."""

# The system asks a silent peer whether it is there, so that a way that is gone is seen long before the time-out:
# after these seconds, and so often more.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4))


# A time-out of zero would be none at all; above some 24 days it is one that sockets do not take.
_MOMENT, _LONGEST = 0.001, 1_000_000.0


class Broken(Exception):
    """The connection broke; the transport's words."""


class Elapsed(Exception):
    """The time that was given passed."""


class Response(Protocol):
    """An answer whose head is there."""

    status: int

    def header(self, name: str) -> Optional[str]: ...

    def read(self, timeout: float) -> bytes:
        """The next piece of the body, empty at its end. Raises :class:`Broken` or :class:`Elapsed`."""
        ...

    def close(self) -> None: ...


class Transport(Protocol):
    """The way to one server."""

    def send(
        self, method: str, target: str, headers: Mapping[str, str], body: Optional[bytes], timeout: float
    ) -> Response:
        """Sends a request and waits for the head of its answer. ``target``: path and query, below the server's
        address. Raises :class:`Broken` or :class:`Elapsed`."""
        ...


class HttpTransport:
    """With the standard library. Redirects are not followed: a credential goes to the named server alone."""

    def __init__(self, server: str, tls: Optional[ssl.SSLContext] = None) -> None:
        try:
            parts = urlsplit(server)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise _wrong(f"is no URL: {error}") from None
        if parts.scheme not in ("http", "https") or not host:
            raise _wrong("is not reached over HTTP")
        self._host = host
        self._port = port
        self._base = parts.path.rstrip("/")
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None

    def send(
        self, method: str, target: str, headers: Mapping[str, str], body: Optional[bytes], timeout: float
    ) -> Response:
        limit = max(min(CONNECT_TIMEOUT, timeout), _MOMENT)
        until = time.monotonic() + timeout
        connection = self._connection(limit)
        try:
            try:
                connection.connect()
            except OSError as error:
                if _elapsed(error) and limit < timeout:
                    raise Broken(f"no connection within {limit:.0f} s") from error
                raise
            # The head of the answer closes the connection's own hold on it.
            channel = connection.sock
            _settle(channel)
            channel.settimeout(_left(until))
            try:
                connection.request(method, self._base + target, body=body, headers=dict(headers))
            except (BrokenPipeError, ConnectionResetError):
                # Refused before it was all said: the answer may be there.
                pass
            line = _Line(channel)
            line.until = until
            return _HttpResponse(connection, _final(line, method), line)
        except BaseException as error:
            connection.close()
            raise _told(error) from error

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)


class _Line(io.RawIOBase):
    """What comes over a connection until a moment, which a peer that sends a byte now and then does not put off."""

    def __init__(self, channel: socket.socket) -> None:
        self.until = 0.0
        self._channel = channel
        self._buffered = io.BufferedReader(self)

    def makefile(self, mode: str) -> io.BufferedReader:
        """As of a socket, and always the same one: what an interim answer left in it belongs to the next."""
        return self._buffered

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if time.monotonic() >= self.until:
            raise socket.timeout("timed out")
        self._channel.settimeout(_left(self.until))
        return self._channel.recv_into(buffer)


def _final(line: _Line, method: str) -> http.client.HTTPResponse:
    """The head of the answer, behind however many interim ones (1xx); the standard library knows 100 alone."""
    while True:
        response = http.client.HTTPResponse(cast(socket.socket, line), method=method)
        response.begin()
        if not 100 <= response.status <= 199 or response.status == 101:
            return response
        # It would close what the next one is read from.
        response.fp = None  # type: ignore[assignment]


class _HttpResponse:
    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, line: _Line
    ) -> None:
        self.status = response.status
        self._connection = connection
        self._response = response
        self._line = line
        # What is still to come; None where the end is told otherwise.
        self._left = response.length

    def header(self, name: str) -> Optional[str]:
        return self._response.getheader(name)

    def read(self, timeout: float) -> bytes:
        wanted = 64 * 1024 if self._left is None else min(64 * 1024, self._left)
        if wanted == 0:
            return b""
        self._line.until = time.monotonic() + max(timeout, _MOMENT)
        try:
            piece = self._response.read1(wanted)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _told(error) from error
        if self._left is not None:
            if not piece:
                raise Broken("the answer stopped before its end")
            self._left -= len(piece)
        return piece

    def close(self) -> None:
        self._response.close()
        self._connection.close()


def _left(until: float) -> float:
    return min(max(until - time.monotonic(), _MOMENT), _LONGEST)


def _settle(channel: socket.socket) -> None:
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        # Not every system has all of them.
        option = getattr(socket, name, None)
        if option is not None:
            channel.setsockopt(socket.IPPROTO_TCP, option, value)


def _elapsed(error: BaseException) -> bool:
    """Whether it is a time-out of ours: one that the system found has a number."""
    return isinstance(error, socket.timeout) and error.errno is None


def _told(error: BaseException) -> BaseException:
    if _elapsed(error):
        return Elapsed()
    if isinstance(error, http.client.RemoteDisconnected):
        return Broken("the connection was closed before an answer")
    if isinstance(error, http.client.IncompleteRead):
        return Broken("the answer stopped before its end")
    if isinstance(error, OSError):
        return Broken(error.strerror or str(error))
    if isinstance(error, (http.client.HTTPException, ValueError)):
        return Broken(f"{type(error).__name__}: {error}")
    return error


def _wrong(what: str) -> NotSent:
    # Without the text: it may hold a password, or be the API key in the wrong place.
    return NotSent(f"the server's address {what}; give it as http://HOST:PORT or https://HOST")
