"""Requirement classes: the distinct sets of requirements used by matching.

The owner is not part of a class. A class is immutable, so that a cached copy is never stale. Names keep the
job's spelling; `matcher.conditions` compares without case.

A class is derived from what its jobs state and from the configured defaults of what they leave out
(`taskqueue.task_queues.class_derivation`).
"""

import hashlib
import json
import logging
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from itertools import product
from typing import Any, Final

from requirements.quantities import DETAILS, QUANTITIES, Quantities
from requirements.values import fold

log = logging.getLogger(__name__)


#: Fields that follow DiracX's match-making specification. A job that states one follows its rules
#: (`requirements.diracx.specification`).
SPECIFIC: Final = (
    *("cpu_work_db12", "wall_time", "scratch_mb", "system", "architecture", "cpu_level", "cpu_features"),
    *(each.upper for each in QUANTITIES),
    *(each.name for each in DETAILS),
    "tag_expression",
)


@dataclass(frozen=True, kw_only=True)
class RequirementClass(Quantities):
    """Requirements of a job on the resource where it runs. An empty set is no requirement.

    Source: DIRAC TaskQueueDB, plus cores, memory per core, `QUANTITIES` and the SubmitPool.
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
    cpu_work_db12: int = 0  #: DB12 seconds, of all cores together
    wall_time: int = 0  #: seconds
    scratch_mb: int = 0
    system: str = ""  #: empty: any
    architecture: str = ""  #: as `uname -m` prints it; empty: any
    cpu_level: str = ""
    cpu_features: frozenset[str] = frozenset()
    gpus_max: int | None = None  #: a pilot with more runs no such job; None: any number
    gpu_vendor: str = ""
    gpu_architecture: str = ""
    gpu_memory_mb: int = 0  #: of each GPU
    gpu_runtime: str = ""  #: a version
    tag_expression: str = ""  #: must be true of the resource's tags
    image: str = ""  #: source of the container image (`images.find_source`)
    #: Places of each input file, storage elements or sites: the resource must be near one of each.
    replicas: frozenset[frozenset[str]] = frozenset()
    submit_pool: str | None = None  #: pool id; None: no Requirements
    #: What the jobs state, by attribute of a description, sorted; None: the class depends on no default.
    stated: tuple[tuple[str, Any], ...] | None = None
    #: Digest of the options that it was derived with (`VoOptions.class_digest`); empty: unknown.
    derived_with: str = field(default="", compare=False)

    def states(self, attribute: str) -> bool:
        """Whether the jobs of the class state a keyword, or none of its defaults is in the class."""
        return self.stated is None or any(name == attribute for name, _ in self.stated)

    @property
    def statements(self) -> dict[str, Any]:
        """What the jobs state, by attribute; of a class that depends on no default, all that it requires."""
        if self.stated is not None:
            return dict(self.stated)
        cores = {"min_processors": self.processors_min, "max_processors": self.processors_max}
        same = ("cpu_time", "sites", "banned_sites", "grid_ces", "platforms", "tags", "whole_node")
        return {
            **{name: getattr(self, name) for name in (*same, *(each.name for each in QUANTITIES))},
            **{
                each.name: value
                for each in fields(self)
                if each.name in (*SPECIFIC, "image") and (value := getattr(self, each.name)) != each.default
            },
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
        # Defaults are left out, so that a new kind of requirement does not change existing digests.
        stated = {
            each.name: value
            for each in fields(self)
            if each.compare and (value := getattr(self, each.name)) != each.default
        }
        return json.dumps(stated, default=_sort_items, sort_keys=True, separators=(",", ":"))

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


def _sort_items(items: frozenset[Any]) -> list[Any]:
    """A set in JSON, of texts or of sets of texts."""
    return sorted(sorted(each) if isinstance(each, frozenset) else each for each in items)


def _from_json(value: object) -> object:
    return frozenset(map(_from_json, value)) if isinstance(value, list) else value


_FIELDS = frozenset(each.name for each in fields(RequirementClass) if each.compare)


@cache  # so that it is logged once
def _report_later(*names: str) -> None:
    log.warning("jobs that require %s, which this release does not know, are passed over", ", ".join(names))


#: Every spelling of `ANY`.
_ANY = frozenset(map("".join, product("aA", "nN", "yY")))


def names_without_any(names: Iterable[str]) -> frozenset[str]:
    """The names of a list; none if it contains `ANY`, which means no condition."""
    found = frozenset(names)
    return found if found.isdisjoint(_ANY) else frozenset()


def exclude_names(names: Iterable[str], others: Collection[str]) -> frozenset[str]:
    """The names that are not among the others, compared without case."""
    left = frozenset(names).difference(others)  # nearly all are written alike
    folded = {fold(name) for name in others} if left else frozenset[str]()
    return frozenset(name for name in left if fold(name) not in folded) if folded else left


def round_to_segment(cpu_time: int, segments: Sequence[int]) -> int:
    """Return the smallest segment that is at least `cpu_time`, in seconds; the last one for anything above.

    `segments` must be increasing.
    """
    return segments[min(bisect_left(segments, cpu_time), len(segments) - 1)]


#: Seconds.
_HOUR: Final = 3_600


def round_up(number: int) -> int:
    """Return the next number with three digits that count, so that nearly equal jobs share a task queue.

    Whole hours stay: a job of three days fits a queue of three days.
    """
    if number % _HOUR == 0:
        return number
    unit = int(10 ** max(0, len(str(number)) - 3))
    return -(-number // unit) * unit


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
    numbers = (asked.processors, asked.min_processors, asked.max_processors)
    states_numbers = any(each is not None for each in numbers)
    whole_node = asked.whole_node or fold(_WHOLE) in map(fold, asked.tags)
    low, high = 1, None if whole_node else 1
    if asked.processors is not None:
        low = high = asked.processors
    elif states_numbers:
        low, high = asked.min_processors or 1, asked.max_processors
    elif named := [int(found[1]) for tag in asked.tags if (found := _NUMBER.fullmatch(fold(tag)))]:
        low = high = max(named)
    tags = {_WHOLE, _MANY} if asked.whole_node else set()
    if states_numbers or asked.whole_node:
        if high is None or high > 1:
            tags.add(_MANY)
        if low == high and low > 1:
            tags.add(f"{low}Processors")
    return Processors(minimum=low, maximum=high, whole_node=whole_node, tags=frozenset(tags))


def count_tagged_cores(tag: str) -> int:
    """Return the fewest cores that a tag requires; 1: it is none for cores."""
    if fold(tag) == fold(_MANY):
        return 2
    found = _NUMBER.fullmatch(fold(tag))
    return int(found[1]) if found else 1
