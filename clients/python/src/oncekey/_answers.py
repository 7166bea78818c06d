"""What comes back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Generic, Optional, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Reply(Generic[T]):
    """An answer, and how it came."""

    answer: T
    body: bytes
    """As it came: byte for byte the same at every replay."""
    key: str
    replayed: bool
    """Whether it was there already when it was asked for."""
    request_id: Optional[str]
    """Of this arrival at the server (``X-Request-Id``); that of the run stands in the answer."""
    attempts: int
    """How often the request was sent for it."""


@dataclass(frozen=True)
class Usage:
    """Tokens; ``None`` is what the provider did not tell."""

    input_tokens: Optional[int]
    output_tokens: Optional[int]
    cache_read_tokens: Optional[int]
    cache_write_tokens: Optional[int]


@dataclass(frozen=True)
class ChatMessage:
    role: str
    content: str


@dataclass(frozen=True)
class ChatAnswer:
    """The answer to a chat."""

    request_id: str
    """Of the run that produced it."""
    conversation_id: str
    turn_id: str
    message: ChatMessage
    model: str
    stop_reason: str
    """``end``, or ``max_tokens`` where the answer was cut."""
    usage: Usage


@dataclass(frozen=True)
class Gap:
    """A piece of the text that could not be parsed: its chunk from 0, its place in characters of the text that
    was read."""

    chunk: int
    from_: int
    to: int
    reason: str


@dataclass(frozen=True)
class ParseAnswer:
    """The answer to a parse."""

    request_id: str
    """Of the run that produced it."""
    result: Any
    """In the form of the profile; of ``script``: ``title``, ``characters``, ``dialogue``."""
    gaps: tuple[Gap, ...]
    """What is missing, where that was allowed."""
    usage: Usage


@dataclass(frozen=True)
class RecordAnswer:
    """What became of an operation."""

    operation_id: str
    """Of a parse, this is also the name of its stored input."""
    request_id: str
    state: str
    """``in_progress``, ``committed`` or ``failed``."""
    endpoint: str
    attempts: int


class Unreadable(Exception):
    """A success that cannot be read."""


def read_answer(endpoint: str, body: bytes) -> Any:
    """The answer that a body holds; ``endpoint``: ``chat``, ``parse`` or ``record``.

    Raises :class:`Unreadable` where it is another's.
    """
    try:
        return _READERS[endpoint](_Members(json.loads(body)))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unreadable(str(error)) from error


class _Members:
    """The members of an object, each of the kind that is asked for; others are a later server's."""

    def __init__(self, wire: Any) -> None:
        if not isinstance(wire, dict):
            raise TypeError("an object is missing")
        self._wire = wire

    def text(self, name: str) -> str:
        value: str = self._of(name, str)
        return value

    def number(self, name: str) -> int:
        value: int = self._of(name, int)
        return value

    def maybe_number(self, name: str) -> Optional[int]:
        return None if self._wire.get(name) is None else self.number(name)

    def members(self, name: str) -> _Members:
        return _Members(self._wire[name])

    def all(self, name: str) -> list[_Members]:
        return [_Members(one) for one in self._of(name, list)]

    def any(self, name: str) -> Any:
        return self._wire[name]

    def _of(self, name: str, kind: type) -> Any:
        value = self._wire[name]
        if type(value) is not kind:
            raise TypeError(f"{name} is no {kind.__name__}")
        return value


def _usage(wire: _Members) -> Usage:
    return Usage(
        input_tokens=wire.maybe_number("input_tokens"),
        output_tokens=wire.maybe_number("output_tokens"),
        cache_read_tokens=wire.maybe_number("cache_read_tokens"),
        cache_write_tokens=wire.maybe_number("cache_write_tokens"),
    )


def _chat(wire: _Members) -> ChatAnswer:
    message = wire.members("message")
    return ChatAnswer(
        request_id=wire.text("request_id"),
        conversation_id=wire.text("conversation_id"),
        turn_id=wire.text("turn_id"),
        message=ChatMessage(role=message.text("role"), content=message.text("content")),
        model=wire.text("model"),
        stop_reason=wire.text("stop_reason"),
        usage=_usage(wire.members("usage")),
    )


def _gap(wire: _Members) -> Gap:
    return Gap(wire.number("chunk"), wire.number("from"), wire.number("to"), wire.text("reason"))


def _parse(wire: _Members) -> ParseAnswer:
    return ParseAnswer(
        request_id=wire.text("request_id"),
        result=wire.any("result"),
        gaps=tuple(_gap(gap) for gap in wire.all("gaps")),
        usage=_usage(wire.members("usage")),
    )


def _record(wire: _Members) -> RecordAnswer:
    return RecordAnswer(
        operation_id=wire.text("operation_id"),
        request_id=wire.text("request_id"),
        state=wire.text("state"),
        endpoint=wire.text("endpoint"),
        attempts=wire.number("attempts"),
    )


_READERS = {"chat": _chat, "parse": _parse, "record": _record}
