"""What a token is to say, checked before it is signed: which role needs what, and for how long."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from secrets import token_hex

from cs_config.address import QueueAddress
from pilotage.service.callers import Caller, Role
from requirements.errors import InvalidRequest
from requirements.problem import Problem
from requirements.suggestion import did_you_mean
from requirements.values import text_fault

#: How the names of VOs, sites, CEs and queues are written.
_NAME = re.compile(r"[A-Za-z0-9._:@+-]+")
_LONGEST_NAME = 255

#: Roles that mean nothing without a VO.
_NEED_VO = frozenset({Role.USER, Role.VO_ADMIN, Role.DIRECTOR, Role.GATEWAY, Role.PILOT})
#: Roles that may speak for several.
_MANY_VOS = frozenset({Role.DIRECTOR, Role.GATEWAY})
_NEED_SITE = frozenset({Role.SITE_ADMIN, Role.GATEWAY})
_NEED_USER = frozenset({Role.USER})

_DEFAULT_LIFE = timedelta(days=1)
_LONGEST_LIFE = timedelta(days=366)
#: A pilot's token lies on a worker node.
_LONGEST_PILOT_LIFE = timedelta(days=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a token will say, and how long it will be good."""

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
    """The grant for these wishes.

    Args:
        role: One of `Role`.
        vo: The VO; for directors and gateways several, separated by commas.
        user: The person; needed by users.
        group: Owner group; without it `<vo>_user`.
        site: The site; several, separated by commas, where the role may have them.
        queue: `Site/CE/Queue` that a pilot is bound to; without it the first that it states.
        stamp: A pilot's id; without it a new one.
        ttl: Seconds that the token is good; a day without it.

    Raises:
        InvalidRequest: with every problem.
    """
    wanted = _role(role)
    vos = frozenset(name.lower() for name in _split(vo))
    sites = frozenset(_split(site))
    problems = [
        *_missing(wanted, vos=vos, sites=sites, user=user),
        *_too_many(wanted, vos=vos, queue=queue),
        *_bad_names(vos | sites),
        *_bad_texts({"user": user, "group": group, "stamp": stamp}),
        *_bad_life(wanted, ttl),
    ]
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
            message=f"{word!r:.80} is no role, allowed are {allowed}",
            suggestion=did_you_mean(word, list(Role)),
        )
        raise InvalidRequest([problem]) from None


def _split(names: str | None) -> list[str]:
    return [name.strip() for name in (names or "").split(",") if name.strip()]


def _missing(
    role: Role, *, vos: frozenset[str], sites: frozenset[str], user: str | None
) -> Iterator[Problem]:
    for name, needed, given in (
        ("vo", _NEED_VO, vos),
        ("site", _NEED_SITE, sites),
        ("user", _NEED_USER, user),
    ):
        if role in needed and not given:
            yield Problem(path=name, message=f"a token for the role {role} needs it")


def _too_many(role: Role, *, vos: frozenset[str], queue: str | None) -> Iterator[Problem]:
    if len(vos) > 1 and role not in _MANY_VOS:
        yield Problem(
            path="vo", message=f"the role {role} speaks for one VO, not for {', '.join(sorted(vos))}"
        )
    if queue and role is not Role.PILOT:
        yield Problem(path="queue", message=f"only pilots are bound to a queue, not the role {role}")


def _bad_names(names: Iterable[str]) -> Iterator[Problem]:
    for name in sorted(names):
        if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
            yield Problem(
                path=f"{name!r:.80}", message="is no name: allowed are letters, digits and . _ : @ + -"
            )


def _bad_texts(texts: dict[str, str | None]) -> Iterator[Problem]:
    for path, text in texts.items():
        if text is None:
            continue
        if fault := text_fault(text):
            yield Problem(path=path, message=fault)
        if len(text) > _LONGEST_NAME:
            yield Problem(path=path, message=f"has {len(text)} characters, allowed are {_LONGEST_NAME}")


def _bad_life(role: Role, ttl: float | None) -> Iterator[Problem]:
    most = (_LONGEST_PILOT_LIFE if role is Role.PILOT else _LONGEST_LIFE).total_seconds()
    if ttl is not None and not 1 <= ttl <= most:
        yield Problem(path="ttl", message=f"{ttl:.15g} s, allowed are 1 to {most:.0f} s for the role {role}")


def _subject(
    role: Role, *, vos: frozenset[str], sites: frozenset[str], user: str | None, stamp: str | None
) -> str:
    """One name for all tokens of one bearer."""
    if role is Role.PILOT:
        return f"pilot:{stamp}"
    if role is Role.OPERATOR:
        return f"operator:{user or ''}"
    whole = (",".join(sorted(vos)), ",".join(sorted(sites)), user or "")
    return ":".join((role.value, *whole))
