"""Peers: the user or host behind a certificate, and the rights that its group has in DIRAC.

| property | right here |
|---|---|
| NormalUser | submits; sees and controls its own jobs |
| JobSharing | sees and controls the jobs of its group; its pilots take them |
| JobAdministrator | sees and controls the jobs of its VO; a host, all jobs |
| GenericPilot | its pilots take jobs of all groups of the VO; sees those that pilots hold |
| TrustedHost | a host that may act for a user with a group |

DIRAC shows every job to everybody; here other jobs do not exist.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from cs_config.options.registry import Registry
from cs_config.tree.configuration import Configuration
from pilotage.dirac_door.certificates import Identity
from pilotage.service.auth import visibility
from pilotage.service.auth.callers import Caller, Role, union
from pilotage.service.http_errors import NotAuthenticated
from requirements.values import fold
from taskqueue.jobs.jobs import Job
from taskqueue.states import HELD

GENERIC_PILOT: Final = "GenericPilot"
JOB_SHARING: Final = "JobSharing"
JOB_ADMINISTRATOR: Final = "JobAdministrator"
NORMAL_USER: Final = "NormalUser"
TRUSTED_HOST: Final = "TrustedHost"
#: The group of hosts.
HOSTS: Final = "hosts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The sender of a call."""

    dn: str
    user: str  #: of a host its name
    group: str
    vos: frozenset[str]  #: lower case: the VO of the group; of a host all
    properties: frozenset[str]
    is_forwarded: bool = False  #: a trusted host acts for it
    is_limited: bool = False  #: a limited proxy, which may not submit
    mark: str = ""  #: what tells one pilot or job from another: hash of its key, and its address
    has_key: bool = True  #: the mark is of a key, which another attempt has not
    address: str = ""

    @property
    def is_host(self) -> bool:
        """Whether it is a host that acts for itself."""
        return self.group == HOSTS

    @property
    def vo(self) -> str:
        """The VO of its group; empty: a host."""
        return "" if self.is_host else next(iter(self.vos))

    def has(self, name: str) -> bool:
        """Whether its group, or host, has a property."""
        return name in self.properties

    @property
    def holder(self) -> str:
        """The holder of the attempts that its pilots get."""
        return f"dirac:{self.group}:{self.dn}"

    @property
    def caller(self) -> Caller | None:
        """Its roles for jobs; None: none, such as those of a pilot."""
        roles = [self.submitter] if self.has(NORMAL_USER) and not self.is_host else []
        if self.has(JOB_ADMINISTRATOR):
            roles.append(replace(self.submitter, role=Role.VO_ADMIN, subject=self._name(Role.VO_ADMIN)))
        return union(roles)

    def admin_of(self, vo: str) -> Caller:
        """The role for changes of jobs of a VO whose rights were checked by `controls`."""
        return Caller(
            role=Role.VO_ADMIN, subject=self._name(Role.VO_ADMIN), vos=frozenset({vo}), user=self.user
        )

    @property
    def submitter(self) -> Caller:
        """The role in which it submits."""
        subject = self._name(Role.USER)
        return Caller(role=Role.USER, subject=subject, vos=self.vos, user=self.user, group=self.group)

    def controls(self, job: Job) -> bool:
        """Whether it may see all of a job and control it."""
        return self.controls_jobs(vo=job.vo, owner=job.owner, group=job.owner_group)

    def controls_jobs(self, *, vo: str, owner: str, group: str) -> bool:
        """Whether it may see and control the jobs of an owner with this group."""
        if self.has(JOB_SHARING) and vo in self.vos and group == self.group:
            return True
        caller = self.caller
        return caller is not None and visibility.controls(caller, vo=vo, owner=owner)

    def sees(self, job: Job) -> bool:
        """Whether a job exists for it."""
        is_held = self.has(GENERIC_PILOT) and job.vo in self.vos and job.status in HELD
        return is_held or self.controls(job)

    def _name(self, role: Role) -> str:
        # As of a token of the same user, so that it has the same idempotency keys and limits.
        return f"{role}:{','.join(sorted(self.vos))}::{self.user}"


def find_peer(
    identity: Identity,
    credentials: tuple[str, str] | str | None,
    config: Configuration,
    *,
    address: str,
) -> Peer:
    """The peer of a call; `NotAuthenticated` says what the registry has not.

    `credentials` are those of the form: a trusted host names for whom it acts, a certificate that is no proxy
    the group.
    """
    registry = config.registry
    mark = f"{identity.fingerprint[:32]}@{address}"
    host = registry.hosts_by_dn.get(identity.dn) if identity.group is None else None
    if host is None:
        group = identity.group or (credentials if isinstance(credentials, str) else None)
        found = _find_member(registry, identity.dn, group)
        return replace(found, is_limited=identity.is_limited, mark=mark, address=address)
    if isinstance(credentials, tuple):
        if TRUSTED_HOST not in registry.hosts[host].properties:
            raise NotAuthenticated(f"the host {host} may not act for others: it is no {TRUSTED_HOST}")
        member = _find_member(registry, *credentials)
        return replace(member, is_forwarded=True, mark=mark, address=address)
    properties = frozenset(registry.hosts[host].properties)
    return Peer(
        dn=identity.dn,
        user=host,
        group=HOSTS,
        vos=config.vos,
        properties=properties,
        mark=mark,
        address=address,
    )


def find_bearer(claims: Mapping[str, object], config: Configuration, *, address: str) -> Peer:
    """The peer with a verified token of DiracX; `NotAuthenticated` says what the registry has not.

    Its tokens have neither a key nor an id that lasts: the mark is that of the user at this address.
    """
    user, group, vo, subject = (
        claims.get(name) for name in ("preferred_username", "dirac_group", "vo", "sub")
    )
    if not (isinstance(user, str) and isinstance(group, str) and isinstance(vo, str)):
        raise NotAuthenticated("the token is no access token of DiracX")
    known = config.registry.users.get(user)
    found = _find_group(config.registry, user, group, known.dn[0] if known and known.dn else "")
    if found.vo != fold(vo):
        raise NotAuthenticated(f"the group {group!r:.100} is none of the VO {vo!r:.100} in Registry/Groups")
    mark = f"{hashlib.sha256(str(subject).encode()).hexdigest()[:32]}@{address}"
    return replace(found, mark=mark, has_key=False, address=address)


def _find_member(registry: Registry, dn: str, group: str | None) -> Peer:
    """A user with a group that it is a member of; a proxy without a group has the first default one."""
    user = registry.users_by_dn.get(dn)
    if user is None:
        raise NotAuthenticated(f"{dn!r:.300} is no DN of Registry/Users or Registry/Hosts")
    if group is None:
        defaults = (each.default_group for each in registry.vo.values())
        group = next((each for each in defaults if each and _has_member(registry, each, user)), None)
        if group is None:
            raise NotAuthenticated(f"the proxy of {user} names no group, and it has no default one")
    return _find_group(registry, user, group, dn)


def _find_group(registry: Registry, user: str, group: str, dn: str) -> Peer:
    known = registry.groups.get(group)
    if known is None or known.vo is None or not _has_member(registry, group, user):
        raise NotAuthenticated(f"{user} is no user of a group {group!r:.100} with a VO in Registry/Groups")
    return Peer(
        dn=dn, user=user, group=group, vos=frozenset({fold(known.vo)}), properties=frozenset(known.properties)
    )


def _has_member(registry: Registry, group: str, user: str) -> bool:
    known = registry.groups.get(group)
    return known is not None and user in known.users
