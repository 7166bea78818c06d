"""One thing that a user did: its key, and the bytes that mean it."""

from __future__ import annotations

import base64
import binascii
import json
import re
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Generic, Mapping, Optional, TypeVar, Union
from urllib.parse import urlencode

from ._answers import ChatAnswer, ParseAnswer
from ._errors import NotSent

A = TypeVar("A", ChatAnswer, ParseAnswer)

MAX_KEY_CHARS = 255


@dataclass(frozen=True)
class ChatRequest:
    """A message of a user's in a conversation (1 to 255 characters of the caller's own choice)."""

    conversation: str
    message: str
    model: Optional[str] = None
    """One of the server's models; ``default`` where none is said."""
    temperature: Optional[float] = None
    """0 to 2."""
    max_tokens: Optional[int] = None
    """The longest answer, in tokens."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Stored with the turn, no part of the request's meaning. The client adds ``attempt``, ``sent_at`` and, for
    an operation that another process began, ``resumed``."""


@dataclass(frozen=True)
class ParseRequest:
    """Something to be parsed: made by :meth:`of_text`, :meth:`of_file` or :meth:`of_capture`."""

    input: Union[str, bytes]
    kind: str
    profile: Optional[str] = None
    """What is to be produced; ``script`` where none is said."""
    allow_gaps: Optional[bool] = None
    """Whether a result with gaps is better than none."""
    model: Optional[str] = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """As for a chat."""

    @staticmethod
    def of_text(
        text: str,
        *,
        profile: Optional[str] = None,
        allow_gaps: Optional[bool] = None,
        model: Optional[str] = None,
        metadata: Optional[Mapping[str, Any]] = None,
    ) -> ParseRequest:
        """A text."""
        return ParseRequest(text, "text", profile, allow_gaps, model, metadata or {})

    @staticmethod
    def of_file(
        content: bytes,
        *,
        profile: Optional[str] = None,
        allow_gaps: Optional[bool] = None,
        model: Optional[str] = None,
        metadata: Optional[Mapping[str, Any]] = None,
    ) -> ParseRequest:
        """A file (PDF, PNG, JPEG, WebP, plain text); its bytes decide what it is."""
        return ParseRequest(bytes(content), "file", profile, allow_gaps, model, metadata or {})

    @staticmethod
    def of_capture(
        operation_id: str,
        *,
        profile: Optional[str] = None,
        allow_gaps: Optional[bool] = None,
        model: Optional[str] = None,
        metadata: Optional[Mapping[str, Any]] = None,
    ) -> ParseRequest:
        """An input that an earlier parse stored, by that parse's ``operation_id``."""
        return ParseRequest(operation_id, "capture_id", profile, allow_gaps, model, metadata or {})


@dataclass(frozen=True)
class Sending:
    """One sending."""

    content_type: str
    query: str
    body: bytes


class Operation(Generic[A]):
    """A key and the body that it stands for, for ever the same. Made by :meth:`Client.begin` when the user acts,
    not when a request is sent; kept, it can be taken up again by another process."""

    def __init__(
        self,
        endpoint: str,
        key: str,
        metadata: Mapping[str, Any],
        *,
        json_body: Optional[str] = None,
        query: str = "",
        file: bytes = b"",
        resumed: bool = False,
    ) -> None:
        self._endpoint = endpoint
        self._key = key
        self._json = json_body
        self._query = query
        self._file = file
        self._metadata = dict(metadata)
        self._resumed = resumed

    @property
    def key(self) -> str:
        """The idempotency key."""
        return self._key

    @property
    def endpoint(self) -> str:
        """``chat`` or ``parse``."""
        return self._endpoint

    @property
    def resumed(self) -> bool:
        """Whether another process began it."""
        return self._resumed

    def __repr__(self) -> str:
        # Without the body, which is the user's.
        return f"Operation(endpoint={self._endpoint!r}, key={self._key!r}, resumed={self._resumed})"

    def kept(self) -> bytes:
        """The form in which it is kept, by whatever client; :meth:`from_kept` takes it."""
        kept: dict[str, Any] = {"endpoint": self._endpoint, "key": self._key}
        if self._json is not None:
            kept["json"] = self._json
        else:
            kept["query"] = self._query
            kept["file_base64"] = base64.b64encode(self._file).decode("ascii")
        kept["metadata"] = self._metadata
        return _dumps(kept).encode("ascii")

    @staticmethod
    def from_kept(kept: Union[str, bytes]) -> Operation[Any]:
        """What a journal kept. Raises :class:`NotSent` where it is no kept operation."""
        try:
            wire = json.loads(kept)
        except (ValueError, RecursionError) as error:
            raise NotSent(f"this is no kept operation: {error}") from error
        known = {"endpoint", "key", "json", "query", "file_base64", "metadata"}
        if not isinstance(wire, dict) or not set(wire) <= known:
            raise NotSent("this is no kept operation")
        endpoint, key, metadata = wire.get("endpoint"), wire.get("key"), wire.get("metadata", {})
        if endpoint not in ("chat", "parse"):
            raise NotSent("the operation is of no endpoint that this client knows")
        if not isinstance(key, str) or not isinstance(metadata, dict):
            raise NotSent("the operation has no key, or metadata that is no object")
        key = checked_key(key)
        body, query, file = wire.get("json"), wire.get("query"), wire.get("file_base64")
        if isinstance(body, str) and query is None and file is None and _is_object(body):
            return Operation(endpoint, key, metadata, json_body=body, resumed=True)
        if body is None and isinstance(query, str) and isinstance(file, str):
            try:
                content = base64.b64decode(file.encode("ascii"), validate=True)
            except (ValueError, binascii.Error) as error:
                raise NotSent(f"the operation's file is not whole: {error}") from error
            return Operation(endpoint, key, metadata, query=query, file=content, resumed=True)
        raise NotSent("the operation has no body")

    def _upload_bytes(self) -> int:
        """What goes up with it, about."""
        return len(self._file) if self._json is None else len(self._json)

    def _sending(self, attempt: int, sent_at: float) -> Sending:
        """The request as it goes out for the ``attempt``th time, from 1. Its metadata alone differs from one
        sending to the next, and is no part of its meaning."""
        told = dict(self._metadata, attempt=attempt, sent_at=_rfc3339(sent_at))
        if self._resumed:
            told["resumed"] = True
        metadata = _dumps(told)
        if self._json is not None:
            # An object that is never empty, see where bodies are made and read.
            opened = self._json.rstrip().removesuffix("}")
            body = f'{opened},"metadata":{metadata}}}'.encode("utf-8")
            return Sending("application/json", "", body)
        added = urlencode({"metadata": metadata})
        query = f"{self._query}&{added}" if self._query else added
        return Sending("application/octet-stream", query, self._file)


def freeze(request: Union[ChatRequest, ParseRequest], key: str) -> Operation[Any]:
    """The operation of a request. Raises :class:`NotSent` for what JSON cannot hold."""
    try:
        # Once there and back, so that what the caller changes later changes nothing here.
        metadata = json.loads(_dumps(dict(request.metadata)))
        if isinstance(request, ChatRequest):
            return Operation("chat", key, metadata, json_body=_dumps(_chat(request)))
        options = _set({"profile": request.profile, "allow_gaps": request.allow_gaps, "model": request.model})
        if request.kind == "file":
            if not isinstance(request.input, bytes):
                raise TypeError("a file is bytes")
            words = {name: value if isinstance(value, str) else _dumps(value) for name, value in options.items()}
            return Operation("parse", key, metadata, query=urlencode(words), file=request.input)
        return Operation("parse", key, metadata, json_body=_dumps({request.kind: request.input, **options}))
    except (TypeError, ValueError, RecursionError) as error:
        raise NotSent(f"the request cannot be written: {error}") from error


def checked_key(text: str) -> str:
    """A key in the form in which it is sent. Raises :class:`NotSent` for text that the server would not take
    for a key."""
    text = text.strip(" \t\r\n\f")
    if len(text) >= 2 and text.startswith('"') and text.endswith('"'):
        inner = text[1:-1]
        if re.fullmatch(r'(?:[^"\\]|\\["\\])*', inner, re.DOTALL) is None:
            raise NotSent("the key is not well quoted")
        text = re.sub(r"\\(.)", r"\1", inner)
    elif text.startswith('"') or text.endswith('"'):
        raise NotSent("the key is not well quoted")
    if not text:
        raise NotSent("the key is empty")
    if re.fullmatch(r"[!-+\--~]+", text) is None:
        raise NotSent("the key holds a character that is not allowed: printable ASCII without blanks and commas is")
    if text.startswith('"') or text.endswith('"'):
        raise NotSent("the key is not well quoted")
    if len(text) > MAX_KEY_CHARS:
        raise NotSent(f"the key is longer than {MAX_KEY_CHARS} characters")
    if re.fullmatch(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", text):
        as_uuid = uuid.UUID(text)
        # A version 8 of the caller's own is text like any other to the server.
        if as_uuid.version != 8:
            return str(as_uuid)
    return text


def _chat(request: ChatRequest) -> dict[str, Any]:
    body: dict[str, Any] = {"conversation_id": request.conversation, "message": request.message}
    if request.model is not None:
        body["model"] = request.model
    options = _set({"temperature": request.temperature, "max_tokens": request.max_tokens})
    if options:
        body["options"] = options
    return body


def _set(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _is_object(text: str) -> bool:
    """Whether metadata can stand behind its last member."""
    try:
        wire = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(wire, dict) and bool(wire)


def _rfc3339(seconds: float) -> str:
    date = datetime.fromtimestamp(round(seconds * 1000) / 1000, timezone.utc)
    return date.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
