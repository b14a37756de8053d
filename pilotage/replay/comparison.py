"""Figures of a day side by side: recorded, replayed as it was, replayed with a changed configuration.

By how much the second differs from the first is how wrong a replay is of this figure. So a change that makes
less of a difference than that has no effect, as far as can be told.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeAlias

from pilotage.replay.recorded_day import RecordedDay, Stay
from pilotage.replay.simulation import ReplayedDay

#: Names of one kind that are listed: those with the most jobs.
MOST_NAMES: Final = 20
_HOUR: Final = 3600.0


class Figure(StrEnum):
    """What is compared."""

    P50 = "waiting p50"  #: seconds
    P90 = "waiting p90"  #: seconds
    STARTS = "starts"  #: jobs
    IDLE = "idle core hours"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFigure:
    """One figure of one subject."""

    by: str  #: VO, group, class, site, all
    name: str
    figure: Figure
    recorded: float
    replayed: float
    changed: float | None  #: None: no change was replayed

    @property
    def error(self) -> float:
        """By how much the replay of the day as it was is wrong."""
        return abs(self.replayed - self.recorded)

    @property
    def effect(self) -> float | None:
        """What the change makes of it; None: nothing, or less than the error."""
        if self.changed is None:
            return None
        found = self.changed - self.replayed
        return found if abs(found) > self.error else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """When and where the jobs of a day were started; None: they were not."""

    starts: Sequence[tuple[datetime, str] | None]
    busy: float


_Key: TypeAlias = tuple[str, str]


def compare(
    day: RecordedDay, replayed: ReplayedDay, changed: ReplayedDay | None = None
) -> list[ComparedFigure]:
    """The figures by VO, group, class and site, those with the most jobs first, and of all."""
    outcomes = [_find_recorded(day), _find_replayed(replayed)]
    if changed is not None:
        outcomes.append(_find_replayed(changed))
    found: list[ComparedFigure] = []
    subjects = _group(day.stays, lambda stay: _list_subjects(day, stay))
    for (by, name), members in subjects.items():
        waited = [sorted(_waited(day, number, each) for number in members) for each in outcomes]
        for figure, part in ((Figure.P50, 0.5), (Figure.P90, 0.9)):
            found.append(_figure(by, name, figure, [_quantile(each, part) for each in waited]))
    at_sites = [Counter(start[1] for start in each.starts if start is not None) for each in outcomes]
    for site, _ in sum(at_sites, Counter[str]()).most_common(MOST_NAMES):
        found.append(_figure("site", site, Figure.STARTS, [each[site] for each in at_sites]))
    started = [each.total() for each in at_sites]
    idle = [max(0.0, day.offered - each.busy) / _HOUR for each in outcomes]
    found.append(_figure("all", "", Figure.STARTS, started))
    found.append(_figure("all", "", Figure.IDLE, idle))
    return found


def _figure(by: str, name: str, figure: Figure, values: Sequence[float]) -> ComparedFigure:
    recorded, replayed, *changed = values
    return ComparedFigure(
        by=by,
        name=name,
        figure=figure,
        recorded=recorded,
        replayed=replayed,
        changed=changed[0] if changed else None,
    )


def _find_recorded(day: RecordedDay) -> _Outcome:
    starts = [
        (each.until, each.site) if each.site and each.until is not None and each.until < day.end else None
        for each in day.stays
    ]
    return _Outcome(starts=starts, busy=day.busy)


def _find_replayed(replayed: ReplayedDay) -> _Outcome:
    starts = [None if each is None else (each.at, each.site) for each in replayed.starts]
    return _Outcome(starts=starts, busy=replayed.busy)


def _waited(day: RecordedDay, number: int, outcome: _Outcome) -> float:
    """Seconds that a job waited: until its start, until it was withdrawn, or until the end of the day."""
    stay, start = day.stays[number], outcome.starts[number]
    end = day.end if stay.site or stay.until is None else min(stay.until, day.end)
    return ((end if start is None else start[0]) - stay.since).total_seconds()


def _quantile(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _list_subjects(day: RecordedDay, stay: Stay) -> Iterator[_Key]:
    kind, asked = stay.kind, day.classes[stay.kind.digest]
    yield "VO", kind.vo
    yield "group", kind.owner_group
    types = ",".join(sorted(asked.job_types))
    yield "class", " ".join(filter(None, (types, f"{asked.cpu_time:g} s", kind.digest[:8])))


def _group(
    stays: Sequence[Stay], list_subjects: Callable[[Stay], Iterable[_Key]]
) -> Mapping[_Key, Sequence[int]]:
    """The jobs of each subject by their places, the largest ones of each kind first."""
    known: dict[object, list[_Key]] = {}
    members: defaultdict[_Key, list[int]] = defaultdict(list)
    for number, stay in enumerate(stays):
        if stay.kind not in known:
            known[stay.kind] = list(list_subjects(stay))
        for subject in known[stay.kind]:
            members[subject].append(number)
    kept: dict[_Key, Sequence[int]] = {}
    for by in dict.fromkeys(subject[0] for subject in members):
        own = sorted(
            (each for each in members if each[0] == by), key=lambda each: (-len(members[each]), each[1])
        )
        kept |= {each: members[each] for each in own[:MOST_NAMES]}
    return kept
