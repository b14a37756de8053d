"""What became of the last pilots of a post, and how careful that makes us.

It is read off the service's list of pilots, so a director that was started again knows it, too.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """How long nothing is sent after bad experience."""

    first: timedelta = timedelta(minutes=2)
    longest: timedelta = timedelta(hours=1)  #: it doubles up to this


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A pilot of which it is known whether sending it was worth it."""

    sent_at: datetime
    known_at: datetime
    good: bool  #: it had a job; else it failed, or ended without one


def most_to_send(trials: Iterable[Trial], pause: Pause, now: datetime) -> int | None:
    """New pilots of a post at most; None: experience sets no limit.

    None are sent during a pause, which is the longer the more often things went wrong since the last good
    pilot was sent; then one, to see whether it is better.
    """
    known = list(trials)
    good = max((trial.sent_at for trial in known if trial.good), default=None)
    bad = [trial for trial in known if not trial.good and (good is None or trial.sent_at > good)]
    if not bad:
        return None
    times = _times((trial.known_at for trial in bad), apart=pause.first)
    length = min(pause.longest, pause.first * 2 ** min(times - 1, 20))
    return 0 if now < max(trial.known_at for trial in bad) + length else 1


def _times(moments: Iterable[datetime], *, apart: timedelta) -> int:
    """How often something happened; what happens together happens once."""
    counted: list[datetime] = []
    for moment in sorted(moments):
        if not counted or moment - counted[-1] >= apart:
            counted.append(moment)
    return len(counted)
