"""When and how often to send again, as a caller sets it, and what a caller is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence


@dataclass(frozen=True)
class RetryPolicy:
    """When and how often to send again."""

    waits: Sequence[float] = (1.0, 3.0)
    """Before each repeat after a broken connection or 502, 503, 504; as many repeats as there are waits.
    What helps at all has helped by then."""
    jitter: float = 0.2
    """Each wait is longer at random, by up to this share of it (0 to 1)."""
    longest_wait: float = 60.0
    """A server that asks for more than this is not waited for."""

    @staticmethod
    def never() -> RetryPolicy:
        """Sends once. A 409 is waited out all the same."""
        return RetryPolicy(waits=())


@dataclass(frozen=True)
class Repeat:
    """Told before a request is sent again."""

    key: str
    attempt: int
    """Of the sending that comes, from 2."""
    after: float
    status: Optional[int]
    """What the server answered; ``None``: the connection broke."""
