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
        # Of the line that is not over, or of what may be a mark of the encoding; each byte is looked at once.
        self._held = bytearray()
        # The last line ended with a CR, which a LF may still belong to.
        self._after_cr = False
        self._id: Optional[str] = None
        self._name = ""
        self._data: list[str] = []
        self._size = 0

    def take(self, piece: bytes) -> list[Event]:
        """Raises :class:`TooLong`."""
        if not self._begun:
            piece = bytes(self._held) + piece
            self._held.clear()
            if len(piece) < len(_BOM) and _BOM.startswith(piece):
                self._held += piece
                return []
            self._begun = True
            piece = piece.removeprefix(_BOM)
        events: list[Event] = []
        at = 0
        while at < len(piece):
            if self._after_cr:
                self._after_cr = False
                at += int(piece.startswith(b"\n", at))
            end = _line_end(piece, at)
            self._held += piece[at : len(piece) if end < 0 else end]
            if end < 0:
                break
            event = self._take_line(bytes(self._held))
            if event is not None:
                events.append(event)
            self._held.clear()
            self._after_cr = piece.startswith(b"\r", end)
            at = end + 1
        if len(self._held) + self._size > self._longest:
            raise TooLong()
        return events

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


def _line_end(piece: bytes, at: int) -> int:
    """Where the line ends, with CR LF, LF or CR; -1: not in this piece."""
    lf = piece.find(b"\n", at)
    cr = piece.find(b"\r", at, len(piece) if lf < 0 else lf)
    return lf if cr < 0 else cr
