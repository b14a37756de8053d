"""Pilots: intent, reference, state."""

from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from sqlalchemy import Connection

from cs_config.address import QueueAddress
from cs_config.errors import QueueNotFound
from pilotage.service.access import allow
from pilotage.service.api_route import SMALL, ApiRoute, CallerOf, PartsOf, takes_at_most
from pilotage.service.callers import Caller, Role
from pilotage.service.models.pilots import (
    NewPilot,
    PilotAnswer,
    PilotNews,
    PilotPage,
    PilotQuery,
    RegisteredPilot,
)
from requirements.errors import InvalidRequest, NotAllowed
from requirements.problem import Problem
from requirements.suggestion import did_you_mean
from requirements.values import fold
from taskqueue import database, pilot_secrets, pilots
from taskqueue.errors import PilotNotFound
from taskqueue.pilots import Pilot, PilotFilter
from taskqueue.states import PilotStatus

router = APIRouter(prefix="/pilots", tags=["pilots"], route_class=ApiRoute)

StampPath = Annotated[str, Path(min_length=1, max_length=255)]


@router.post("", status_code=201)
@allow(Role.DIRECTOR)
@takes_at_most(SMALL)
def register(parts: PartsOf, caller: CallerOf, body: NewPilot, response: Response) -> RegisteredPilot:
    """Store the intent to submit a pilot; a second time it answers 200 and changes nothing but the secret."""
    queue = QueueAddress.parse(body.queue)
    vo = _vo(caller, body.vo)
    _require_site(caller, queue.site)
    config = parts.live.current
    if not config.knows(queue):
        raise QueueNotFound(str(queue), config.suggest(str(queue)))
    now = parts.clock()
    with database.writing(parts.engine) as conn:
        is_new = pilots.register(
            conn, stamp=body.stamp, vo=vo, queue=queue, submitted_by=caller.subject, now=now
        )
        response.status_code = 201 if is_new else 200
        answer = RegisteredPilot.model_validate(pilots.get(conn, body.stamp))
        return answer.model_copy(update=_secret(conn, body, now) if body.secret else {})


@router.post("/{stamp}/status")
@allow(Role.DIRECTOR, Role.PILOT)
@takes_at_most(SMALL)
def set_status(parts: PartsOf, caller: CallerOf, stamp: StampPath, body: PilotNews) -> PilotAnswer:
    """Store what became of a pilot: its director's news, or its own."""
    with database.writing(parts.engine) as conn:
        _require(caller, pilots.get(conn, stamp))
        pilots.set_status(
            conn, stamp, body.status, reason=body.reason, reference=body.reference, now=parts.clock()
        )
        return PilotAnswer.model_validate(pilots.get(conn, stamp))


@router.get("")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
def list_pilots(parts: PartsOf, caller: CallerOf, query: Annotated[PilotQuery, Query()]) -> PilotPage:
    """List pilots: of the caller's VOs, at the caller's sites."""
    which = PilotFilter(
        vos=_narrowed(query.vo, frozenset() if caller.is_operator else caller.vos, fold_case=True),
        sites=_narrowed(query.site, caller.sites),
        statuses=_statuses(query.status),
        since=query.since,
    )
    with database.reading(parts.engine) as conn:
        found = pilots.find(conn, which, limit=query.enough, after=query.after)
    page, last = query.cut(found)
    return PilotPage(
        pilots=[PilotAnswer.model_validate(pilot) for pilot in page], next=last.stamp if last else None
    )


def _secret(conn: Connection, body: NewPilot, now: datetime) -> dict[str, object]:
    life = timedelta(seconds=body.secret_lifetime)
    secret, expires_at = pilot_secrets.issue(conn, body.stamp, life=life, now=now)
    return {"secret": secret, "secret_expires_at": expires_at}


def _vo(caller: Caller, named: str | None) -> str:
    vo = caller.vo if named is None else fold(named)
    if vo is None:
        raise InvalidRequest([Problem(path="vo", message="has to be named, since the token has not one VO")])
    if not caller.may_read(vo):
        raise NotAllowed(f"the token is not for pilots of {vo}")
    return vo


def _require_site(caller: Caller, site: str) -> None:
    if caller.sites and site not in caller.sites:
        raise NotAllowed(f"the token is not for pilots at {site}")


def _require(caller: Caller, pilot: Pilot) -> None:
    """Refuse pilots of others as if there were none."""
    if caller.role is Role.PILOT and caller.stamp != pilot.stamp:
        raise PilotNotFound(pilot.stamp)
    if not caller.may_read(pilot.vo) or (caller.sites and pilot.site not in caller.sites):
        raise PilotNotFound(pilot.stamp)


def _narrowed(named: str | None, own: frozenset[str], *, fold_case: bool = False) -> frozenset[str] | None:
    """What was asked for and is one's own; None: everything. Nothing of one's own means no limit."""
    if named is None:
        return own or None
    asked = frozenset(fold(name) if fold_case else name for name in _words(named))
    return asked & own if own else asked


def _statuses(named: str | None) -> frozenset[PilotStatus] | None:
    if named is None:
        return None
    words = _words(named)
    wrong = [word for word in words if word not in list(PilotStatus)]
    if wrong:
        raise InvalidRequest(
            [
                Problem(
                    path="status",
                    message=f"{word!r:.80} is no status of a pilot",
                    suggestion=did_you_mean(word, list(PilotStatus)),
                )
                for word in wrong
            ]
        )
    return frozenset(PilotStatus(word) for word in words)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
