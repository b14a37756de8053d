"""Peers: the user or host behind a certificate, the rights that its group has in DIRAC, and its calls.

| property | right here |
|---|---|
| NormalUser | submits; sees and controls its own jobs |
| JobSharing | sees and controls the jobs of its group; its pilots take them |
| JobAdministrator | sees and controls the jobs of its VO; a host, all jobs |
| GenericPilot | its pilots take jobs of all groups of the VO; sees those that pilots hold, or its own held |
| TrustedHost | a host that may act for a user with a group |

DIRAC shows every job to everybody; here other jobs do not exist.

The identity is in a chain of certificates, of a person, a host, or a proxy of one. OpenSSL has verified the
chain with its proxies (RFC 3820) before. The group of a proxy, which its owner wrote, is checked here.

Source: DIRAC 9.1, `Core/Security/m2crypto`; RFC 3820.

A call is a peer with a method and its arguments, which are checked against the method's signature.
"""

import hashlib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, get_type_hints

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID, ObjectIdentifier
from fastapi import Request
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from sqlalchemy import Connection

from cs_config.options import bounds
from cs_config.options.registry import Registry
from cs_config.tree.configuration import Configuration
from pilotage.service.auth import visibility
from pilotage.service.auth.callers import Caller, Role, union
from pilotage.service.http_errors import NotAuthenticated
from pilotage.service.models.jobs import MAX_ID
from pilotage.service.services import Services
from requirements import input_faults
from requirements.errors import InvalidRequest, Problem
from requirements.job_fields import JOB_ID
from requirements.states import HELD
from requirements.values import fold
from taskqueue.db import sql
from taskqueue.errors import JobNotFound
from taskqueue.jobs import search
from taskqueue.jobs.jobs import Job
from taskqueue.jobs.search import JobSelector
from taskqueue.leases import attempts

GENERIC_PILOT: Final = "GenericPilot"
JOB_SHARING: Final = "JobSharing"
JOB_ADMINISTRATOR: Final = "JobAdministrator"
NORMAL_USER: Final = "NormalUser"
TRUSTED_HOST: Final = "TrustedHost"
#: The group of hosts.
HOSTS: Final = "hosts"


_PROXY: Final = ObjectIdentifier("1.3.6.1.5.5.7.1.14")
_GROUP: Final = ObjectIdentifier("1.2.42.42")
#: Policies of a proxy that has all rights of its issuer, 1.3.6.1.5.5.7.21.1, and of a limited one,
#: 1.3.6.1.4.1.3536.1.1.1.9, in DER. Who does not understand another one has to refuse it (RFC 3820, 3.8).
_INHERIT_ALL: Final = bytes.fromhex("2b06010505071501")
_LIMITED: Final = bytes.fromhex("2b060104019b5001010109")
_INTEGER, _OBJECT_IDENTIFIER, _IA5_STRING, _SEQUENCE = 0x02, 0x06, 0x16, 0x30
#: Names of attributes as OpenSSL prints them.
_ATTRIBUTES: Final = {
    NameOID.COMMON_NAME: "CN",
    NameOID.COUNTRY_NAME: "C",
    NameOID.DOMAIN_COMPONENT: "DC",
    NameOID.EMAIL_ADDRESS: "emailAddress",
    NameOID.GIVEN_NAME: "GN",
    NameOID.LOCALITY_NAME: "L",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.SERIAL_NUMBER: "serialNumber",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.SURNAME: "SN",
    NameOID.USER_ID: "UID",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity proved by a verified certificate chain, and the group that its owner wrote into it."""

    dn: str  #: of the certificate that is no proxy, such as `/C=ch/O=cern/CN=ada`
    group: str | None  #: None: no proxy names one
    is_limited: bool
    fingerprint: str  #: of the key of the first certificate, in hexadecimal


def identify(chain: Sequence[bytes]) -> Identity | None:
    """The identity of a verified chain in DER, the peer's own certificate first; None: unreadable.

    `NotAuthenticated`: a proxy has a policy that is not understood.
    """
    try:
        certificates = [x509.load_der_x509_certificate(each) for each in chain]
        proxies, policies = list[x509.Certificate](), set[bytes]()
        for each in certificates:
            if (rights := _extension(each, _PROXY)) is None:
                break
            proxies.append(each)
            policies.add(_read_policy(rights))
        else:
            return None
        if policies - {_INHERIT_ALL, _LIMITED}:
            raise NotAuthenticated("a proxy has a policy that is neither `inherit all` nor `limited`")
        groups = [found for proxy in reversed(proxies) if (found := _extension(proxy, _GROUP)) is not None]
        return Identity(
            dn=format_name(each.subject),
            group=_read_text(groups[0]) if groups else None,
            is_limited=_LIMITED in policies,
            fingerprint=_hash_key(certificates[0]),
        )
    except ValueError:  # also of extensions that cannot be parsed
        return None


def format_name(name: x509.Name) -> str:
    """A name as OpenSSL prints it on one line, and as it stands in DIRAC's registry."""
    return "".join(
        f"/{_ATTRIBUTES.get(each.oid, each.oid.dotted_string)}={_escape(each.value)}" for each in name
    )


def _escape(value: str | bytes) -> str:
    octets = value.encode() if isinstance(value, str) else value
    return "".join(chr(each) if 0x20 <= each <= 0x7E else f"\\x{each:02X}" for each in octets)


def _extension(certificate: x509.Certificate, wanted: ObjectIdentifier) -> bytes | None:
    for each in certificate.extensions:
        if each.oid == wanted and isinstance(each.value, x509.UnrecognizedExtension):
            return each.value.value
    return None


def _read_policy(octets: bytes) -> bytes:
    """The identifier of the policy in the extension of a proxy: ProxyCertInfo of RFC 3820 in DER."""
    tag, content, rest = _read_item(octets)
    if tag != _SEQUENCE or rest:
        raise ValueError("the extension of the proxy is no sequence")
    tag, policy, rest = _read_item(content)
    if tag == _INTEGER:  # of further proxies
        tag, policy, rest = _read_item(rest)
    language, identifier, _ = _read_item(policy)
    if (tag, language, rest) != (_SEQUENCE, _OBJECT_IDENTIFIER, b""):
        raise ValueError("the extension of the proxy names no policy")
    return identifier


def _read_item(octets: bytes) -> tuple[int, bytes, bytes]:
    """The tag and the content of the first item in DER, and what follows."""
    if len(octets) < 2:
        raise ValueError("the extension of the proxy ends too early")
    size, begin = octets[1], 2
    if size > 0x80:
        begin += size - 0x80
        size = int.from_bytes(octets[2:begin])
    if size == 0x80 or len(octets) < begin + size:
        raise ValueError("the extension of the proxy ends too early")
    return octets[0], octets[begin : begin + size], octets[begin + size :]


def _read_text(octets: bytes) -> str:
    """The text of a short IA5String in DER."""
    if len(octets) < 3 or octets[0] != _IA5_STRING or octets[1] != len(octets) - 2:
        raise ValueError("the group of the proxy is no IA5String")
    return octets[2:].decode("ascii")


def _hash_key(certificate: x509.Certificate) -> str:
    octets = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(octets).hexdigest()


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

    def changer_of(self, *, vo: str, owner: str) -> Caller:
        """The role in which it changes jobs of an owner that it controls: a user's if they are its own."""
        is_user = self.has(NORMAL_USER) and not self.is_host
        if is_user and visibility.controls(self.submitter, vo=vo, owner=owner):
            return self.submitter
        return self.admin_of(vo)

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

    def takes_jobs_of(self, vo: str) -> bool:
        """Whether its pilots take jobs of all groups of a VO."""
        return self.has(GENERIC_PILOT) and vo in self.vos

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
            raise NotAuthenticated(f"the host {host} may not act for others: it is not a {TRUSTED_HOST}")
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


def find_vo(identity: Identity, registry: Registry) -> str:
    """What places at work are counted for: the VO of the group in a proxy, without a group that of its user.

    A host and a user of several VOs count by their DN. `NotAuthenticated` as for `find_peer`, if the group is
    none of its owner.
    """
    if identity.group is not None:
        return _find_member(registry, identity.dn, identity.group).vo
    vos = registry.vos_by_user.get(registry.users_by_dn.get(identity.dn, ""), ())
    return identity.dn if identity.dn in registry.hosts_by_dn or len(vos) != 1 else next(iter(vos))


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
    """A user with a group that it is a member of; a proxy without a group has the default one.

    With default groups of several VOs it has none: an administrator of one VO could put users of others into
    its group, and so take over what they do without stating a group.
    """
    user = registry.users_by_dn.get(dn)
    if user is None:
        raise NotAuthenticated(f"{dn!r:.300} is no DN of Registry/Users or Registry/Hosts")
    if group is None:
        defaults = {each.default_group for each in registry.vo.values() if each.default_group is not None}
        found = sorted(each for each in defaults if _has_member(registry, each, user))
        if len(found) != 1:
            several = f"one of {', '.join(found)} is needed" if found else "it has no default one"
            raise NotAuthenticated(f"the proxy of {user} names no group, and {several}")
        [group] = found
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


#: A job's id, also as text.
JobId = Annotated[int, Field(ge=1, le=MAX_ID)]
#: Ids of jobs: a list, or one.
JobIds = Annotated[
    Annotated[list[JobId], Field(max_length=bounds.SUBMITTED_JOBS)],
    BeforeValidator(lambda given: given if isinstance(given, list) else [given]),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiracCall:
    """A call of a known peer."""

    parts: Services
    peer: Peer
    request: Request

    def find_jobs(self, conn: Connection, job_ids: Collection[int]) -> dict[int, Job]:
        """The jobs with these ids that exist for the peer, by id."""
        found = [
            job
            for some in sql.split_batches(job_ids)
            for job in search.list_jobs(conn, JobSelector().where(JOB_ID, some), limit=len(some))
        ]
        return self.select_visible(conn, found)

    def select_visible(self, conn: Connection, found: Iterable[Job]) -> dict[int, Job]:
        """Those of the jobs that exist for the peer, by id, in their order.

        For a pilot these are the jobs that pilots hold, and also after their end those that it, or another
        one with the same proxy, held: a JobAgent looks at the end of its job, and stops if it failed.
        """
        jobs = {job.job_id: job for job in sorted(found, key=lambda each: each.job_id)}
        theirs = [job.job_id for job in jobs.values() if self.peer.takes_jobs_of(job.vo)]
        held = attempts.list_of_holder(conn, theirs, holder=self.peer.holder)
        held |= {job_id for job_id in theirs if jobs[job_id].status in HELD}
        return {job_id: job for job_id, job in jobs.items() if job_id in held or self.peer.controls(job)}

    def get_job(self, conn: Connection, job_id: int) -> Job:
        """One job that exists for the peer; `JobNotFound`."""
        found = self.find_jobs(conn, [job_id])
        if job_id not in found:
            raise JobNotFound(job_id)
        return found[job_id]


#: A method takes the call and its arguments, and returns a `jencode.Result`, some as coroutines.
Method = Callable[..., Any]


class CheckedMethod:
    """A method whose arguments are checked by the types in its signature."""

    def __init__(self, function: Method) -> None:
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        hints = get_type_hints(function, include_extras=True)
        self._signature = inspect.signature(function)
        names = list(self._signature.parameters)[1:]
        self._types: Mapping[str, TypeAdapter[Any]] = {name: TypeAdapter(hints[name]) for name in names}

    def read_arguments(self, given: Collection[object]) -> dict[str, object]:
        """The arguments by name; `InvalidRequest` says which is wrong."""
        try:
            bound = self._signature.bind(None, *given).arguments
        except TypeError as error:
            raise InvalidRequest([Problem(path="args", message=str(error))]) from None
        read: dict[str, object] = {}
        for name, adapter in self._types.items():
            if name in bound:
                try:
                    read[name] = adapter.validate_python(bound[name])
                except ValidationError as error:
                    raise list_problems(name, error) from None
        return read


def list_problems(name: str, fault: ValidationError) -> InvalidRequest:
    """Problems of an argument."""
    return InvalidRequest(
        [
            Problem(path="/".join(map(str, (name, *each.location))), message=each.message)
            for each in input_faults.list_faults(fault.errors()[:10])
        ]
    )
