"""The interval in which a job probably starts: an estimate, corrected by how wrong past estimates were.

Past estimates are compared with the times that passed: the quantiles of these ratios give the interval.
Jobs that still wait count with the time so far, as in survival analysis: otherwise only those that started
soon would count. The levels of the quantiles move with the errors of past intervals, each end for itself, so
that nine of ten hold also on days that are unlike those before.

Source: I. Gibbs and E. Candès, Adaptive Conformal Inference Under Distribution Shift, 2021.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from matcher.forecast.product_limit import ProductLimit
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
    known = ProductLimit((each.ratio, each.has_started) for each in past)
    least, most = _find_quantile(known, early), _find_quantile(known, 1 - late)
    end = None if most is None or most * estimate > LONGEST else most * estimate
    return StartInterval(least=min((least or 0.0) * estimate, LONGEST), most=end)


def _find_quantile(known: ProductLimit, level: float) -> float | None:
    """The ratio that a share of forecasts does not exceed; None: not known, too many of them still wait."""
    if level <= 0:
        return 0.0
    found = known.find(level)
    if found is None and known.shares[-1] >= 1 - _MISSES:
        return _BEYOND * known.times[-1]
    return found
