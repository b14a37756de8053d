"""Correcting shares by use: who had less than was due gets more for a while, who had more gets less.

Use is looked at over several slices of time. In each, a holder's factor is the fraction that it is due
over the fraction that it used, within bounds; the slices count by their weights. What the holders have
together stays the same: corrections move shares between them, and take nothing from those next door.

Source: DIRAC's SharesCorrector; there the sum of the shares may grow.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Generic, TypeVar

Who = TypeVar("Who", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice(Generic[Who]):
    """What was used in a slice of time."""

    used: Mapping[Who, float]  #: in any unit; who is not in it used nothing
    weight: float  #: among the slices
    max_correction: float  #: at least 1: the factor is between its inverse and itself


def corrected(
    due: Mapping[Who, float], slices: Sequence[Slice[Who]], *, max_correction: float
) -> Mapping[Who, float]:
    """The shares as they are to be now.

    Args:
        due: The shares of all who have jobs waiting.
        slices: What was used; those in which none of them used anything do not count.
        max_correction: Bound of a holder's factor over all slices, at least 1.
    """
    telling = [each for each in slices if _together(each.used, due)]
    total = fsum(due.values())
    if not telling or not total:
        return due
    weight = fsum(each.weight for each in telling)
    moved = dict.fromkeys(due, 0.0)
    for who, share in due.items():
        factor = fsum(each.weight / weight * _factor(who, due, each) for each in telling)
        moved[who] = share * _within(factor, max_correction)
    scale = total / fsum(moved.values())
    return {who: share * scale for who, share in moved.items()}


def _factor(who: Who, due: Mapping[Who, float], given: Slice[Who]) -> float:
    expected = due[who] / fsum(due.values())
    used = given.used.get(who, 0.0) / _together(given.used, due)
    return _within(expected / used, given.max_correction) if used else given.max_correction


def _together(used: Mapping[Who, float], due: Mapping[Who, float]) -> float:
    """What those used who have jobs waiting."""
    return fsum(used.get(each, 0.0) for each in due)


def _within(factor: float, most: float) -> float:
    return min(max(factor, 1 / most), most)
