"""One HTTP request, from its first byte to the head or the end of its answer. Repeats nothing.

A connection a request: no connection that went stale in between, and none that two operations share.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from typing import Mapping, Optional, Protocol
from urllib.parse import urlsplit

from ._errors import NotSent

CONNECT_TIMEOUT = 10.0
"""A connection that is not there by then goes to nobody."""

LONGEST_ANSWER = 64 * 1024 * 1024
"""Far above the longest answer that is stored: whoever sends more is not the server."""

# The system asks a silent peer whether it is there, so that a way that is gone is seen long before the time-out:
# after these seconds, and so often more.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4))


# A time-out of zero would be none at all.
_MOMENT = 0.001


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
            raise _wrong(server, f"is no URL: {error}") from error
        if parts.scheme not in ("http", "https") or not host:
            raise _wrong(server, "is not reached over HTTP")
        self._host = host
        self._port = port
        self._base = parts.path.rstrip("/")
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None

    def send(
        self, method: str, target: str, headers: Mapping[str, str], body: Optional[bytes], timeout: float
    ) -> Response:
        limit = min(CONNECT_TIMEOUT, timeout)
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
            channel.settimeout(_left(until))
            return _HttpResponse(connection, connection.getresponse(), channel)
        except BaseException as error:
            connection.close()
            raise _told(error) from error

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)


class _HttpResponse:
    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, channel: socket.socket
    ) -> None:
        self.status = response.status
        self._connection = connection
        self._response = response
        self._channel = channel
        # What is still to come; None where the end is told otherwise.
        self._left = response.length

    def header(self, name: str) -> Optional[str]:
        return self._response.getheader(name)

    def read(self, timeout: float) -> bytes:
        wanted = 64 * 1024 if self._left is None else min(64 * 1024, self._left)
        if wanted == 0:
            return b""
        try:
            self._channel.settimeout(max(timeout, _MOMENT))
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
    return max(until - time.monotonic(), _MOMENT)


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


def _wrong(server: str, what: str) -> NotSent:
    return NotSent(f"the server {server!r} {what}; give it as http://HOST:PORT or https://HOST")
