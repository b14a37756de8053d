"""`RunningLimit`, `MatchingDelay`, `Floors`: how many jobs of a kind run at a place, and how fast they begin.

The place is a site, a CE, or all sites (`AllSites`). In the operations of a VO, or of all VOs, limits name
it; at the node of a site or CE they are its own: they count the jobs of all VOs, and hold beside the others.
Floors are of sites only: what a VO has at least, as soon as it has work.

Source: DIRAC's Operations/JobScheduling. Unlike there, a limit of a CE counts the jobs of that CE, and any
attribute of a job may be limited.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from cs_config.options import bounds
from requirements.errors import did_you_mean, format_count
from requirements.values import fold

#: Attributes of a job that may be limited, each with the column of jobs that has it. `batched_claim.sql` and
#: the triggers that return the end of an attempt state the same.
ATTRIBUTES: Mapping[str, str] = {
    "JobType": "job_type",
    "JobGroup": "job_group",
    "JobName": "job_name",
    "Owner": "owner",
    "OwnerGroup": "owner_group",
    "VO": "vo",
    "SubmitPool": "submit_pool",
}
#: The scope of limits on all sites together; no wildcard, since paths of bulk edits have those.
ALL_SITES: Final = "AllSites"
_CES = "CEs"
_BURST = "Burst"
#: The values of a limit with a ramp, and of one on jobs, on cores, or on both.
_RAMP = ("Curb", "Max", "Interval")
_BOUNDS = ("count", "cores")
_PERCENT: Final = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3})?) ?%")
_WHOLE: Final = 100


@dataclass(frozen=True, slots=True)
class Floor:
    """What a VO has at least of a site while it has work there: cores, or a part of those of all jobs."""

    cores: int | None = None  #: None: a part
    percent: float | None = None

    def is_below(self, cores: int, total: int) -> bool:
        """Whether so many cores, of those of all jobs at the site, are less, with one more job to come."""
        return cores < self.compute_due(total)

    def compute_due(self, total: int) -> float:
        """The cores that it has at least, when one more is taken than all jobs at the site have."""
        return self.cores or 0 if self.percent is None else self.percent * (total + 1) / 100

    def is_within(self, other: "Floor") -> bool:
        """Whether it is no more than another one of the same kind, cores or parts."""
        if self.percent is None:
            return other.cores is not None and (self.cores or 0) <= other.cores
        return other.percent is not None and self.percent <= other.percent

    def __str__(self) -> str:
        return format_count(self.cores or 0, "core") if self.percent is None else f"{self.percent:g} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchingDelay:
    """A token bucket: one match with this value per interval, after a pause up to `burst` at once."""

    scope: str  #: a site, or ALL_SITES
    attribute: str  #: one of ATTRIBUTES
    value: str
    seconds: float
    burst: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningLimit:
    """A maximum of jobs with this value that pilots hold, of their cores, or of both.

    A job counts from the match to the end of its attempt.

    With a ramp one more job is matched per interval from the curb on, up to the maximum. With a floor, or
    with nothing, jobs are counted so that the floors of a site can be compared: the same rows serve both.

    Source: curb and max of glideinWMS frontends.
    """

    scope: str  #: `Site`, `Site/CE` or ALL_SITES
    attribute: str  #: one of ATTRIBUTES
    value: str
    most: int | None = None  #: jobs; None: any number
    cores: int | None = None  #: processors that all these jobs have together; None: any number
    curb: int | None = None  #: None: no ramp
    interval: float = 0.0  #: seconds between two matches from the curb on
    floor: Floor | None = None  #: of a VO at a site

    @property
    def is_bound(self) -> bool:
        """Whether it keeps jobs out, once they are counted."""
        return self.most is not None or self.cores is not None

    @property
    def bounds(self) -> str:
        """What it allows at a time, as text for people."""
        if not self.is_bound:
            return "no bound"
        jobs = () if self.most is None else (str(self.most),)
        cores = () if self.cores is None else (format_count(self.cores, "core"),)
        return " and ".join((*jobs, *cores))

    @property
    def ramp(self) -> MatchingDelay | None:
        """The delay that holds from the curb on."""
        if self.curb is None:
            return None
        return MatchingDelay(
            scope=self.scope, attribute=self.attribute, value=self.value, seconds=self.interval, burst=1
        )


def read_limits(raw: Mapping[str, object]) -> Iterator[RunningLimit]:
    """The limits of a section `RunningLimit`; ValueError if it is wrong."""
    for site, entry in raw.items():
        below = _section(entry, site)
        of_ces = _section(below.get(_CES, {}), f"{site}/{_CES}")
        if of_ces and _spell_scope(site) == ALL_SITES:
            _refuse(f"{site}/{_CES}: all sites together have no CE, name the site")
        places: dict[str, Mapping[str, object]] = {
            _spell_scope(site): {name: each for name, each in below.items() if name != _CES}
        }
        places |= {f"{site}/{ce}": _section(each, f"{site}/{_CES}/{ce}") for ce, each in of_ces.items()}
        for scope, limits in places.items():
            yield from read_limits_at(scope, limits)


def read_limits_at(scope: str, raw: Mapping[str, object]) -> Iterator[RunningLimit]:
    """The limits `<Attribute>/<value>: N`, `{count, cores}` or `{Curb, Max, Interval}`, of one place.

    ValueError if one is wrong.
    """
    for attribute, value, stated in _values(raw, scope):
        path = f"{scope}/{attribute}/{value}"
        limit = RunningLimit(scope=scope, attribute=attribute, value=value)
        if not isinstance(stated, Mapping):
            yield replace(limit, most=_read_number(stated, path, "jobs", bounds.JOBS))
        elif any(name in stated for name in _BOUNDS):
            yield _read_bounds(limit, stated, path)
        else:
            most, curb, interval = _read_ramp(stated, path)
            yield replace(limit, most=most, curb=curb, interval=interval)


def _read_bounds(limit: RunningLimit, stated: Mapping[str, object], path: str) -> RunningLimit:
    for name in stated:
        if name not in _BOUNDS:
            and_ramp = ", a limit with a ramp has neither" if name in _RAMP else ""
            _refuse(f"{path}/{name}: allowed are {' and '.join(_BOUNDS)}{and_ramp}")
    most = _read_number(stated["count"], f"{path}/count", "jobs", bounds.JOBS) if "count" in stated else None
    cores = (
        _read_number(stated["cores"], f"{path}/cores", "cores", bounds.CORES) if "cores" in stated else None
    )
    return replace(limit, most=most, cores=cores)


def _read_ramp(stated: Mapping[str, object], path: str) -> tuple[int, int, float]:
    """Maximum, curb and interval in seconds."""
    if not stated:
        _refuse(f"{path}: empty, allowed are {' and '.join(_BOUNDS)}, or {', '.join(_RAMP)}")
    for name in stated:
        if name not in _RAMP:
            meant = did_you_mean(name, (*_RAMP, *_BOUNDS))
            _refuse(
                f"{path}/{name}: "
                + (f"did you mean {meant}?" if meant else f"allowed are {', '.join((*_RAMP, *_BOUNDS))}")
            )
    if missing := [name for name in _RAMP if name not in stated]:
        _refuse(f"{path}: {' and '.join(missing)} missing, a limit with a ramp has {', '.join(_RAMP)}")
    most, curb = (
        _read_number(stated[name], f"{path}/{name}", "jobs", bounds.JOBS) for name in ("Max", "Curb")
    )
    if curb > most:
        _refuse(f"{path}/Curb: {curb} is more than Max, {most}")
    return most, curb, _read_seconds(stated["Interval"], f"{path}/Interval")


def _read_number(stated: object, path: str, what: str, largest: int) -> int:
    if not isinstance(stated, int) or isinstance(stated, bool) or not 0 <= stated <= largest:
        _refuse(f"{path}: {stated!r} is not a number of {what}, allowed are 0 to {largest}")
    return stated


def _read_seconds(stated: object, path: str) -> float:
    if not isinstance(stated, int | float) or isinstance(stated, bool) or not stated <= bounds.SECONDS:
        _refuse(f"{path}: {stated!r} is not a number of seconds, allowed are 0 to {bounds.SECONDS}")
    return max(0.0, stated)


def read_floors_at(site: str, raw: Mapping[str, object]) -> Iterator[RunningLimit]:
    """The floors `<VO>: cores` or `<VO>: N%` of one site.

    ValueError if one is wrong, or if the parts are more than the whole.
    """
    if len(raw) > bounds.LIMITS_OF_PLACE:
        _refuse(f"{site}: {len(raw)} floors, {bounds.LIMITS_OF_PLACE} are allowed at one place")
    floors = {vo: _read_floor(stated, f"{site}/{vo}") for vo, stated in raw.items()}
    parts = sum(each.percent or 0 for each in floors.values())
    if parts > _WHOLE:
        _refuse(f"{site}: the floors are {parts:g} % together, allowed are 100 %")
    for vo, floor in floors.items():
        yield RunningLimit(scope=site, attribute="VO", value=vo, floor=floor)


def _read_floor(stated: object, path: str) -> Floor:
    text = stated.strip() if isinstance(stated, str) else ""
    if (part := _PERCENT.fullmatch(text)) is None:
        if isinstance(stated, str) and not text.isdecimal():
            _refuse(f"{path}: {stated!r} is no floor, allowed are a number of cores, or a part such as 30%")
        return Floor(cores=_read_number(stated, path, "cores", bounds.CORES))
    if (percent := float(part[1])) > _WHOLE:
        _refuse(f"{path}: {stated!r} is more than the whole, allowed are 0% to 100%")
    return Floor(percent=percent)


def read_delays(raw: Mapping[str, object]) -> Iterator[MatchingDelay]:
    """The delays of a section `MatchingDelay`; ValueError if it is wrong."""
    for site, entry in raw.items():
        yield from read_delays_at(_spell_scope(site), _section(entry, site))


def read_delays_at(site: str, raw: Mapping[str, object]) -> Iterator[MatchingDelay]:
    """The delays `<Attribute>/<value>: S` of one site, with `Burst`; ValueError if they are wrong."""
    bursts = {
        (attribute, value): burst
        for attribute, value, burst in _values(_section(raw.get(_BURST, {}), site), f"{site}/{_BURST}")
    }
    plain = {name: each for name, each in raw.items() if name != _BURST}
    for attribute, value, seconds in _values(plain, site):
        burst = bursts.get((attribute, value), 1)
        wait = _read_seconds(seconds, f"{site}/{attribute}/{value}")
        if not isinstance(burst, int) or isinstance(burst, bool) or not 1 <= burst <= bounds.BURST:
            allowed = f"allowed are 1 to {bounds.BURST}"
            _refuse(f"{site}/{_BURST}/{attribute}/{value}: {burst!r}, {allowed}")
        yield MatchingDelay(scope=site, attribute=attribute, value=value, seconds=wait, burst=burst)


#: Scope, attribute and value.
LimitKey = tuple[str, str, str]


def list_keys(raw: Mapping[str, object]) -> Iterator[LimitKey]:
    """Scope, attribute and value of each entry in a valid section `RunningLimit` or `MatchingDelay`."""
    for site, entry in raw.items():
        below = _section(entry, site)
        of_ces = _section(below.get(_CES, {}), site)
        places = {
            _spell_scope(site): below,
            **{f"{site}/{ce}": _section(each, site) for ce, each in of_ces.items()},
        }
        for scope, limits in places.items():
            for attributes in (limits, _section(limits.get(_BURST, {}), scope)):
                for attribute in ATTRIBUTES:
                    values = _section(attributes.get(attribute, {}), scope)
                    yield from ((scope, attribute, value) for value in values)


def _values(section: Mapping[str, object], path: str) -> Iterator[tuple[str, str, object]]:
    number_of_values = 0
    for attribute, values in section.items():
        if attribute not in ATTRIBUTES:
            meant = did_you_mean(attribute, ATTRIBUTES)
            hint = f", did you mean {meant}?" if meant else f", allowed are {', '.join(ATTRIBUTES)}"
            _refuse(f"{path}/{attribute}: no attribute of a job{hint}")
        for value, number in _section(values, f"{path}/{attribute}").items():
            yield attribute, value, number
        number_of_values += len(_section(values, path))
        if number_of_values > bounds.LIMITS_OF_PLACE:
            _refuse(f"{path}: {number_of_values} limits, {bounds.LIMITS_OF_PLACE} are allowed at one place")


def _spell_scope(site: str) -> str:
    return ALL_SITES if fold(site) == fold(ALL_SITES) else site


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


def _section(raw: object, path: str) -> Mapping[str, object]:
    if not isinstance(raw, Mapping):
        _refuse(f"{path}: a section is needed here, not {raw!r}")
    return raw
