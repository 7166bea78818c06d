"""Time, chance and ids, handed in: a test gives a client another clock."""

from __future__ import annotations

import os
import random
import time
import uuid


class Clock:
    """The machine's clock."""

    def now(self) -> float:
        """Seconds on a line that never goes back and knows no dates."""
        return time.monotonic()

    def utc_now(self) -> float:
        """Seconds since 1970, UTC; may jump in either direction."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def chance(self) -> float:
        """At random, from 0 to 1."""
        return random.random()

    def random_bytes(self, count: int) -> bytes:
        """Bytes that nobody can guess."""
        return os.urandom(count)

    def new_key(self) -> str:
        """A new UUIDv7: sorted by this clock's time, otherwise random."""
        millis = max(0, int(self.utc_now() * 1000)) & ((1 << 48) - 1)
        rest = int.from_bytes(self.random_bytes(10), "big")
        bits = (millis << 80) | rest
        bits = bits & ~(0xF << 76) | (0x7 << 76)
        bits = bits & ~(0x3 << 62) | (0x2 << 62)
        return str(uuid.UUID(int=bits))
