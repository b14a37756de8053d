"""What keeps pilots from queues, as directors report it: pauses, used-up places, no director, bad nodes.

Nodes without isolation are among them even where pilots run jobs there, since users should know.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from requirements.errors import format_count, format_time
from taskqueue.pilots import isolation, nodes
from taskqueue.pilots.isolation import IsolationGap
from taskqueue.sites import processes
from taskqueue.sites.processes import QueueState, SiteProcess

#: Texts of one kind.
_MOST_NAMED = 3
#: Ends of pilots that count as recent.
_LATELY: Final = timedelta(hours=1)


def list_obstacles(
    conn: Connection, vo: str, sites: Collection[str], is_wanted: Callable[[str], bool], now: datetime
) -> Iterator[str]:
    """Why queues of these sites get no pilots of a VO now; `is_wanted` selects the queues."""
    directors = [
        each
        for each in processes.list_processes(conn, [vo])
        if each.kind == "director" and not each.is_overdue(now)
    ]
    found = [(each, state) for each in directors for state in each.queues or () if is_wanted(state.queue)]
    paused = [(each, state) for each, state in found if state.is_paused(now)]
    yield from _name_some([_describe_pause(each, state) for each, state in paused], "further queue is paused")
    full = [(each, state) for each, state in found if state.is_full and not state.is_paused(now)]
    if full and len(full) + len(paused) == len(found):
        yield from _name_some([_describe_full(each, state) for each, state in full], "further queue is full")
    if directors and not found and all(each.lists_all_queues for each in directors):
        yield f"no director of {vo} at work ({_join_names(directors)}) sends pilots to an eligible queue"
    gaps = isolation.list_gaps(conn, vo, sites, since=now - _LATELY)
    wanted = [each for each in gaps if is_wanted(str(each.queue))]
    yield from _name_some([_describe_gap(vo, each) for each in wanted], "further queue is without isolation")
    excluded = [each for each in nodes.list_excluded(conn, vos=[vo], now=now) if each.site in sites]
    yield from _name_some(
        [
            f"the node {each.node} of {each.site} takes no jobs of {vo} until {format_time(each.until)}, "
            "since its pilots there ended because of their host"
            for each in excluded
        ],
        "further node is excluded",
    )


def _describe_gap(vo: str, gap: IsolationGap) -> str:
    node = f", such as {gap.node}," if gap.node else ""
    pilots = f"{gap.pilots} of {format_count(gap.of, 'pilot')} of {vo} that ended at {gap.queue} lately"
    if not gap.kind:
        return (
            f"{pilots} ran jobs without isolation, so that they could read files of each other's: "
            f"the nodes{node} have no user namespaces"
        )
    lack = "have no user namespaces" if gap.kind == "userns" else "do not allow that"
    return (
        f"{pilots} got no job: they have to isolate jobs (--isolation={gap.kind}), and the nodes{node} {lack}"
    )


def _describe_pause(director: SiteProcess, state: QueueState) -> str:
    until = "" if state.paused_until is None else format_time(state.paused_until)
    return (
        f"the director {director.name} sends no pilots to {state.queue} until {until}: "
        "most of its last pilots failed there, or got no job"
    )


def _describe_full(director: SiteProcess, state: QueueState) -> str:
    return (
        f"the director {director.name} has as many pilots at {state.queue} as may be there: "
        f"of {director.vo} {state.waiting} wait and {state.running} run"
    )


def _join_names(directors: Sequence[SiteProcess]) -> str:
    more = f" and {len(directors) - _MOST_NAMED} more" if len(directors) > _MOST_NAMED else ""
    return ", ".join(each.name for each in directors[:_MOST_NAMED]) + more


def _name_some(texts: Sequence[str], further: str) -> Iterator[str]:
    yield from texts[:_MOST_NAMED]
    if (more := len(texts) - _MOST_NAMED) > 0:
        yield format_count(more, further, further.replace(" is ", "s are ", 1))
