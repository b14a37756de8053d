"""Places that are closed to jobs: switched off, banned or in a downtime; until when, by whom and why."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from sqlalchemy import Connection

from cs_config.cache import Cache, derived
from cs_config.editing import reverts
from cs_config.tree import inheritance
from cs_config.tree.address import QueueAddress, node_depth
from cs_config.tree.configuration import Configuration
from cs_config.tree.inheritance import Parameter
from cs_config.versions import store
from matcher.explain import queue_set
from matcher.explain.job_conditions import JobDemand
from matcher.explain.queue_set import QueueSet
from requirements.errors import format_count, format_time
from requirements.requirement_class import RequirementClass
from requirements.values import fold
from taskqueue.sites import closures
from taskqueue.sites.closures import Closure

#: Places that a text names.
_MOST_NAMED = 3


def find_switched_off(survey: QueueSet, demand: JobDemand) -> int:
    """The queues, as a bit set, that would be eligible if they were switched on."""
    found = survey.admitted & ~survey.enabled
    for failure in survey.failures(demand) if found else ():
        found &= ~failure.queues
    return found


def describe_switched_off(
    conn: Connection, config: Configuration, survey: QueueSet, vo: str, queues: int
) -> str:
    """Where some queues are switched off for a VO; empty: nowhere."""
    switches: dict[str, Parameter] = {}
    for queue in survey.members(queues):
        if switch := find_switch(config, queue.address, vo):
            switches.setdefault(switch.path, switch)
    texts = [describe_switch(conn, config, each) for each in list(switches.values())[:_MOST_NAMED]]
    if len(switches) > _MOST_NAMED:
        texts.append(f"so are {format_count(len(switches) - _MOST_NAMED, 'other place')}")
    return "; ".join(texts)


def find_switch(config: Configuration, address: QueueAddress, vo: str) -> Parameter | None:
    """The first value that switches a queue off for a VO (empty: for all), from its site down; None: none."""
    return inheritance.find_switch(config.levels[address], fold(vo))


def describe_switch(conn: Connection, config: Configuration, switch: Parameter) -> str:
    """A place that is switched off, as text for people."""
    names = switch.path.split("/")
    place = "/".join(names[2 : node_depth(names) : 2])
    due = next((each.due for each in reverts.list_reverts(conn) if each.path == switch.path), None)
    until = f" until {format_time(due)}" if due else ""
    return f"{place} is drained (Enabled: false){until}{_describe_change(conn, config, switch.path)}"


def _describe_change(conn: Connection, config: Configuration, path: str) -> str:
    """Since when a value is there, by whom and why.

    Why is the message of a version that changed nothing else: others may be about what is not for everybody.
    """

    def read() -> str:
        since = store.find_blame(conn, [path], newest=config.version).get(path)
        if since is None:
            return ""
        text = f", since {format_time(since.created_at)} by {since.author}"
        [(_, changed)] = store.list_changes_between(conn, since.version, oldest=since.version)
        return f"{text}: {since.message}" if since.message and changed == (path,) else text

    return _changes(config).get(path, read)


@derived
def _changes(_: Configuration) -> Cache[str, str]:
    """What `_describe_change` has found, by path."""
    return Cache(1000, measure=lambda path, text: 300 + len(path) + 2 * len(text), most=1 << 20)


def format_closure(closure: Closure) -> str:
    """What closes a place now, as text for people."""
    until = f" until {format_time(closure.until)}" if closure.until else ""
    how = "closed by a downtime" if closure.is_downtime else "banned"
    why = f"{closure.reason} (by {closure.author})" if closure.author else closure.reason
    return f"{closure.place} is {how}{until}: {why}; only jobs of type {closures.TEST} run there"


def list_named(
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
            texts.append(format_closure(each))
    if left:
        return ""
    if texts:
        return "; ".join(texts[:_MOST_NAMED])
    off = queues & survey.admitted & ~survey.enabled
    return (
        describe_switched_off(conn, config, survey, vo, off) or f"{place} has no queue that is open to {vo}"
    )
