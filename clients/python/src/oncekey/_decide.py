"""When to send the same request again, and after what time: pure, so that a table can hold it.

A repeat helps against a connection that broke and against 502, 503 and 504: nothing is known, or nothing was
committed. 409 with a time means that an answer is on its way. Everything else would be said again, and is not
asked again. ``clients/vectors.json`` holds this and the clients in other languages to the same answers.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Optional, Union

from ._policy import RetryPolicy

MAX_RETRY_AFTER = 31 * 24 * 60 * 60
"""The longest wait that is believed, in seconds. Above it the header is garbage."""


@dataclass(frozen=True)
class Lost:
    """The connection was refused, or broke before the answer's end."""


@dataclass(frozen=True)
class TimedOut:
    """The client's own time-out passed."""


@dataclass(frozen=True)
class Answered:
    """An answer, or the verdict at the end of a stream."""

    status: int
    wait: Optional[float] = None
    """The time after which to ask again, see :func:`told_wait`."""
    retryable: Optional[bool] = None
    """``retryable`` of the problem, where it has one."""


Situation = Union[Lost, TimedOut, Answered]


class Ending(enum.Enum):
    """Whom to tell, and what, where there is no answer."""

    CONNECTION_LOST = "connection_lost"
    TIMED_OUT = "timed_out"
    OUR_SIDE = "our_side"
    YOUR_INPUT = "your_input"


@dataclass(frozen=True)
class Done:
    """There is an answer."""


@dataclass(frozen=True)
class Again:
    """Send the same request with the same key, this much later."""

    after: float
    counts: bool


@dataclass(frozen=True)
class Stop:
    """A repeat does not help, or was tried often enough."""

    ending: Ending


Decision = Union[Done, Again, Stop]


def decide(policy: RetryPolicy, situation: Situation, repeats: int, left: float, chance: float) -> Decision:
    """The decision. ``repeats``: after a broken connection or a 5xx, until now (asking again after a 409 is
    none). ``left``: until the client's own time-out. ``chance``, from 0 to 1, spreads the waits of many clients
    that were sent away together.

    A wait that the server names is a least one: neither it nor the policy's own is undercut. One longer than the
    policy's longest ends the repeats of a 5xx, since a person should not wait for it blindly; of a 409 it is cut,
    since asking early costs nothing. What would end after the time-out does not begin.
    """
    if isinstance(situation, TimedOut):
        return Stop(Ending.TIMED_OUT)
    if isinstance(situation, Lost):
        return _repeat(policy, None, repeats, left, chance, Ending.CONNECTION_LOST)
    status, told, retryable = situation.status, situation.wait, situation.retryable
    if 200 <= status <= 299:
        return Done()
    if 502 <= status <= 504:
        # Told by whoever knows best; on any other status it is the status that counts.
        if retryable is False:
            return Stop(Ending.OUR_SIDE)
        return _repeat(policy, told, repeats, left, chance, Ending.OUR_SIDE)
    if status == 409 and told is not None and retryable is not False:
        after = _spread(min(told, policy.longest_wait), policy, chance)
        return _in_time(after, False, left, Ending.TIMED_OUT)
    return Stop(Ending.YOUR_INPUT if 400 <= status <= 499 else Ending.OUR_SIDE)


def _repeat(
    policy: RetryPolicy, told: Optional[float], repeats: int, left: float, chance: float, ending: Ending
) -> Decision:
    if repeats >= len(policy.waits) or (told is not None and told > policy.longest_wait):
        return Stop(ending)
    wait = max(told or 0.0, policy.waits[repeats])
    return _in_time(_spread(wait, policy, chance), True, left, ending)


def _in_time(after: float, counts: bool, left: float, ending: Ending) -> Decision:
    return Again(after, counts) if after < left else Stop(ending)


def _spread(wait: float, policy: RetryPolicy, chance: float) -> float:
    """Never earlier, and up to the policy's share later."""
    return wait * (1.0 + _clamp(policy.jitter) * _clamp(chance))


def _clamp(share: float) -> float:
    return min(max(share, 0.0), 1.0)


def told_wait(told: Optional[float], retry_after: Optional[str], now: float) -> Optional[float]:
    """The seconds that an answer names. Those that the problem told go first, since they are exact and nobody
    between us and the server writes them; then ``Retry-After``, in seconds or as a date, counted from
    ``now`` (seconds since 1970). ``None`` where nothing usable is said."""
    if told is not None:
        return told
    if retry_after is None:
        return None
    text = retry_after.strip(" \t")
    if re.fullmatch(r"[0-9]{1,15}(\.[0-9]*)?", text):
        wait = float(text)
    else:
        date = _http_date(text)
        if date is None:
            return None
        wait = date - now
    return wait if 0 < wait <= MAX_RETRY_AFTER else None


_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TIME = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_FORMS = tuple(
    re.compile(form)
    for form in (
        rf"(?P<week>[A-Z][a-z]{{2}}), (?P<day>[0-9]{{2}}) (?P<month>[A-Z][a-z]{{2}}) (?P<year>[0-9]{{4}}) {_TIME} GMT",
        rf"(?P<week>[A-Z][a-z]{{5,8}}), (?P<day>[0-9]{{2}})-(?P<month>[A-Z][a-z]{{2}})-(?P<year>[0-9]{{2}}) {_TIME} GMT",
        rf"(?P<week>[A-Z][a-z]{{2}}) (?P<month>[A-Z][a-z]{{2}}) (?P<day>[ 0-9][0-9]) {_TIME} (?P<year>[0-9]{{4}})",
    )
)


def _http_date(text: str) -> Optional[float]:
    """One of the three forms of RFC 9110, in seconds since 1970."""
    for form in _FORMS:
        found = form.fullmatch(text)
        if found is None or found["month"] not in _MONTHS:
            continue
        year = int(found["year"])
        if len(found["year"]) == 2:
            year += 2000 if year < 70 else 1900
        try:
            date = datetime(
                year,
                _MONTHS.index(found["month"]) + 1,
                int(found["day"]),
                int(found["hour"]),
                int(found["minute"]),
                int(found["second"]),
                tzinfo=timezone.utc,
            )
        except ValueError:
            return None
        week = _DAYS[date.weekday()]
        return date.timestamp() if found["week"] in (week, week[:3]) else None
    return None
