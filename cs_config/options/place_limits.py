"""`RunningLimit` and `MatchingDelay`: limits on the number and the rate of jobs of a kind at a site or CE.

In the operations they name the place and hold for a VO, or for all; at the node of a site or CE they are the
site's own, and hold for all VOs beside those of the operations.

Source: DIRAC's Operations/JobScheduling. Unlike there, a limit of a CE counts the jobs of that CE, and any
attribute of a job may be limited.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

from cs_config.options import bounds
from requirements.errors import did_you_mean

#: Attributes of a job that may be limited.
ATTRIBUTES = ("JobType", "JobGroup", "JobName", "Owner", "OwnerGroup", "VO", "SubmitPool")
_CES = "CEs"
_BURST = "Burst"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningLimit:
    """A maximum of jobs with this value that are matched, running or stalled."""

    scope: str  #: `Site` or `Site/CE`
    attribute: str  #: one of ATTRIBUTES
    value: str
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchingDelay:
    """A token bucket: one match with this value per interval, after a pause up to `burst` at once."""

    scope: str  #: a site
    attribute: str  #: one of ATTRIBUTES
    value: str
    seconds: float
    burst: int


def read_limits(raw: Mapping[str, object]) -> Iterator[RunningLimit]:
    """The limits of a section `RunningLimit`; ValueError if it is wrong."""
    for site, entry in raw.items():
        below = _section(entry, site)
        of_ces = _section(below.get(_CES, {}), f"{site}/{_CES}")
        places: dict[str, Mapping[str, object]] = {
            site: {name: each for name, each in below.items() if name != _CES}
        }
        places |= {f"{site}/{ce}": _section(each, f"{site}/{_CES}/{ce}") for ce, each in of_ces.items()}
        for scope, limits in places.items():
            yield from read_limits_at(scope, limits)


def read_limits_at(scope: str, raw: Mapping[str, object]) -> Iterator[RunningLimit]:
    """The limits `<Attribute>/<value>: N` of one site or CE; ValueError if they are wrong."""
    for attribute, value, most in _values(raw, scope):
        if not isinstance(most, int) or isinstance(most, bool) or not 0 <= most <= bounds.JOBS:
            allowed = f"allowed are 0 to {bounds.JOBS}"
            _refuse(f"{scope}/{attribute}/{value}: {most!r} is no number of jobs, {allowed}")
        yield RunningLimit(scope=scope, attribute=attribute, value=value, most=most)


def read_delays(raw: Mapping[str, object]) -> Iterator[MatchingDelay]:
    """The delays of a section `MatchingDelay`; ValueError if it is wrong."""
    for site, entry in raw.items():
        yield from read_delays_at(site, _section(entry, site))


def read_delays_at(site: str, raw: Mapping[str, object]) -> Iterator[MatchingDelay]:
    """The delays `<Attribute>/<value>: S` of one site, with `Burst`; ValueError if they are wrong."""
    bursts = {
        (attribute, value): burst
        for attribute, value, burst in _values(_section(raw.get(_BURST, {}), site), f"{site}/{_BURST}")
    }
    plain = {name: each for name, each in raw.items() if name != _BURST}
    for attribute, value, seconds in _values(plain, site):
        burst = bursts.get((attribute, value), 1)
        if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds <= bounds.SECONDS:
            allowed = f"allowed are 0 to {bounds.SECONDS}"
            _refuse(f"{site}/{attribute}/{value}: {seconds!r} is no number of seconds, {allowed}")
        if not isinstance(burst, int) or isinstance(burst, bool) or not 1 <= burst <= bounds.BURST:
            allowed = f"allowed are 1 to {bounds.BURST}"
            _refuse(f"{site}/{_BURST}/{attribute}/{value}: {burst!r}, {allowed}")
        yield MatchingDelay(
            scope=site, attribute=attribute, value=value, seconds=max(0.0, seconds), burst=burst
        )


#: Scope, attribute and value.
LimitKey = tuple[str, str, str]


def list_keys(raw: Mapping[str, object]) -> Iterator[LimitKey]:
    """What a valid section `RunningLimit` or `MatchingDelay` limits."""
    for site, entry in raw.items():
        below = _section(entry, site)
        of_ces = _section(below.get(_CES, {}), site)
        places = {site: below, **{f"{site}/{ce}": _section(each, site) for ce, each in of_ces.items()}}
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


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


def _section(raw: object, path: str) -> Mapping[str, object]:
    if not isinstance(raw, Mapping):
        _refuse(f"{path}: a section is needed here, not {raw!r}")
    return raw
