"""Who asks: the roles, and what a token says about its bearer."""

from dataclasses import dataclass
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

    @property
    def is_operator(self) -> bool:
        """Whether it may do everything."""
        return self.role is Role.OPERATOR

    @property
    def vo(self) -> str | None:
        """Its VO, if it has exactly one."""
        return next(iter(self.vos)) if len(self.vos) == 1 else None

    @property
    def visible_vos(self) -> frozenset[str] | None:
        """The VOs that it may read about; None: all."""
        return None if self.is_operator else self.vos

    def may_read(self, vo: str) -> bool:
        """Whether it may read pools, parameters and explanations of `vo`."""
        return self.is_operator or vo in self.vos

    def looks_after(self, site: str) -> bool:
        """Whether the jobs of every VO there are its business; who brings jobs to a site hears of its own."""
        return self.is_operator or (self.role is Role.SITE_ADMIN and site in self.sites)

    def may_control(self, *, vo: str, owner: str) -> bool:
        """Whether it may see and control jobs of `owner` in `vo`."""
        if self.role is Role.USER:
            return vo in self.vos and owner == self.user
        return self.is_operator or (self.role is Role.VO_ADMIN and vo in self.vos)
