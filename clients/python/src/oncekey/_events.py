"""Bytes as server-sent events, by the standard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Event:
    """One event."""

    id: Optional[str]
    name: str
    data: str


class TooLong(Exception):
    """An event is longer than any of the server's."""


class Decoder:
    """Takes pieces as they come, and gives the events that they end. Half an event at the end is none."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._begun = False
        self._held = b""
        # Where the search for the end of the line goes on: what came before has none.
        self._searched = 0
        self._id: Optional[str] = None
        self._name = ""
        self._data: list[str] = []
        self._size = 0

    def take(self, piece: bytes) -> list[Event]:
        """Raises :class:`TooLong`."""
        self._held += piece
        if not self._begun:
            if len(self._held) < len(_BOM) and _BOM.startswith(self._held):
                return []
            self._begun = True
            self._held = self._held[len(_BOM) :] if self._held.startswith(_BOM) else self._held
        events: list[Event] = []
        while True:
            line = self._line()
            if line is None:
                break
            event = self._take_line(line)
            if event is not None:
                events.append(event)
        if len(self._held) + self._size > self._longest:
            raise TooLong()
        return events

    def _line(self) -> Optional[bytes]:
        """The next whole line, without its end: CR LF, LF or CR."""
        ends = [at for at in (self._held.find(b"\n", self._searched), self._held.find(b"\r", self._searched)) if at >= 0]
        end = min(ends, default=-1)
        # A CR at the end of a piece may have its LF in the next.
        if end < 0 or (self._held[end : end + 1] == b"\r" and end + 1 == len(self._held)):
            self._searched = len(self._held) if end < 0 else end
            return None
        line, rest = self._held[:end], self._held[end:]
        self._held = rest[2:] if rest.startswith(b"\r\n") else rest[1:]
        self._searched = 0
        return line

    def _take_line(self, line: bytes) -> Optional[Event]:
        if not line:
            # Without data it is none.
            event = Event(self._id, self._name or "message", "\n".join(self._data)) if self._data else None
            self._clear()
            return event
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "data":
            self._data.append(value)
            self._size += len(line)
        elif name == "event":
            self._name = value
        elif name == "id" and "\0" not in value:
            self._id = value
        return None

    def _clear(self) -> None:
        self._id, self._name, self._data, self._size = None, "", [], 0
