"""A request for work in the form of DiracX's match-making specification, as keywords.

Source: the match-making specification of DiracX, v0.2, section 6.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, TypeGuard

from cs_config.options import bounds
from requirements.errors import InvalidResource, Problem, did_you_mean
from requirements.quantities import DETAILS, QUANTITIES
from requirements.resource import Resource
from requirements.values import fold

#: The keyword of each field. Keywords that are no field, such as `GridCE` or `VO`, may stand beside them.
FIELDS: Final[Mapping[str, str]] = {
    "site": "Site",
    "system/name": "System",
    "wall_time": "WallTime",
    "cpu_power_db12": "CPUPowerDB12",
    "cpu/num_cores": "NumberOfProcessors",
    "cpu/ram_mb": "MaxRAM",
    "cpu/architecture/name": "Architecture",
    "cpu/architecture/features": "CPUFeature",
    **{each.field: each.keyword for each in QUANTITIES},
    **{each.field: each.keyword for each in DETAILS},
    "io/scratch_mb": "MaxScratch",
    "tags": "Tag",
}
#: Fields that no condition reads.
_UNREAD: Final = ("cpu/num_nodes",)
_LEAVES: Final = (*FIELDS, *_UNREAD)
_SECTIONS: Final = frozenset(
    path.rsplit("/", depth)[0] for path in _LEAVES for depth in range(1, path.count("/") + 1)
)
_NEEDED: Final = (
    *("site", "system/name", "wall_time", "cpu_power_db12", "cpu/num_nodes", "cpu/num_cores"),
    *("cpu/architecture/name", "cpu/architecture/features"),
    *(each.field for each in QUANTITIES),
)
#: The largest numbers of fields that are read here.
_LARGEST: Final = {
    "wall_time": bounds.MEGABYTES,
    "cpu_power_db12": bounds.POWER,
    **{each.field: bounds.MEGABYTES for each in QUANTITIES},
}
#: Normalised seconds that a request may state: the largest integer that is exact as a float.
_LONGEST: Final = 2**53
#: Keywords beside a document, folded, that state its time another way.
_TIMES: Final = frozenset({"cputime", "cputimes", "walltime", "walltimes"})


def is_document(raw: Mapping[str, Any]) -> bool:
    """Whether a request has the form of the specification: no keyword is `cpu`, a section."""
    return isinstance(raw.get("cpu"), Mapping)


def read_keywords(raw: Mapping[str, Any]) -> dict[str, object]:
    """The keywords of a request in this form.

    Raises:
        InvalidResource: Every field that is missing, unknown or not a section.
    """
    problems: list[Problem] = []
    found = dict(_walk(raw, "", problems))
    details = (detail for each in QUANTITIES if found.get(each.field) for detail in each.details)
    needed = (*_NEEDED, *(each.field for each in details if not each.is_optional))
    problems += [Problem(path=path, message="is missing") for path in needed if path not in found]
    problems += [
        Problem(path=path, message=f"is {found[path]!r:.40}, allowed is a number from 0 to {most}")
        for path, most in _LARGEST.items()
        if path in found and not _is_amount(found[path], most)
    ]
    if problems:
        raise InvalidResource(problems)
    keywords = {FIELDS[path]: value for path, value in found.items() if path in FIELDS}
    others = {name: value for name, value in raw.items() if name not in _SECTIONS and name not in FIELDS}
    time = _normalise_time(found["wall_time"], found["cpu_power_db12"])
    return {"CPUTime": time, **others, **keywords}


def _normalise_time(wall_time: float, power: float) -> int:
    """CPU time, normalised by DB12. What is left of it limits jobs that do not follow the specification."""
    return min(int(wall_time * power), _LONGEST)


def split_time(raw: Mapping[str, Any]) -> tuple[dict[str, Any], float] | None:
    """A document with 0 for its wall time, and that; None: it is none, or its time is wrong or stated twice.

    The rest is equal in most requests from a node.
    """
    time = raw.get("wall_time")
    if not is_document(raw) or not _is_amount(time, _LARGEST["wall_time"]) or any(map(_states_time, raw)):
        return None
    return {**raw, "wall_time": 0}, time


def _states_time(name: str) -> bool:
    return fold(name) in _TIMES


def set_time(known: Resource, time: float | None) -> Resource:
    """The resource of a document that was read, as it would be with another wall time; None: as it is."""
    if time is None:
        return known
    return replace(known, wall_time=time, cpu_time=_normalise_time(time, known.cpu_power_db12 or 0))


def _walk(section: Mapping[str, Any], path: str, problems: list[Problem]) -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        here = f"{path}/{name}" if path else name
        if value is None:
            continue
        if here in _LEAVES:
            yield here, value
        elif here in _SECTIONS:
            if isinstance(value, Mapping):
                yield from _walk(value, here, problems)
            else:
                problems.append(Problem(path=here, message=f"is {value!r:.40}, a section is needed"))
        elif path:
            start = f"{path}/"
            known = {each.removeprefix(start).split("/")[0] for each in _LEAVES if each.startswith(start)}
            problems.append(Problem(path=here, message="is unknown", suggestion=did_you_mean(name, known)))


def _is_amount(value: object, most: int) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most
