"""Callers: roles, capabilities, their form as token claims, and the checks before a token is minted."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from secrets import token_hex
from typing import Annotated

from pydantic import Field, PlainSerializer, TypeAdapter

from cs_config.tree.address import QueueAddress
from requirements.errors import InvalidRequest, Problem, did_you_mean
from requirements.values import text_fault


class Role(StrEnum):
    """The role of a bearer; each route names the roles that may use it."""

    USER = "user"  #: submits in its VO, sees and controls its own jobs
    VO_ADMIN = "vo_admin"  #: all jobs of its VO
    SITE_ADMIN = "site_admin"  #: manages a site
    DIRECTOR = "director"  #: sends pilots for its VOs
    GATEWAY = "gateway"  #: a site's job manager
    PILOT = "pilot"  #: takes and runs jobs in one batch slot
    OPERATOR = "operator"  #: everything
    MONITOR = "monitor"  #: reads the metrics, nothing else


class Capability(StrEnum):
    """Scopes to which a user's token of another issuer may be limited. Source: WLCG Common JWT Profiles."""

    READ = "compute.read"  #: read jobs
    CREATE = "compute.create"  #: submit jobs
    MODIFY = "compute.modify"  #: change, reschedule or reset jobs
    CANCEL = "compute.cancel"  #: kill or delete jobs


#: Written in order, so that equal callers have equal claims.
_Names = Annotated[frozenset[str], PlainSerializer(sorted)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The bearer of a verified token."""

    role: Role
    #: The same for every token of one bearer: leases and idempotency keys belong to it.
    subject: Annotated[str, Field(alias="sub")]
    vos: _Names = frozenset()  #: lower case; of an operator: default VO of its submissions
    user: str = ""
    group: str = ""
    sites: _Names = frozenset()
    queue: QueueAddress | None = None  #: of a pilot bound from the start
    stamp: str | None = None  #: a pilot's own id
    #: None: all that the role allows.
    capabilities: Annotated[frozenset[Capability], PlainSerializer(sorted)] | None = None
    also: tuple["Caller", ...] = ()  #: further roles of the same bearer; any of them suffices for a request

    @property
    def each(self) -> tuple["Caller", ...]:
        """One caller for each of its roles."""
        return (replace(self, also=()), *self.also) if self.also else (self,)

    def within(self, roles: Collection[Role]) -> "Caller | None":
        """The caller with only those of its roles that are in `roles`; None: it has none of them."""
        if not self.also:
            return self if self.role in roles else None
        return union([one for one in self.each if one.role in roles])

    @property
    def is_operator(self) -> bool:
        """Whether everything is allowed."""
        if not self.also:
            return self.role is Role.OPERATOR
        return any(one.role is Role.OPERATOR for one in (self, *self.also))

    @property
    def vo(self) -> str | None:
        """The VO, if there is exactly one."""
        return next(iter(self.vos)) if len(self.vos) == 1 else None

    @property
    def tenant(self) -> str:
        """The name under which it shares what VOs share: its VO, or itself if it is not of exactly one."""
        return self.vo or self.subject

    @property
    def author(self) -> str:
        """The name under which others see what it changed: its user, or itself without one."""
        return self.user or self.subject

    @property
    def visible_vos(self) -> frozenset[str] | None:
        """The VOs whose data the caller may read; None: all."""
        return None if self.is_operator else frozenset().union(*(one.vos for one in self.each))

    def may_read(self, vo: str) -> bool:
        """Whether the caller may read pools, parameters and explanations of `vo`."""
        return self.visible_vos is None or vo in self.visible_vos

    @property
    def every_site(self) -> frozenset[str]:
        """The sites of all its roles."""
        return frozenset().union(*(one.sites for one in self.each))

    @property
    def own_sites(self) -> frozenset[str]:
        """The sites that the caller administers; empty for an operator, who administers all."""
        return frozenset().union(*(one.sites for one in self.each if one.role is Role.SITE_ADMIN))

    def looks_after(self, site: str) -> bool:
        """Whether the caller administers the site and so sees the jobs of every VO there."""
        return self.is_operator or site in self.own_sites


def union(several: Sequence[Caller]) -> Caller | None:
    """One bearer with several roles, in this order; None: there are none."""
    every = next(([one] for one in several if one.is_operator), list(several))
    return replace(every[0], also=tuple(every[1:])) if every else None


_CALLER = TypeAdapter(Caller)


def claims_of(caller: Caller) -> dict[str, object]:
    """The claims of a token that describe its bearer."""
    claims: dict[str, object] = _CALLER.dump_python(
        caller, mode="json", by_alias=True, exclude={"also"}, exclude_defaults=True
    )
    return claims


def read(claims: Mapping[str, object]) -> Caller:
    """Build the caller from the claims of one of our tokens; of others, `InvalidRequest` or `ValueError`."""
    return _CALLER.validate_python({**claims, "also": ()})


#: Allowed names of VOs, sites, CEs and queues.
_NAME = re.compile(r"[A-Za-z0-9._:@+-]+")
_LONGEST_NAME = 255

#: Roles that require a VO.
_NEED_VO = frozenset({Role.USER, Role.VO_ADMIN, Role.DIRECTOR, Role.GATEWAY, Role.PILOT})
#: Roles that may have several VOs.
_MANY_VOS = frozenset({Role.DIRECTOR, Role.GATEWAY})
_NEED_SITE = frozenset({Role.SITE_ADMIN, Role.GATEWAY})
_NEED_USER = frozenset({Role.USER})

_DEFAULT_LIFE = timedelta(days=1)
_LONGEST_LIFE = timedelta(days=366)
#: Shorter, since a pilot's token is stored on a worker node.
_LONGEST_PILOT_LIFE = timedelta(days=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Content and lifetime of a token to mint."""

    caller: Caller
    ttl: timedelta


def grant(
    *,
    role: str,
    vo: str | None = None,
    user: str | None = None,
    group: str | None = None,
    site: str | None = None,
    queue: str | None = None,
    stamp: str | None = None,
    ttl: float | None = None,
) -> Grant:
    """Check the wishes and build the grant; `InvalidRequest` lists every problem.

    `vo` and `site` may be several names, separated by commas, where the role allows them. The `group` is by
    default `<vo>_user`; a pilot is bound to the `queue`, by default to the first that it states. `ttl` is in
    seconds, by default one day.
    """
    wanted = _role(role)
    vos = frozenset(name.lower() for name in _split(vo))
    sites = frozenset(_split(site))
    problems = [
        *_check_role(wanted, vos=vos, sites=sites, user=user, queue=queue),
        *_check_names(vos | sites),
        *_check_texts({"user": user, "group": group, "stamp": stamp}),
    ]
    most = (_LONGEST_PILOT_LIFE if wanted is Role.PILOT else _LONGEST_LIFE).total_seconds()
    if ttl is not None and not 1 <= ttl <= most:
        message = f"{ttl:.15g} s, allowed are 1 to {most:.0f} s for the role {wanted}"
        problems.append(Problem(path="ttl", message=message))
    if problems:
        raise InvalidRequest(problems)
    if wanted is Role.PILOT:
        stamp = stamp or token_hex(16)
    caller = Caller(
        role=wanted,
        subject=_subject(wanted, vos=vos, sites=sites, user=user, stamp=stamp),
        vos=vos,
        user=user or "",
        group=group or (f"{next(iter(vos))}_user" if len(vos) == 1 else ""),
        sites=sites,
        queue=QueueAddress.parse(queue) if queue else None,
        stamp=stamp,
    )
    return Grant(caller=caller, ttl=_DEFAULT_LIFE if ttl is None else timedelta(seconds=ttl))


def _role(word: str) -> Role:
    try:
        return Role(word)
    except ValueError:
        allowed = ", ".join(Role)
        problem = Problem(
            path="role",
            message=f"{word!r:.80} is not a role, allowed are {allowed}",
            suggestion=did_you_mean(word, list(Role)),
        )
        raise InvalidRequest([problem]) from None


def _split(names: str | None) -> list[str]:
    return [name.strip() for name in (names or "").split(",") if name.strip()]


def _check_role(
    role: Role, *, vos: frozenset[str], sites: frozenset[str], user: str | None, queue: str | None
) -> Iterator[Problem]:
    """Problems of a grant: values that its role needs and that are missing, or that it does not allow."""
    for name, needed, given in (
        ("vo", _NEED_VO, vos),
        ("site", _NEED_SITE, sites),
        ("user", _NEED_USER, user),
    ):
        if role in needed and not given:
            yield Problem(path=name, message=f"a token for the role {role} needs it")
    if len(vos) > 1 and role not in _MANY_VOS:
        yield Problem(path="vo", message=f"the role {role} allows one VO, not {', '.join(sorted(vos))}")
    if queue and role is not Role.PILOT:
        yield Problem(path="queue", message=f"only pilots are bound to a queue, not the role {role}")


def _check_names(names: Iterable[str]) -> Iterator[Problem]:
    for name in sorted(names):
        if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
            yield Problem(
                path=f"{name!r:.80}",
                message="is not a valid name: allowed are letters, digits and . _ : @ + -",
            )


def _check_texts(texts: dict[str, str | None]) -> Iterator[Problem]:
    for path, text in texts.items():
        if text is None:
            continue
        if fault := text_fault(text):
            yield Problem(path=path, message=fault)
        if len(text) > _LONGEST_NAME:
            yield Problem(path=path, message=f"has {len(text)} characters, allowed are {_LONGEST_NAME}")


def _subject(
    role: Role, *, vos: frozenset[str], sites: frozenset[str], user: str | None, stamp: str | None
) -> str:
    """The subject shared by all tokens of one bearer."""
    if role is Role.PILOT:
        return f"pilot:{stamp}"
    if role is Role.OPERATOR:
        return f"operator:{user}" if user else "operator"
    return f"{role}:{','.join(sorted(vos))}:{','.join(sorted(sites))}:{user or ''}"
