"""Why there is no answer, told apart by whom it concerns."""

from __future__ import annotations

from typing import Optional

from ._problem import Problem


class ClientError(Exception):
    """Why there is no answer. The same operation may be sent again after :class:`ConnectionLost`,
    :class:`TimeoutPassed` and :class:`OurSide`; after :class:`YourInput` it gets the same refusal (but for 429,
    where a person may try later)."""

    key: Optional[str] = None
    attempts: int = 0
    """How often the request was sent."""
    problem: Optional[Problem] = None
    """What the server told, where it told something."""

    @property
    def may_be_asked_again(self) -> bool:
        """Whether the same key may bring an answer later."""
        return True


class NotSent(ClientError):
    """Nothing was sent."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"nothing was sent: {reason}")
        self.reason = reason

    @property
    def may_be_asked_again(self) -> bool:
        return False


class _Asked(ClientError):
    def __init__(self, text: str, key: str, attempts: int, problem: Optional[Problem]) -> None:
        super().__init__(text)
        self.key = key
        self.attempts = attempts
        self.problem = problem


class ConnectionLost(_Asked):
    """The way to the server broke, also when it was tried again; the operation may have run, or may still."""

    def __init__(self, key: str, attempts: int, cause: str) -> None:
        super().__init__(f"the connection was lost ({cause}; sent {attempts} times)", key, attempts, None)
        self.cause = cause


class TimeoutPassed(_Asked):
    """The client's own time-out passed; the operation may still run. ``problem`` is what the server said last,
    where it said something: that the operation runs, say."""

    def __init__(self, key: str, attempts: int, after: float, last: Optional[Problem]) -> None:
        super().__init__(f"no answer within {after:g} s", key, attempts, last)
        self.after = after


class OurSide(_Asked):
    """The service failed: 5xx, or an answer that is none."""

    problem: Problem

    def __init__(self, key: str, attempts: int, problem: Problem) -> None:
        super().__init__(f"the service failed: {problem}", key, attempts, problem)


class YourInput(_Asked):
    """The request was refused: 4xx."""

    problem: Problem

    def __init__(self, key: str, attempts: int, problem: Problem) -> None:
        super().__init__(str(problem), key, attempts, problem)

    @property
    def may_be_asked_again(self) -> bool:
        return self.problem.status == 429
