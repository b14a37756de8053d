"""Which pilots a caller may see, send and speak of."""

from cs_config.address import QueueAddress
from pilotage.service import told
from pilotage.service.callers import Caller, Role
from requirements.errors import InvalidRequest, NotAllowed
from requirements.problem import Problem
from requirements.suggestion import did_you_mean
from requirements.values import fold
from taskqueue import whose
from taskqueue.errors import PilotNotFound
from taskqueue.pilot_search import Filter
from taskqueue.pilots import Pilot
from taskqueue.states import PilotStatus
from taskqueue.whose import Whose


def visible(caller: Caller, *, vo: str | None, site: str | None, status: str | None) -> Filter:
    """The filter for what was asked, narrowed to what is the caller's.

    Raises:
        InvalidRequest: A word is no status of a pilot.
    """
    vos = None if vo is None else frozenset(map(fold, _words(vo)))
    sites = None if site is None else frozenset(_words(site))
    every, any_of = whose.split([each.of(vos=vos, sites=sites) for each in told.counted(caller)])
    return Filter(vos=every.vos, sites=every.sites, statuses=_statuses(status), any_of=any_of)


def vo_of(caller: Caller, named: str | None) -> str:
    """The VO that pilots are sent for.

    Raises:
        InvalidRequest: It is not named, and the token has several.
        NotAllowed: It is not the caller's.
    """
    vo = caller.vo if named is None else fold(named)
    if vo is None:
        raise InvalidRequest([Problem(path="vo", message="has to be named, since the token has not one VO")])
    if not caller.may_read(vo):
        raise NotAllowed(f"the token is not for pilots of {vo}")
    return vo


def require_site(caller: Caller, vo: str, queue: QueueAddress) -> None:
    """Refuse to send pilots of a VO to a site where none of the caller's roles may.

    Raises:
        NotAllowed: It may not.
    """
    may = (one for one in caller.each if one.may_read(vo))
    if not any(not one.sites or queue.site in one.sites for one in may):
        raise NotAllowed(f"the token is not for pilots of {vo} at {queue.site}")


def require(caller: Caller, pilot: Pilot) -> None:
    """Refuse pilots of others as if there were none.

    Raises:
        PilotNotFound: It is not the caller's.
    """
    if caller.role is Role.PILOT:
        is_own = caller.stamp == pilot.stamp
    else:
        is_own = any(_has(each, pilot) for each in told.counted(caller))
    if not is_own:
        raise PilotNotFound(pilot.stamp)


def _has(each: Whose, pilot: Pilot) -> bool:
    is_there = each.sites is None or pilot.may_be_at(each.sites)
    return is_there and (each.vos is None or pilot.vo in each.vos)


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
