"""An operation as a stream of events that a broken connection does not end."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Iterator, Optional, Union
from urllib.parse import quote

from ._errors import ClientError, NotSent
from ._events import Decoder, Event, TooLong
from ._operation import A, Operation
from ._problem import Problem, read_problem
from ._transport import LONGEST_ANSWER, Broken, Elapsed, Response
from ._tries import Setback, Tries

if TYPE_CHECKING:
    from ._answers import Reply
    from ._client import Client

SLOWEST_UPLOAD = 16 * 1024
"""A body comes up at least as fast as this, in bytes a second; the head of the stream is waited for accordingly."""


@dataclass(frozen=True)
class Started:
    """A run began, or one that was there was joined."""

    request_id: str


@dataclass(frozen=True)
class Delta:
    """The next piece of the answer's text."""

    text: str


@dataclass(frozen=True)
class Progress:
    """How far a parse is, in chunks."""

    done: int
    chunks: int


@dataclass(frozen=True)
class Restarted:
    """Everything so far is void: the text begins anew, of another run or from its start."""


@dataclass(frozen=True)
class Completed(Generic[A]):
    """The answer; the last event."""

    reply: Reply[A]


StreamEvent = Union[Started, Delta, Progress, Restarted, Completed[A]]


class _Stopped(Exception):
    def __init__(self, setback: Setback) -> None:
        super().__init__()
        self.setback = setback


class EventStream(Generic[A]):
    """The events of one operation, over however many connections. Each text comes once: after a connection was
    lost the stream goes on behind the last event, or says :class:`Restarted`. Raises :class:`ClientError`, once,
    where there is no answer and a repeat no longer helps. Closing it cancels nothing."""

    def __init__(self, client: Client, endpoint: str, key: str, operation: Optional[Operation[A]]) -> None:
        self._client: Client = client
        self._endpoint: str = endpoint
        self._key: str = key
        # None: its body is another's, and the run is only attached to.
        self._operation: Optional[Operation[A]] = operation
        self._tries = Tries(client._clock, client._timeout)
        self._begun = False
        self._response: Optional[Response] = None
        self._decoder = Decoder(LONGEST_ANSWER)
        self._events: deque[Event] = deque()
        self._last_id: Optional[str] = None
        # The run whose events were told, and whether it told something that another would make void.
        self._run: Optional[str] = None
        self._told = False
        # The server knows the operation of this sending: an event of it came.
        self._joined = False
        # There is a run to go back to, without the body.
        self._attach = operation is None
        # What an attached run ended with.
        self._failed: Optional[Problem] = None
        self._ready: deque[Any] = deque()
        self._over = False

    def __iter__(self) -> Iterator[StreamEvent[A]]:
        return self

    def __next__(self) -> StreamEvent[A]:
        if self._over:
            raise StopIteration
        try:
            event: StreamEvent[A] = self._ready.popleft() if self._ready else self._go_on()
        except ClientError as error:
            self.close()
            if self._operation is not None and not isinstance(error, NotSent):
                self._client._ended(self._key, error)
            raise
        if isinstance(event, Completed):
            self.close()
            if self._operation is not None:
                self._client._ended(self._key, None)
        return event

    def __enter__(self) -> EventStream[A]:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def close(self) -> None:
        self._over = True
        self._hang_up()

    def _go_on(self) -> StreamEvent[A]:
        if not self._begun:
            self._begun = True
            if self._operation is not None:
                self._client._begun(self._operation)
        while not self._ready:
            try:
                if self._events:
                    self._take(self._events.popleft())
                elif self._response is None:
                    self._open()
                else:
                    self._read(self._response)
            except _Stopped as stopped:
                setback = stopped.setback
                self._hang_up()
                self._attach = self._operation is None or (self._joined and setback.cause is not None)
                self._client._wait_or_end(setback, self._key, self._tries)
        event: StreamEvent[A] = self._ready.popleft()
        return event

    def _open(self) -> None:
        """Opens the stream, behind what is there."""
        response = self._within(self._first_byte(), self._send, "the answer did not begin")
        kind = (response.header("Content-Type") or "").lower()
        if response.status == 200 and kind.startswith("text/event-stream"):
            self._response, self._decoder = response, Decoder(LONGEST_ANSWER)
            return
        try:
            if self._attach and self._operation is not None and not 502 <= response.status <= 504:
                # Whatever became of the record: the request itself brings it back, or says why not.
                self._attach = False
                return
            body = self._whole(response)
        finally:
            response.close()
        if self._operation is None and response.status == 204 and self._failed is not None:
            # Nothing follows what it ended with, and whoever attached cannot make it run.
            raise _Stopped(Setback.of_problem(self._failed.final()))
        if not 200 <= response.status <= 299:
            raise _Stopped(Setback.of_problem(self._client._problem(response, body or b"")))
        self._completed(response, body)

    def _first_byte(self) -> float:
        if self._attach or self._operation is None:
            return self._client._silence
        return self._client._silence + self._operation._upload_bytes() / SLOWEST_UPLOAD

    def _send(self, timeout: float) -> Response:
        form = "text/event-stream"
        if self._attach or self._operation is None:
            headers = {"Accept": form}
            if self._last_id is not None:
                headers["Last-Event-ID"] = self._last_id
            if self._operation is None:
                self._tries.attempts += 1
            return self._client._send("GET", f"/v1/requests/{quote(self._key, safe='')}/events", headers, timeout)
        self._joined = False
        self._tries.attempts += 1
        return self._client._post(self._operation, self._tries.attempts, form, self._last_id, timeout)

    def _read(self, response: Response) -> None:
        silence = self._client._silence
        piece = self._within(silence, response.read, f"nothing came for {silence:g} s")
        if not piece:
            raise _Stopped(Setback.of_loss("the stream stopped before its end"))
        try:
            self._events.extend(self._decoder.take(piece))
        except TooLong:
            raise _Stopped(Setback.of_loss("an event is longer than any of the server's")) from None

    def _whole(self, response: Response) -> Optional[bytes]:
        from ._client import whole

        try:
            return whole(response, self._tries)
        except Elapsed:
            raise _Stopped(Setback.of_time_out()) from None
        except Broken as broken:
            raise _Stopped(Setback.of_loss(str(broken))) from None

    def _within(self, limit: float, step: Any, elapsed: str) -> Any:
        """A step that has so long, and no longer than the operation."""
        left = self._tries.left()
        try:
            return step(min(limit, left))
        except Elapsed:
            late = left <= limit
            raise _Stopped(Setback.of_time_out() if late else Setback.of_loss(elapsed)) from None
        except Broken as broken:
            raise _Stopped(Setback.of_loss(str(broken))) from None

    def _take(self, event: Event) -> None:
        self._joined = True
        if event.id is not None:
            self._last_id = event.id
        if event.name == "started":
            request_id = self._member(event, "request_id", str)
            if self._run == request_id:
                return
            if self._run is not None:
                self._restart()
            self._run = request_id
            self._ready.append(Started(request_id))
        elif event.name == "restarted":
            self._run = None
            self._restart()
        elif event.name == "delta":
            self._tell(Delta(self._member(event, "text", str)))
        elif event.name == "progress":
            done, chunks = self._member(event, "chunks_done", int), self._member(event, "chunks", int)
            self._tell(Progress(done, chunks))
        elif event.name == "completed":
            assert self._response is not None
            self._completed(self._response, event.data.encode("utf-8"))
        elif event.name == "failed":
            self._failed = read_problem(None, event.data.encode("utf-8"))
            raise _Stopped(Setback.of_problem(self._failed))
        # Others are a later server's.

    def _tell(self, event: Union[Delta, Progress]) -> None:
        self._told = True
        self._tries.got_further()
        self._ready.append(event)

    def _restart(self) -> None:
        if self._told:
            self._told = False
            self._ready.append(Restarted())

    def _completed(self, response: Response, body: Optional[bytes]) -> None:
        if body is None:
            raise _Stopped(Setback.of_problem(self._client._problem(response, b""), readable=False))
        reply = self._client._read_reply(self._endpoint, self._key, self._tries.attempts, response, body)
        self._ready.append(Completed(reply))

    def _member(self, event: Event, name: str, kind: type) -> Any:
        try:
            value = json.loads(event.data)[name]
            if type(value) is kind:
                return value
            why = f"{name} is no {kind.__name__}"
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            why = repr(error)
        problem = Problem(status=200, detail=f"an event of the stream cannot be read: {why}")
        raise _Stopped(Setback.of_problem(problem, readable=False))

    def _hang_up(self) -> None:
        self._events.clear()
        if self._response is not None:
            self._response.close()
            self._response = None
