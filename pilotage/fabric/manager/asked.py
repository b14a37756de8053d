"""Numbers that a job description asks for, read with words for the user."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from pilotage.fabric.manager.errors import UnfitJob

#: More than anybody means.
MOST = 10**12


def whole(description: Mapping[str, Any], keyword: str, *, least: int = 1) -> int | None:
    """A whole number; None: it is not stated.

    Raises:
        UnfitJob: It is something else, too small or beyond `MOST`.
    """
    stated = description.get(keyword)
    if stated is None:
        return None
    if isinstance(stated, bool) or not isinstance(stated, int | float) or stated != stated // 1:
        raise UnfitJob(f"{keyword}: {stated!r:.80} is no whole number")
    if not least <= stated <= MOST:
        raise UnfitJob(f"{keyword}: {stated!r:.80} is not allowed, only {least} to {MOST}")
    return int(stated)


def seconds(description: Mapping[str, Any], keyword: str) -> Fraction | None:
    """A time, exactly as it is written; None: it is not stated.

    Raises:
        UnfitJob: It is no number above 0.
    """
    stated = description.get(keyword)
    if stated is None:
        return None
    if isinstance(stated, bool) or not isinstance(stated, int | float) or not 0 < stated <= MOST:
        raise UnfitJob(f"{keyword}: {stated!r:.80} is no number of seconds above 0")
    return exact(stated)


def exact(number: float) -> Fraction:
    """A number as its decimal digits say: 0.3 / 0.1 is 3."""
    return Fraction(repr(number))
