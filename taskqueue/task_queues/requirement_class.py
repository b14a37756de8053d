"""Requirement classes: the distinct sets of requirements used by matching.

The owner is not part of a class. A class is immutable, so that a cached copy is never stale. Names keep the
job's spelling; `matcher.rules` compares without case.

A class is derived from what its jobs state and from the configured defaults of what they leave out. It keeps
what they state, so that it can be derived again after a change of the defaults (`reclassification`).
"""

import hashlib
import json
import logging
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from types import SimpleNamespace
from typing import Any, Final

from cs_config.options import keywords
from cs_config.options.options import VoOptions
from requirements.values import fold

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RequirementClass:
    """Requirements of a job on the resource where it runs. An empty set is no requirement.

    Source: DIRAC TaskQueueDB, plus cores, memory per core, GPUs and the SubmitPool.
    """

    vo: str  #: lower case
    cpu_time: int  #: seconds, upper end of the segment that contains the job's own
    sites: frozenset[str] = frozenset()
    banned_sites: frozenset[str] = frozenset()
    grid_ces: frozenset[str] = frozenset()
    platforms: frozenset[str] = frozenset()  #: one of them; `OSCompatibility` says which nodes run it
    job_types: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()  #: the resource must offer all of them
    min_ram: int = 0  #: MB
    max_ram: int | None = None  #: MB; None: no limit
    min_ram_per_core: int = 0  #: MB
    processors_min: int = 1
    processors_max: int | None = 1  #: None: unlimited
    whole_node: bool = False
    gpus: int = 0
    #: Places of each input file, storage elements or sites: the resource must be near one of each.
    replicas: frozenset[frozenset[str]] = frozenset()
    submit_pool: str | None = None  #: pool id; None: no Requirements
    #: What the jobs state, by attribute of a description, sorted; None: the class depends on no default.
    stated: tuple[tuple[str, Any], ...] | None = None
    #: Digest of the options that it was derived with (`VoOptions.class_digest`); empty: unknown.
    derived_with: str = field(default="", compare=False)

    def derive_again(self, options: VoOptions) -> "RequirementClass":
        """Return the class of the same jobs under other options of the VO."""
        if self.stated is None:
            return self
        return derive_class(
            self.vo, dict(self.stated), options, replicas=self.replicas, submit_pool=self.submit_pool
        )

    def states(self, attribute: str) -> bool:
        """Whether the jobs of the class state a keyword, or none of its defaults is in the class."""
        return self.stated is None or any(name == attribute for name, _ in self.stated)

    @property
    def statements(self) -> dict[str, Any]:
        """What the jobs state, by attribute; of a class that depends on no default, all that it requires."""
        if self.stated is not None:
            return dict(self.stated)
        cores = {"min_processors": self.processors_min, "max_processors": self.processors_max}
        same = ("cpu_time", "sites", "banned_sites", "grid_ces", "platforms", "tags", "whole_node", "gpus")
        return {
            **{name: getattr(self, name) for name in same},
            **(cores if self.processors_min > 1 else {}),
            "min_ram_mb": self.min_ram,
            "max_ram_mb": self.max_ram or 0,
            "min_ram_per_core_mb": self.min_ram_per_core,
            "job_type": next(iter(self.job_types), ""),
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the definition."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Definition in canonical form."""
        return json.dumps(
            {name: _as_json(value) for name, value in self._items()},
            sort_keys=True,
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> "RequirementClass | None":
        """Parse a definition; None: it has a field of a later release, whose processes match its jobs."""
        written = json.loads(text)
        if later := written.keys() - _FIELDS:
            _report_later(*sorted(later))
            return None
        stated = written.pop("stated", None)
        found: dict[str, Any] = {name: _from_json(value) for name, value in written.items()}
        if stated is not None:
            # Most of what jobs state is in the class as it is: kept once, for there may be very many tags.
            known: dict[object, object] = {
                value: value for value in found.values() if isinstance(value, frozenset)
            }
            read = ((name, _from_json(value)) for name, value in stated)
            found["stated"] = tuple((name, known.get(value, value)) for name, value in read)
        return cls(**found)

    def _items(self) -> list[tuple[str, object]]:
        # Defaults are left out, so that a new kind of requirement does not change existing digests.
        return [
            (each.name, getattr(self, each.name))
            for each in fields(self)
            if each.compare and getattr(self, each.name) != each.default
        ]


def _as_json(value: object) -> object:
    if isinstance(value, tuple):
        return [_as_json(item) for item in value]
    return sorted(map(_as_json, value)) if isinstance(value, frozenset) else value  # type: ignore[type-var]


def _from_json(value: object) -> object:
    return frozenset(map(_from_json, value)) if isinstance(value, list) else value


_FIELDS = frozenset(each.name for each in fields(RequirementClass) if each.compare)


@cache  # so that it is logged once
def _report_later(*names: str) -> None:
    log.warning("jobs that require %s, which this release does not know, are passed over", ", ".join(names))


#: Attributes of a description that decide its class, each with the value where neither it nor the
#: configuration states one.
_ATTRIBUTES: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("sites", "banned_sites", "grid_ces", "platforms", "tags"), ()),
    **dict.fromkeys(("processors", "min_processors", "max_processors")),
    **dict.fromkeys(("min_ram_mb", "max_ram_mb", "min_ram_per_core_mb", "gpus"), 0),
    "whole_node": False,
    "job_type": "",
    "cpu_time": 0,
}
#: Orders the jobs of a task queue: a class only keeps whether it is stated.
PRIORITY: Final = "priority"
#: Every attribute that `RequirementClass.stated` may name.
CLASSIFIED: Final = frozenset({*_ATTRIBUTES, PRIORITY})


def derive_class(
    vo: str,
    stated: Mapping[str, Any],
    options: VoOptions,
    *,
    replicas: frozenset[frozenset[str]] = frozenset(),
    submit_pool: str | None = None,
) -> RequirementClass:
    """Derive the class of jobs from what they state, by attribute, and the defaults of their VO.

    Attributes that are not in `CLASSIFIED` are ignored. A job that excludes all its sites fits nowhere.
    """
    kept = {name: _keep(name, value) for name, value in stated.items() if name in CLASSIFIED}
    segments = options.job_scheduling.cpu_segments
    if "cpu_time" in kept:  # not the job's own: jobs of nearly the same length share a class, as in DIRAC
        kept["cpu_time"] = round_to_segment(kept["cpu_time"], segments)
    asked = fill_in(kept, options)
    named, banned = (names_without_any(names) for names in (asked.sites, asked.banned_sites))
    sites = exclude_names(named, banned)
    cores = read_processors(asked)
    return RequirementClass(
        vo=vo,
        cpu_time=round_to_segment(asked.cpu_time, segments),
        sites=sites or named,
        banned_sites=frozenset() if sites else banned,
        grid_ces=names_without_any(asked.grid_ces),
        platforms=names_without_any(asked.platforms),
        job_types=frozenset({asked.job_type} - {""}),
        # The same set as in `stated`, if nothing is added: there may be very many tags.
        tags=frozenset(asked.tags) | cores.tags if cores.tags else frozenset(asked.tags),
        min_ram=asked.min_ram_mb,
        max_ram=asked.max_ram_mb or None,
        min_ram_per_core=asked.min_ram_per_core_mb,
        processors_min=cores.minimum,
        processors_max=cores.maximum,
        whole_node=cores.whole_node,
        gpus=asked.gpus,
        replicas=replicas,
        submit_pool=submit_pool,
        stated=tuple(sorted(kept.items())),
        derived_with=options.class_digest,
    )


def fill_in(stated: Mapping[str, Any], options: VoOptions) -> SimpleNamespace:
    """Return all attributes that decide a class: what is stated, else the defaults of the VO, else ours."""
    defaults = {
        keywords.BY_NAME[name].attribute: value for name, value in options.job_description.filled_in.items()
    }
    return SimpleNamespace(**{**_ATTRIBUTES, **defaults, **stated})


def _keep(name: str, value: Any) -> Any:
    if name == PRIORITY:
        return True
    return frozenset(value) if isinstance(value, list | tuple) else value


def names_without_any(names: Iterable[str]) -> frozenset[str]:
    """The names of a list; none if it contains `ANY`, which means no condition."""
    found = frozenset(names)
    return frozenset() if any(fold(name) == "any" for name in found) else found


def exclude_names(names: Iterable[str], others: Iterable[str]) -> frozenset[str]:
    """The names that are not among the others, compared without case."""
    folded = {fold(name) for name in others}
    return frozenset(name for name in names if fold(name) not in folded)


def round_to_segment(cpu_time: int, segments: Sequence[int]) -> int:
    """Return the smallest segment that is at least `cpu_time`, in seconds; the last one for anything above.

    `segments` must be increasing.
    """
    return segments[min(bisect_left(segments, cpu_time), len(segments) - 1)]


_MANY = "MultiProcessor"
_WHOLE = "WholeNode"
_NUMBER = re.compile(r"([1-9][0-9]{0,3})processors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """Cores of one job."""

    minimum: int
    maximum: int | None  #: None: all cores of the node
    whole_node: bool
    tags: frozenset[str]


def read_processors(asked: Any) -> Processors:
    """Return the cores that the attributes of a description require.

    Source: DIRAC: n cores are the tags `nProcessors` and `MultiProcessor`, a range with more than one is
    `MultiProcessor`, a whole node `WholeNode` and `MultiProcessor`. Tags without numbers mean the same.
    """
    low, high = _range(asked)
    tags = {_WHOLE, _MANY} if asked.whole_node else set()
    if _states_numbers(asked) or asked.whole_node:
        if high is None or high > 1:
            tags.add(_MANY)
        if low == high and low > 1:
            tags.add(f"{low}Processors")
    return Processors(minimum=low, maximum=high, whole_node=_whole_node(asked), tags=frozenset(tags))


def _range(asked: Any) -> tuple[int, int | None]:
    if asked.processors is not None:
        return asked.processors, asked.processors
    if _states_numbers(asked):
        return asked.min_processors or 1, asked.max_processors
    if named := [int(found[1]) for tag in asked.tags if (found := _NUMBER.fullmatch(fold(tag)))]:
        return max(named), max(named)
    return 1, None if _whole_node(asked) else 1


def count_tagged_cores(tag: str) -> int:
    """Return the fewest cores that a tag requires; 1: it is none for cores."""
    if fold(tag) == fold(_MANY):
        return 2
    found = _NUMBER.fullmatch(fold(tag))
    return int(found[1]) if found else 1


def _states_numbers(asked: Any) -> bool:
    return any(each is not None for each in (asked.processors, asked.min_processors, asked.max_processors))


def _whole_node(asked: Any) -> bool:
    return asked.whole_node or fold(_WHOLE) in map(fold, asked.tags)
