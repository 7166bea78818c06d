"""What an answer that is no success says."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Optional


@dataclass(frozen=True)
class Problem:
    """The members of an ``application/problem+json`` body. Where something between us and the server answered,
    ``error`` is empty and ``detail`` says what is known."""

    status: int = 0
    error: str = ""
    """The stable code, such as ``nothing_found``."""
    title: str = ""
    detail: str = ""
    """For a person."""
    reason: Optional[str] = None
    """What exactly, where one code has several causes."""
    request_id: Optional[str] = None
    retryable: Optional[bool] = None
    retry_after: Optional[float] = None
    """Seconds after which to ask again, where that helps."""

    def __str__(self) -> str:
        parts = [f"{self.status} {self.error}" if self.error else f"status {self.status}"]
        if self.reason is not None:
            parts.append(self.reason)
        if self.request_id is not None:
            parts.append(f"request {self.request_id}")
        return f"{(self.detail or self.title).rstrip('.')} ({', '.join(parts)})"

    def with_(self, request_id: Optional[str], retry_after: Optional[float]) -> Problem:
        """The same with what the head of the answer says."""
        return replace(self, request_id=request_id, retry_after=retry_after)

    def final(self) -> Problem:
        """The same as something that no repeat helps against."""
        return replace(self, retryable=False)


def read_problem(status: Optional[int], body: bytes) -> Problem:
    """Of a body; ``status`` is that of the answer (in a stream it stands in the body alone)."""
    try:
        wire = json.loads(body)
    except (ValueError, RecursionError):
        wire = None
    if not isinstance(wire, dict) or not _is_problem(wire):
        return _of_a_stranger(status or 0)
    millis = wire.get("retry_after_ms")
    problem = Problem(
        status=status if status is not None else wire.get("status") or 0,
        error=wire["error"],
        title=wire.get("title", ""),
        detail=wire.get("detail", ""),
        reason=wire.get("reason"),
        request_id=wire.get("request_id"),
        retryable=wire.get("retryable"),
    )
    return problem if millis is None else replace(problem, retry_after=millis / 1000)


def _is_problem(wire: dict[str, Any]) -> bool:
    text = all(isinstance(wire.get(name, ""), str) for name in ("title", "detail"))
    maybe_text = all(isinstance(wire.get(name), (str, type(None))) for name in ("reason", "request_id"))
    numbers = all(
        wire.get(name) is None or (type(wire[name]) is int and 0 <= wire[name] <= most)
        for name, most in (("status", 65_535), ("retry_after_ms", 2**64 - 1))
    )
    retryable = isinstance(wire.get("retryable"), (bool, type(None)))
    return isinstance(wire.get("error"), str) and text and maybe_text and numbers and retryable


def _of_a_stranger(status: int) -> Problem:
    if status == 0:
        detail = "a stream ended with something that is no verdict"
    elif 200 <= status <= 299:
        detail = "the answer is not one of this service; is the address right?"
    else:
        detail = f"status {status} of something that is not this service"
    return Problem(status=status, detail=detail)
