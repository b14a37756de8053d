"""What a pilot offers when it asks for work."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from matcher.request.node_facts import Facts

#: A condition on values: one of these; None: none at all.
Values = frozenset[str] | None
#: Values by field of `Resource`: what names one of the values in every one of the fields is left out.
Exclusion = frozenset[tuple[str, frozenset[str]]]

_WHOLE_NODE = "wholenode"


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A resource as matching sees it; names are folded, so equal ones are the same.

    Resources that compare equal are served alike: what the matcher remembers is kept under them.
    """

    cpu_time: float  #: seconds that are left
    sites: Values = None
    grid_ces: Values = None
    platforms: Values = None
    job_types: Values = None
    owners: Values = None
    owner_groups: Values = None
    vos: Values = None
    tags: Values = frozenset()  #: what it offers; None: any tag
    required_tags: frozenset[str] = frozenset()  #: what its jobs must ask for
    banned_sites: frozenset[str] = frozenset()
    banned_grid_ces: frozenset[str] = frozenset()
    banned_platforms: frozenset[str] = frozenset()
    banned_job_types: frozenset[str] = frozenset()
    banned_tags: frozenset[str] = frozenset()
    max_ram: float | None = None  #: MB; None: says nothing
    processors: int | None = None  #: None: says nothing, its tags decide
    gpus: int = 0
    whole_node: bool = False
    excluded: frozenset[Exclusion] = frozenset()  #: what limits leave out now
    #: By VO (empty: all others) the job types that only job managers handle: who names none gets none.
    managed_types: frozenset[tuple[str, frozenset[str]]] = frozenset()
    sharing_groups: frozenset[str] = frozenset()  #: whose members take each other's jobs

    @property
    def list_named_vos(self) -> frozenset[str]:
        """The VOs that it says it may run jobs of; none where it says nothing."""
        return self.vos or frozenset()

    @property
    def banned(self) -> Mapping[str, frozenset[str]]:
        """Values that its jobs must not name, by kind."""
        return {
            "sites": self.banned_sites,
            "grid_ces": self.banned_grid_ces,
            "platforms": self.banned_platforms,
            "job_types": self.banned_job_types,
            "tags": self.banned_tags,
        }

    def managed_types_of(self, vo: str) -> frozenset[str]:
        """The job types of a VO that this resource would have to name."""
        if self.job_types is not None:
            return frozenset()
        by_vo = dict(self.managed_types)
        return by_vo.get(vo, by_vo.get("", frozenset()))

    @property
    def offers_whole_node(self) -> bool:
        """Whether a job may have the node for itself."""
        return self.whole_node or self.tags is None or _WHOLE_NODE in self.tags


@dataclass(frozen=True, kw_only=True)
class StatedResource:
    """All that a request for work says: the resource, where it is, and who speaks."""

    resource: Resource
    site: str = ""  #: as written; empty: none, or several
    ce: str = ""
    queue: str = ""
    several: tuple[str, ...] = ()  #: which of these it says more than one of, by its own keyword
    pools: frozenset[str] = frozenset()  #: that it was told to serve
    stamp: str | None = None
    job_id: int | None = None  #: the only job that it wants
    node_facts: Facts = field(default_factory=dict)  #: measured at its node
    attributes: dict[str, object] = field(default_factory=dict)  #: all else that it said
    warnings: tuple[str, ...] = ()
