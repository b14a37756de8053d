"""Who asks: the roles, and what a token says about its bearer."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from cs_config.address import QueueAddress


class Role(StrEnum):
    """What a bearer is; each route names the roles that may use it."""

    USER = "user"  #: submits in its VO, sees and controls its own jobs
    VO_ADMIN = "vo_admin"  #: all jobs of its VO
    SITE_ADMIN = "site_admin"  #: looks after a site
    DIRECTOR = "director"  #: sends pilots for its VOs
    GATEWAY = "gateway"  #: a site's job manager
    PILOT = "pilot"  #: takes and runs jobs in one batch slot
    OPERATOR = "operator"  #: everything
    MONITOR = "monitor"  #: reads the metrics, nothing else


class Capability(StrEnum):
    """What a user's token of another issuer may be limited to. Source: WLCG Common JWT Profiles."""

    READ = "compute.read"  #: look at jobs
    CREATE = "compute.create"  #: submit them
    MODIFY = "compute.modify"  #: change them: have them run again
    CANCEL = "compute.cancel"  #: kill them


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The bearer of a token that was found good."""

    role: Role
    subject: str  #: the same for every token of the same bearer: leases and idempotency keys belong to it
    vos: frozenset[str] = frozenset()  #: lower case; of an operator: what it submits for unless it says so
    user: str = ""
    group: str = ""
    sites: frozenset[str] = frozenset()
    queue: QueueAddress | None = None  #: a pilot that is bound from the start
    stamp: str | None = None  #: a pilot's own id
    capabilities: frozenset[Capability] | None = None  #: None: all that the role may
    also: tuple[
        "Caller", ...
    ] = ()  #: further roles of the same bearer; who has them may what any of them may

    @property
    def each(self) -> tuple["Caller", ...]:
        """Itself in each of its roles."""
        return (replace(self, also=()), *self.also) if self.also else (self,)

    def within(self, roles: Collection[Role]) -> "Caller | None":
        """It in those of its roles that are among these; None: it has none of them."""
        if not self.also:
            return self if self.role in roles else None
        return union([one for one in self.each if one.role in roles])

    @property
    def is_operator(self) -> bool:
        """Whether it may do everything."""
        return any(one.role is Role.OPERATOR for one in self.each)

    @property
    def vo(self) -> str | None:
        """Its VO, if it has exactly one."""
        return next(iter(self.vos)) if len(self.vos) == 1 else None

    @property
    def visible_vos(self) -> frozenset[str] | None:
        """The VOs that it may read about; None: all."""
        return None if self.is_operator else frozenset().union(*(one.vos for one in self.each))

    def may_read(self, vo: str) -> bool:
        """Whether it may read pools, parameters and explanations of `vo`."""
        return self.visible_vos is None or vo in self.visible_vos

    @property
    def every_site(self) -> frozenset[str]:
        """The sites that any of its roles is bound to."""
        return frozenset().union(*(one.sites for one in self.each))

    @property
    def own_sites(self) -> frozenset[str]:
        """The sites that it looks after, by name; an operator looks after all, and names none."""
        return frozenset().union(*(one.sites for one in self.each if one.role is Role.SITE_ADMIN))

    def looks_after(self, site: str) -> bool:
        """Whether the jobs of every VO there are its business; who brings jobs to a site hears of its own."""
        return self.is_operator or site in self.own_sites


def union(several: Sequence[Caller]) -> Caller | None:
    """One bearer with several roles, the first of them first; None: there are none."""
    every = next(([one] for one in several if one.is_operator), list(several))
    return replace(every[0], also=tuple(every[1:])) if every else None
