"""The sums of the accounts as a plot."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pilotage.service.models.accounting import AccountingAnswer, AccountingRow
from pilotage.service.pages import plot
from pilotage.service.pages.plot import Plot, Series
from taskqueue.accounting.keys import hour_of
from taskqueue.accounting.report import Bucket

_HOUR: Final = 3600.0
_LENGTHS: Final = {Bucket.HOUR: timedelta(hours=1), Bucket.DAY: timedelta(days=1)}
_ABOUT: Final = {**_LENGTHS, Bucket.MONTH: timedelta(days=30), Bucket.YEAR: timedelta(days=365)}
#: Steps of a picture, where nobody says; and more than what are no picture.
_FITTING, _MOST_STEPS = 125, 400
#: What stands where a value is empty: a job that never ran has no site.
NOTHING: Final = "(none)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What can be plotted."""

    name: str  #: in the address
    title: str
    unit: str
    of: Callable[[AccountingRow], float]
    adds_up: bool = True


EFFICIENCY: Final = "efficiency"
WAITED: Final = "waited"
QUANTITIES: Final[Sequence[Quantity]] = (
    Quantity(name="jobs", title="Jobs that ended", unit="jobs", of=lambda row: row.jobs),
    Quantity(name="wall", title="Wall time", unit="hours", of=lambda row: row.wall_seconds / _HOUR),
    Quantity(name="core", title="Core time", unit="core hours", of=lambda row: row.core_seconds / _HOUR),
    Quantity(name="cpu", title="CPU time", unit="hours", of=lambda row: row.cpu_seconds / _HOUR),
    Quantity(
        name="normalised",
        title="Normalised CPU time",
        unit="hours × power",
        of=lambda row: row.normalised_cpu_seconds / _HOUR,
    ),
    Quantity(
        name=EFFICIENCY,
        title="CPU efficiency",
        unit="%",
        of=lambda row: 100 * (row.cpu_efficiency or 0),
        adds_up=False,
    ),
    Quantity(
        name=WAITED,
        title="Time waited",
        unit="hours",
        of=lambda row: sum(row.waited.values()) / _HOUR,
    ),
)


def quantity(name: str) -> Quantity:
    """The one with this name; the first one, if there is none."""
    return next((each for each in QUANTITIES if each.name == name), QUANTITIES[0])


def bucket_for(since: datetime, until: datetime, wanted: Bucket | None = None) -> Bucket:
    """The length of a step of time: the wanted one, or the next that makes a picture."""
    lengths = list(Bucket)
    most = _FITTING if wanted is None else _MOST_STEPS
    for bucket in lengths if wanted is None else lengths[lengths.index(wanted) :]:
        if (until - since) / _ABOUT[bucket] <= most:
            return bucket
    return Bucket.YEAR


def draw(answer: AccountingAnswer, wanted: Quantity) -> tuple[Plot, list[datetime]]:
    """The plot, and the times of its steps."""
    bucket = answer.bucket or Bucket.DAY
    steps = begins(answer.since, answer.until, bucket)
    place = {at: number for number, at in enumerate(steps)}
    values = _by_cause(answer, place) if wanted.name == WAITED else _by_name(answer, place, wanted)
    if wanted.adds_up:
        return plot.stacked(plot.largest(values), len(steps)), steps
    return plot.lines(_most_used(answer, values), len(steps), least_top=100), steps


def begins(since: datetime, until: datetime, bucket: Bucket) -> list[datetime]:
    """Where each step begins, from that in which `since` is to that before `until`."""
    at = _floor(since, bucket)
    found = []
    while at < until:
        found.append(at)
        at = _next(at, bucket)
    return found


def name_of(row: AccountingRow, by: Sequence[str]) -> str:
    """The values that a row is about, as one."""
    extra = row.model_extra or {}
    return " · ".join(str(extra[name]) or NOTHING for name in by)


def _by_name(
    answer: AccountingAnswer, place: Mapping[datetime, int], wanted: Quantity
) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for row in answer.rows:
        series = values.setdefault(name_of(row, answer.by), [0.0] * len(place))
        series[_step(row, place)] += wanted.of(row)
    return values


def _by_cause(answer: AccountingAnswer, place: Mapping[datetime, int]) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for row in answer.rows:
        for cause, seconds in row.waited.items():
            values.setdefault(cause, [0.0] * len(place))[_step(row, place)] += seconds / _HOUR
    return values


def _most_used(answer: AccountingAnswer, values: Mapping[str, Sequence[float]]) -> list[Series]:
    """Those with the most core time, since efficiencies cannot be added; unknown where nothing was told."""
    core: dict[str, float] = {}
    for row in answer.rows:
        if row.cpu_efficiency is not None:
            name = name_of(row, answer.by)
            core[name] = core.get(name, 0.0) + row.core_seconds
    by_size = sorted(core, key=lambda name: (-core[name], name))[: plot.MOST_SERIES]
    return [
        Series(name=name, number=number, values=[value or None for value in values[name]], total=core[name])
        for number, name in enumerate(by_size, 1)
    ]


def _step(row: AccountingRow, place: Mapping[datetime, int]) -> int:
    at: datetime = (row.model_extra or {})["at"]
    return place[at]


def _floor(at: datetime, bucket: Bucket) -> datetime:
    changes: dict[Bucket, dict[str, Any]] = {
        Bucket.HOUR: {},
        Bucket.DAY: {"hour": 0},
        Bucket.MONTH: {"hour": 0, "day": 1},
        Bucket.YEAR: {"hour": 0, "day": 1, "month": 1},
    }
    return hour_of(at).replace(**changes[bucket])


def _next(at: datetime, bucket: Bucket) -> datetime:
    if bucket in _LENGTHS:
        return at + _LENGTHS[bucket]
    if bucket is Bucket.YEAR:
        return at.replace(year=at.year + 1)
    return at.replace(year=at.year + at.month // 12, month=at.month % 12 + 1)
