"""How often and how long one operation is asked for: what the decisions are fed with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from ._clock import Clock
from ._problem import Problem


@dataclass(frozen=True)
class Setback:
    """Why one sending brought no answer: a broken connection has a ``cause``, an answer that is none a ``problem``
    (with ``readable`` false where it claims to be a success), and the client's own time-out neither."""

    cause: Optional[str] = None
    problem: Optional[Problem] = None
    readable: bool = True

    @staticmethod
    def of_loss(cause: str) -> Setback:
        return Setback(cause=cause)

    @staticmethod
    def of_time_out() -> Setback:
        return Setback()

    @staticmethod
    def of_problem(problem: Problem, readable: bool = True) -> Setback:
        return Setback(problem=problem, readable=readable)


class Tries:
    """The count for one operation."""

    def __init__(self, clock: Clock, timeout: float) -> None:
        self._clock = clock
        self._deadline = clock.now() + timeout
        self.attempts = 0
        """Sendings so far."""
        self._lost = 0
        self._failed = 0

    def left(self) -> float:
        """Seconds until the client's own time-out; never less than a moment."""
        return max(self._deadline - self._clock.now(), 0.001)

    def repeats(self) -> int:
        return self._lost + self._failed

    def got_further(self) -> None:
        """The stream brought something new: a way that breaks every minute is not one that leads nowhere."""
        self._lost = 0

    def count(self, setback: Setback, counts: bool) -> None:
        if setback.cause is not None:
            self._lost += 1
        else:
            self._failed += int(counts)
