"""An operation asked for until there is an answer, or none is to be had. What is performed here,
:func:`decide` has decided."""

from __future__ import annotations

import warnings
from typing import Any, Callable, Literal, Mapping, NoReturn, Optional, Union, overload
from urllib.parse import quote

from ._answers import ChatAnswer, ParseAnswer, RecordAnswer, Reply, Unreadable, read_answer
from ._clock import Clock
from ._decide import Again, Answered, Ending, Lost, Situation, Stop, TimedOut, decide, told_wait
from ._errors import ClientError, ConnectionLost, NotSent, OurSide, TimeoutPassed, YourInput
from ._journal import Journal
from ._operation import A, ChatRequest, Operation, ParseRequest, checked_key, freeze
from ._policy import Repeat, RetryPolicy
from ._problem import Problem, read_problem
from ._stream import EventStream
from ._transport import LONGEST_ANSWER, Broken, Elapsed, HttpTransport, Response, Transport
from ._tries import Setback, Tries
from ._version import __version__

DEFAULT_TIMEOUT = 2_700.0
"""How long an operation is waited for, all its repeats included. Above the longest honest run of a server with its
settings at their defaults: 4 calls of 10 minutes each, 30 s of waiting for a place before each, 8 s between them."""

DEFAULT_SILENCE = 45.0
"""A stream that says nothing for so long is broken: a server says something every 15 s."""


class Client:
    """Calls one server (as in ``https://oncekey.example``) with one API key of role ``client``.

    ``end_user``: on behalf of whom a tenant's server asks. ``timeout``: for an operation with all its repeats; a
    shorter one than :data:`DEFAULT_TIMEOUT` gives up on answers that are on their way. ``silence``: how long a
    stream may say nothing. ``journal`` keeps operations over the end of the process. ``on_repeat`` is called before
    a request is sent again. ``clock`` and ``transport`` are for tests.

    Raises :class:`NotSent` for a setting that nothing could be sent with.
    """

    def __init__(
        self,
        server: str,
        api_key: str,
        *,
        end_user: Optional[str] = None,
        retry: RetryPolicy = RetryPolicy(),
        timeout: float = DEFAULT_TIMEOUT,
        silence: float = DEFAULT_SILENCE,
        journal: Optional[Journal] = None,
        on_repeat: Optional[Callable[[Repeat], None]] = None,
        clock: Optional[Clock] = None,
        transport: Optional[Transport] = None,
    ) -> None:
        self._transport: Transport = HttpTransport(server) if transport is None else transport
        self._headers = {
            "Authorization": f"Bearer {_header('the API key', api_key)}",
            "User-Agent": f"oncekey-client-python/{__version__}",
            "Connection": "close",
        }
        if end_user is not None:
            self._headers["X-End-User"] = _header("the end user", _spelled(end_user))
        self._retry = retry
        self._timeout = timeout
        self._silence = silence
        self._journal = journal
        self._on_repeat = on_repeat
        self._clock = clock or Clock()

    @overload
    def begin(self, request: ChatRequest, key: Optional[str] = None) -> Operation[ChatAnswer]: ...
    @overload
    def begin(self, request: ParseRequest, key: Optional[str] = None) -> Operation[ParseAnswer]: ...
    def begin(self, request: Union[ChatRequest, ParseRequest], key: Optional[str] = None) -> Operation[Any]:
        """One thing that a user did, under a new key (UUIDv7), or under one that is known: that of a job in a
        queue, say. Nothing is sent yet: call it when the user acts, and keep what it returns until there is an
        answer. Raises :class:`NotSent` for a text that is no key, and for what JSON cannot hold."""
        return freeze(request, self._clock.new_key() if key is None else checked_key(key))

    def send(self, operation: Operation[A]) -> Reply[A]:
        """Sends the operation until there is an answer or a repeat no longer helps. Raises :class:`ClientError`,
        which tells whom it concerns. An exception in between (Ctrl-C) cancels nothing: the operation runs on, and
        the same operation sent again finds it."""
        self._begun(operation)
        tries = Tries(self._clock, self._timeout)

        def once(attempt: int) -> Response:
            return self._post(operation, attempt, "application/json", None, tries.left())

        with _Outcome(self, operation.key):
            return self._reply(operation.endpoint, operation.key, tries, once)

    def stream(self, operation: Operation[A]) -> EventStream[A]:
        """The operation as a stream of events, which comes back behind what it has when the connection breaks;
        sent when the first is asked for."""
        return EventStream(self, operation.endpoint, operation.key, operation)

    @overload
    def attach(self, key: str, endpoint: Literal["chat"]) -> EventStream[ChatAnswer]: ...
    @overload
    def attach(self, key: str, endpoint: Literal["parse"]) -> EventStream[ParseAnswer]: ...
    def attach(self, key: str, endpoint: str) -> EventStream[Any]:
        """The events of what runs, or ran, under a key, by whoever does not have its body. Makes nothing run: a
        run that failed stays so until its sender asks again."""
        return EventStream(self, endpoint, checked_key(key), None)

    def record(self, key: str) -> RecordAnswer:
        """What became of an operation, which need not be one of this process. Raises :class:`YourInput` with
        status 404 where the key is not known."""
        return self._of_record("GET", checked_key(key), "")

    def cancel(self, key: str) -> RecordAnswer:
        """Ends the run of an operation, at whatever node, and frees its conversation; whoever waits for it is
        refused with ``cancelled``. Changes nothing where nothing runs. The record as it is then."""
        return self._of_record("POST", checked_key(key), "/cancel")

    def _of_record(self, method: str, key: str, action: str) -> RecordAnswer:
        tries = Tries(self._clock, self._timeout)
        target = f"/v1/requests/{quote(key, safe='')}{action}"

        def once(attempt: int) -> Response:
            return self._send(method, target, {"Accept": "application/json"}, tries.left())

        reply: Reply[RecordAnswer] = self._reply("record", key, tries, once)
        return reply.answer

    def _reply(self, endpoint: str, key: str, tries: Tries, once: Callable[[int], Response]) -> Reply[Any]:
        while True:
            tries.attempts += 1
            setback = self._ask(tries, once)
            if isinstance(setback, tuple):
                response, body = setback
                return self._read_reply(endpoint, key, tries.attempts, response, body)
            self._wait_or_end(setback, key, tries)

    def _ask(self, tries: Tries, once: Callable[[int], Response]) -> Union[tuple[Response, bytes], Setback]:
        try:
            response = once(tries.attempts)
            try:
                body = whole(response, tries)
            finally:
                response.close()
        except Elapsed:
            return Setback.of_time_out()
        except Broken as broken:
            return Setback.of_loss(str(broken))
        if 200 <= response.status <= 299:
            if body is None:
                return Setback.of_problem(self._problem(response, b""), readable=False)
            return response, body
        return Setback.of_problem(self._problem(response, body or b""))

    def _post(
        self, operation: Operation[Any], attempt: int, accept: str, behind: Optional[str], timeout: float
    ) -> Response:
        sending = operation._sending(attempt, self._clock.utc_now())
        headers = {"Idempotency-Key": operation.key, "Content-Type": sending.content_type, "Accept": accept}
        if behind is not None:
            headers["Last-Event-ID"] = behind
        target = f"/v1/{operation.endpoint}" + (f"?{sending.query}" if sending.query else "")
        return self._transport.send("POST", target, {**self._headers, **headers}, sending.body, timeout)

    def _send(self, method: str, target: str, headers: Mapping[str, str], timeout: float) -> Response:
        return self._transport.send(method, target, {**self._headers, **headers}, None, timeout)

    def _problem(self, response: Response, body: bytes) -> Problem:
        """The problem that an answer holds; its time is from the body or the head."""
        problem = read_problem(response.status, body)
        wait = told_wait(problem.retry_after, response.header("Retry-After"), self._clock.utc_now())
        request_id = problem.request_id or response.header("X-Request-Id")
        return problem.with_(request_id, wait)

    def _read_reply(self, endpoint: str, key: str, attempts: int, response: Response, body: bytes) -> Reply[Any]:
        try:
            answer = read_answer(endpoint, body)
        except Unreadable:
            raise OurSide(key, attempts, self._problem(response, b"")) from None
        replayed = response.header("Idempotency-Replayed") == "true"
        return Reply(answer, body, key, replayed, response.header("X-Request-Id"), attempts)

    def _wait_or_end(self, setback: Setback, key: str, tries: Tries) -> None:
        """Waits where the same request is to be sent again; raises where it is not."""
        problem = setback.problem
        if problem is not None and not setback.readable:
            raise OurSide(key, tries.attempts, problem)
        situation: Situation = TimedOut()
        if setback.cause is not None:
            situation = Lost()
        elif problem is not None:
            situation = Answered(problem.status, problem.retry_after, problem.retryable)
        decision = decide(self._retry, situation, tries.repeats(), tries.left(), self._clock.chance())
        if not isinstance(decision, Again):
            # A failure that calls itself a success is the server's.
            ending = decision.ending if isinstance(decision, Stop) else Ending.OUR_SIDE
            self._raise(ending, setback, key, tries.attempts)
        after = decision.after
        tries.count(setback, decision.counts)
        if self._on_repeat is not None:
            status = None if problem is None else problem.status
            self._on_repeat(Repeat(key, tries.attempts + 1, after, status))
        self._clock.sleep(after)

    def _raise(self, ending: Ending, setback: Setback, key: str, attempts: int) -> NoReturn:
        problem = setback.problem or Problem()
        if ending is Ending.CONNECTION_LOST:
            raise ConnectionLost(key, attempts, setback.cause or "")
        if ending is Ending.TIMED_OUT:
            raise TimeoutPassed(key, attempts, self._timeout, setback.problem)
        if ending is Ending.OUR_SIDE:
            raise OurSide(key, attempts, problem)
        raise YourInput(key, attempts, problem)

    def _begun(self, operation: Operation[Any]) -> None:
        """Keeps an operation that is about to be sent for the first time."""
        if self._journal is None or operation.resumed:
            return
        try:
            self._journal.begun(operation.key, operation.kept())
        except Exception as error:
            raise NotSent(f"it could not be kept: {error}") from error

    def _ended(self, key: str, error: Optional[ClientError]) -> None:
        """Forgets an operation of which nothing more is to be had."""
        if self._journal is not None and (error is None or not error.may_be_asked_again):
            try:
                self._journal.ended(key)
            except Exception as failed:
                # The answer is what was asked for; one that is left is asked for once more, and replayed.
                warnings.warn(f"the operation {key} stays in the journal: {failed}", RuntimeWarning, stacklevel=2)


class _Outcome:
    """Tells the journal how it ended, unless something other than an outcome came in between."""

    def __init__(self, client: Client, key: str) -> None:
        self._client = client
        self._key = key

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None or isinstance(error, ClientError):
            self._client._ended(self._key, error)


def whole(response: Response, tries: Tries) -> Optional[bytes]:
    """The whole body of an answer. ``None``: longer than any of the server's."""
    body = bytearray()
    while True:
        piece = response.read(tries.left())
        if not piece:
            return bytes(body)
        if len(body) + len(piece) > LONGEST_ANSWER:
            return None
        body += piece


def _spelled(text: str) -> str:
    """As bytes of UTF-8, which the standard library wants spelled as Latin-1."""
    try:
        return text.encode("utf-8").decode("latin-1")
    except UnicodeEncodeError:
        raise NotSent("the end user has characters that no header can carry") from None


def _header(what: str, text: str) -> str:
    if any(ord(character) < 0x20 or ord(character) == 0x7F or ord(character) > 0xFF for character in text):
        raise NotSent(f"{what} has characters that no header can carry")
    return text
