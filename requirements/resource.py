"""The resource that a pilot offers in its request for work, and its location."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from requirements.nodes.node_facts import Facts
from requirements.quantities import AllottedQuantities, Quantities

#: Accepted values; None: any.
Values = frozenset[str] | None
#: Values by field of `Resource`: a class is excluded if it names one of the values in every field.
Exclusion = frozenset[tuple[str, frozenset[str]]]

_WHOLE_NODE = "wholenode"


@dataclass(frozen=True, kw_only=True)
class Resource(Quantities):
    """A resource as used by matching; names are folded, so that equal resources compare equal.

    Caches of the matcher are keyed by resources: equal ones get equal results.
    """

    cpu_time: float  #: remaining seconds
    sites: Values = None
    near: Values = None  #: places whose files can be read there; None: no site is stated
    grid_ces: Values = None
    platforms: Values = None  #: whose software it runs, by today's `OSCompatibility`
    job_types: Values = None
    owners: Values = None
    owner_groups: Values = None
    vos: Values = None
    tags: Values = frozenset()  #: offered; None: any tag
    required_tags: frozenset[str] = frozenset()  #: tags that a job must have
    banned_sites: frozenset[str] = frozenset()
    banned_grid_ces: frozenset[str] = frozenset()
    banned_platforms: frozenset[str] = frozenset()
    banned_job_types: frozenset[str] = frozenset()
    banned_tags: frozenset[str] = frozenset()
    max_ram: float | None = None  #: MB; None: not stated
    processors: int | None = None  #: None: not stated, its tags decide
    whole_node: bool = False
    #: What DiracX's match-making specification has more. None, in the offer of a queue: its nodes decide.
    wall_time: float | None = None  #: seconds left; None: not stated
    cpu_power_db12: float | None = None  #: of a core; None: its CPU time is stated instead
    scratch_mb: float | None = None  #: None: not stated
    system: str | None = None
    architecture: str | None = None  #: empty: not stated
    cpu_features: frozenset[str] | None = None
    gpu_vendor: str | None = None  #: this and the next are None where there are none
    gpu_architecture: int | None = None  #: the number of `sm_89`; 0: not stated
    gpu_memory_mb: float | None = None  #: of each; 0: not stated
    gpu_runtime: int | None = None  #: by `version_number`; 0: not stated
    literal_tags: Values = frozenset()  #: `tags` as they are written; None: any tag
    #: Prefixes of further tags, which its nodes have or not; none but in the offer of a queue.
    open_tags: tuple[str, ...] = ()
    excluded: frozenset[Exclusion] = frozenset()  #: excluded by limits now
    #: Job types that only job managers handle, by VO (None: all others); refused unless `job_types` names
    #: them.
    managed_types: frozenset[tuple[str | None, frozenset[str]]] = frozenset()
    sharing_groups: frozenset[str] = frozenset()  #: groups whose members accept each other's jobs

    @property
    def named_vos(self) -> frozenset[str]:
        """The VOs that the request names; empty if it names none."""
        return self.vos or frozenset()

    @property
    def banned(self) -> Mapping[str, frozenset[str]]:
        """Values that jobs must not name, by kind."""
        return {
            "sites": self.banned_sites,
            "grid_ces": self.banned_grid_ces,
            "platforms": self.banned_platforms,
            "job_types": self.banned_job_types,
            "tags": self.banned_tags,
        }

    @property
    def work_per_core(self) -> float:
        """DB12 seconds that a core can do in the time left; CPU time of pilots is normalised by DB12, too."""
        if self.wall_time is None or self.cpu_power_db12 is None:
            return self.cpu_time
        return self.wall_time * self.cpu_power_db12

    @property
    def offers_whole_node(self) -> bool:
        """Whether it offers whole nodes."""
        return self.whole_node or self.tags is None or _WHOLE_NODE in self.tags


@dataclass(frozen=True, kw_only=True)
class StatedResource:
    """A parsed request for work: the resource, its place and the pilot."""

    resource: Resource
    site: str = ""  #: as written; empty: none or several
    ce: str = ""
    queue: str = ""
    several: tuple[str, ...] = ()  #: keywords of the place with more than one value
    pools: frozenset[str] = frozenset()  #: pools that the pilot was sent for
    stamp: str | None = None
    job_id: int | None = None  #: the only job that it accepts
    node_facts: Facts = field(default_factory=dict)  #: measured at its node
    submits: bool = False  #: whether its jobs are submitted to a batch system, with the flags of the answer
    attributes: dict[str, object] = field(default_factory=dict)  #: unknown keywords
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment(AllottedQuantities):
    """What a job is given of the resource where it runs; None: not specified.

    The fields are columns of its attempt, and values of the statements that open it.
    """

    processors: int | None = None
    ram_mb: int | None = None

    def to_columns(self) -> Mapping[str, int | None]:
        """The value of each column."""
        return {name: getattr(self, name) for name in ALLOTTED}


#: The fields of an allotment.
ALLOTTED: Final = tuple(each.name for each in fields(Allotment))


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where a job would run; empty: not known."""

    site: str
    ce: str = ""
    queue: str = ""
    #: Configuration version with which the facts of its node were checked; None: not checked.
    checked: int | None = None
