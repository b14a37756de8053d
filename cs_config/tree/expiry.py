"""Expiry of dynamic attributes: statements of a resource about its current state.

If a section of the tree has `update_time` (seconds since the epoch) and `expiry_time` (seconds after that),
its dynamic attributes are undefined from their sum on, and are not inherited from the levels above either.
All other attributes stay.

Source: gLite's CE ads.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from cs_config.source.sections import Leaf, Section, as_list
from cs_config.tree.inheritance import TIMES, UPDATE_TIME, Level, Parameter, Settings
from requirements.errors import Problem
from requirements.values import fold

SETTING = "DynamicAttributes"
_PATH = f"Resources/Computing/{SETTING}"
_ALLOWED = "a list of names, of which the last sign may be *: [GlueCEState*, FreeCPUs]"
#: The default set of dynamic attributes.
DYNAMIC = (
    "GlueCEState*",
    "FreeCPUs",
    "FreeJobSlots",
    "RunningJobs",
    "WaitingJobs",
    "TotalJobs",
    "EstimatedResponseTime",
    "WorstResponseTime",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dynamic:
    """The set of dynamic attributes."""

    names: frozenset[str]  #: folded
    prefixes: tuple[str, ...]  #: folded prefixes of names

    def has(self, folded: str) -> bool:
        """Whether an attribute, by its folded name, is dynamic."""
        return folded not in TIMES and (folded in self.names or folded.startswith(self.prefixes))


def match_dynamic(patterns: Iterable[str] = DYNAMIC) -> Dynamic:
    """The set of attributes given by names, or by prefixes with `*` at the end."""
    folded = frozenset(map(fold, patterns))
    prefixes = {name.removesuffix("*") for name in folded if name.endswith("*")}
    return Dynamic(names=folded, prefixes=tuple(sorted(prefixes)))


def read_dynamic(root: Section, file: str) -> tuple[Dynamic, list[Problem]]:
    """Read the dynamic attributes in the section `Resources/Computing`, and its problems."""
    entry = root.section("Resources").section("Computing").entries.get(SETTING)
    if entry is None:
        return match_dynamic(), []
    patterns = _patterns(entry)
    if patterns is None:
        message = f"{_ALLOWED} is needed here"
        return match_dynamic(), [Problem(path=_PATH, message=message, file=file, line=entry.line)]
    return match_dynamic(patterns), []


def _patterns(entry: Leaf | Section) -> list[str] | None:
    if isinstance(entry, Section):
        return None
    items = as_list(entry.value)
    named = [item for item in items if isinstance(item, str) and item.strip("*") and "*" not in item[:-1]]
    return named if len(named) == len(items) else None


def warn_of_lone_times(levels: Iterable[Level]) -> Iterator[Problem]:
    """Warn about one of the two times without the other: nothing expires there."""
    for level in levels:
        for settings in (level.plain, *level.by_vo.values()):
            stated = [each for name in sorted(TIMES) if (each := settings.get(name)) is not None]
            if len(stated) == 1:
                [lone] = stated
                [other] = TIMES - {fold(lone.name)}
                message = f"nothing expires without {other} beside it"
                yield Problem(path=lone.path, message=message, file=lone.file, line=lone.line)


def list_moments(levels: Iterable[Level], which: Dynamic) -> tuple[float, ...]:
    """The moments at which values expire, in seconds since the epoch, sorted and without duplicates."""
    found = {
        moment
        for level in levels
        # Quick: hardly any of a hundred thousand levels has such values.
        if any(UPDATE_TIME in settings for settings in (level.plain, *level.by_vo.values()))
        for settings in (level.plain, *level.by_vo.values())
        if (moment := _moment(level, settings)) is not None and _expiring(settings, which)
    }
    return tuple(sorted(found))


def drop_expired(level: Level, moment: float, which: Dynamic) -> Level:
    """A level without the values that have expired; the level itself if none have."""
    gone = dict(_list_expired(level, moment, which))
    if not gone:
        return level
    return replace(
        level,
        plain={**level.plain, **dict.fromkeys(gone.get("", ()))},
        by_vo={vo: {**own, **dict.fromkeys(gone.get(vo, ()))} for vo, own in level.by_vo.items()},
        expired={vo: tuple(parameters.values()) for vo, parameters in gone.items()},
    )


def _list_expired(level: Level, moment: float, which: Dynamic) -> Iterator[tuple[str, dict[str, Parameter]]]:
    """The expired parameters, under the VO whose values they are, or the empty name."""
    for vo, settings in (("", level.plain), *level.by_vo.items()):
        end = _moment(level, settings)
        if end is not None and end <= moment and (expired := _expiring(settings, which)):
            yield vo, expired


def _moment(level: Level, settings: Settings) -> float | None:
    """When dynamic attributes of a section expire; a VO uses the common times unless it sets its own."""
    stated = [parameter.value for name in TIMES if (parameter := settings.get(name)) is not None]
    known = [time for time in stated if isinstance(time, int | float) and not isinstance(time, bool)]
    if settings is not level.plain and not known:
        return _moment(level, level.plain)
    return sum(known) if len(known) == len(TIMES) else None


def _expiring(settings: Settings, which: Dynamic) -> dict[str, Parameter]:
    return {name: each for name, each in settings.items() if each is not None and which.has(name)}
