"""The interval in which a job probably starts: an estimate, corrected by how wrong past estimates were.

Past estimates are compared with the times that passed: the quantiles of these ratios give the interval.
Jobs that still wait count with the time so far, as in survival analysis: otherwise only those that started
soon would count. The levels of the quantiles move with the errors of past intervals, each end for itself, so
that nine of ten hold also on days that are unlike those before.

Source: E. L. Kaplan and P. Meier, Nonparametric Estimation from Incomplete Observations, 1958; I. Gibbs and
E. Candès, Adaptive Conformal Inference Under Distribution Shift, 2021.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from taskqueue.past_forecasts import PastForecast, StartInterval

#: Started jobs of past forecasts below which there is no interval.
LEAST: Final = 30
#: Seconds beyond which nothing is foretold: a year.
LONGEST: Final = 365 * 86_400.0
#: Share of forecasts that may miss, at each end.
_MISSES: Final = 0.05
#: Change of the level by one miss.
_STEP: Final = 0.003
#: Factor beyond all that was seen, where more than that is missed.
_BEYOND: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldForecasts:
    """How many past intervals held."""

    held: int
    of: int


def count_held(past: Iterable[PastForecast]) -> HeldForecasts:
    """How many of those held that are judged."""
    judged = [each.judged for each in past if each.judged is not None]
    return HeldForecasts(held=sum(not any(each) for each in judged), of=len(judged))


def find_interval(estimate: float, past: Sequence[PastForecast]) -> StartInterval | None:
    """The interval of a new forecast; None: too few past ones have started."""
    if sum(each.has_started for each in past) < LEAST:
        return None
    judged = [each.judged for each in past if each.judged is not None]
    early, late = (_MISSES + _STEP * sum(_MISSES - each[end] for each in judged) for end in (0, 1))
    known = _accumulate(past)
    least, most = _find_quantile(known, early), _find_quantile(known, 1 - late)
    end = None if most is None or most * estimate > LONGEST else most * estimate
    return StartInterval(least=min((least or 0.0) * estimate, LONGEST), most=end)


def _accumulate(past: Iterable[PastForecast]) -> list[tuple[float, float]]:
    """Ratios at which jobs started, in order, each with the share of forecasts that do not exceed it."""
    ordered = sorted((each.ratio, not each.has_started) for each in past)
    left = 1.0
    found: list[tuple[float, float]] = []
    for number, (ratio, is_open) in enumerate(ordered):
        if not is_open:
            left *= 1 - 1 / (len(ordered) - number)
            found.append((ratio, 1 - left))
    return found


def _find_quantile(known: Sequence[tuple[float, float]], level: float) -> float | None:
    """The ratio that a share of forecasts does not exceed; None: not known, too many of them still wait."""
    if level <= 0:
        return 0.0
    for ratio, share in known:
        if share >= level:
            return ratio
    last, share = known[-1]
    return _BEYOND * last if share >= 1 - _MISSES else None
