"""Sites and CEs that a job names and that take no jobs like it now."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from sqlalchemy import Connection

from cs_config.tree.configuration import Configuration
from matcher.explain import blockers, queue_set, switched_off
from matcher.explain.queue_set import QueueSet
from requirements.errors import format_count
from requirements.requirement_class import RequirementClass
from requirements.values import fold
from taskqueue.sites import closures
from taskqueue.sites.closures import Closure

#: Closed places that are listed.
_MOST_NAMED = 3


def list_closed(
    conn: Connection, config: Configuration, asked: RequirementClass, now: datetime
) -> Iterator[str]:
    """The places that a job names, some of them closed to jobs like it now, as a text.

    None while all that it names are switched off, or not for its VO: then no queue is eligible, and that is
    told with its reason.
    """
    survey = queue_set.all_queues(config, asked.vo)
    named = _list_named(survey, asked)
    if any(map(closures.is_test, asked.job_types)) or not any(
        queues & survey.candidates for queues in named.values()
    ):
        return
    closing = closures.read_closures(conn, {place.partition("/")[0] for place in named}, now=now)
    closed = {
        place: why
        for place, queues in sorted(named.items())
        if (why := _describe_closed(conn, config, survey, asked.vo, place, queues, closing))
    }
    if not closed:
        return
    why = "; ".join(list(closed.values())[:_MOST_NAMED])
    kind = "CE" if asked.grid_ces else "site"
    if len(named) == 1:
        yield f"the only {kind} of a job takes no jobs now: {why}; it waits for it"
        return
    rest = f"it may run at its other {kind}s" if len(closed) < len(named) else "it waits for one of them"
    verb = "takes" if len(closed) == 1 else "take"
    yield f"{len(closed)} of the {format_count(len(named), kind)} of a job {verb} no jobs now: {why}; {rest}"


def _list_named(survey: QueueSet, asked: RequirementClass) -> Mapping[str, int]:
    """The queues of each site that a job names; if it names CEs, of each of these that its VO may use."""
    known = {fold(site): site for site in survey.sites} if asked.sites else {}
    sites = {known.get(fold(site), site) for site in asked.sites}
    if not asked.grid_ces:
        return {site: survey.sites.get(site, 0) for site in sites}
    places = frozenset().union(*(survey.ce_places.get(fold(ce), ()) for ce in asked.grid_ces))
    return {
        place: queues
        for place in places
        if (not sites or place.partition("/")[0] in sites)
        and (queues := survey.within(place)) & survey.admitted
    }


def _describe_closed(
    conn: Connection,
    config: Configuration,
    survey: QueueSet,
    vo: str,
    place: str,
    queues: int,
    closing: list[Closure],
) -> str:
    """What closes all queues of a place to jobs of a VO; empty: some queue is open."""
    left, texts = queues & survey.candidates, []
    for each in closing:
        if here := survey.within(each.place) & left:
            left &= ~here
            texts.append(blockers.format_closure(each))
    if left:
        return ""
    if texts:
        return "; ".join(texts[:_MOST_NAMED])
    off = queues & survey.admitted & ~survey.enabled
    return (
        switched_off.describe_queues(conn, config, survey, vo, off)
        or f"{place} has no queue that is open to {vo}"
    )
