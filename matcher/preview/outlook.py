"""The outlook of a proposed configuration: its effects on waiting jobs, pools, places and running work.

All effects are computed with the evaluator and the limits that matching uses.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection

from cs_config.tree import admission_cache, parameters
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from cs_config.versions.diff import ABSENT, Difference, list_leaves
from cs_config.versions.proposals import Proposal
from matcher.explain import job_conditions
from matcher.explain.job_conditions import JobCondition
from matcher.explain.queue_report import class_conditions
from matcher.limits import job_groups, running_limits, throttle_state
from matcher.limits.running_limits import PlaceRule
from matcher.preview import shifts
from matcher.preview.shifts import ChangedQueues, ClassShift, PoolShift, VersionComparison
from requirements.values import Value, fold
from taskqueue.db import sql
from taskqueue.pools import pools
from taskqueue.sites import occupancy, scopes
from taskqueue.task_queues import listing
from taskqueue.task_queues.listing import WaitingClass

#: Sections without parameters.
_NO_PARAMETERS = frozenset({"Throttle", "Forwarding"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UselessParameter:
    """A parameter that makes no queue eligible for a waiting job."""

    name: str
    queues: int  #: queues that get it
    jobs: int  #: waiting jobs that require it and still do not fit; 0: no job requires it


#: Parameter names, as spelled, with the queues that may get them.
_Set = Mapping[str, set[QueueAddress]]


def list_set_names(differences: Iterable[Difference], changed: ChangedQueues, vo: str) -> _Set:
    """The parameters that a change sets for a VO."""
    found: defaultdict[str, set[QueueAddress]] = defaultdict(set)
    for difference in differences:
        for names in list_leaves(difference) if difference.after is not ABSENT else ():
            if names[:2] == ("Resources", "Sites") and not _NO_PARAMETERS.intersection(names):
                found[names[-1]] |= changed.queues_of(names, vo)
    return {name: queues for name, queues in found.items() if queues}


def list_useless_parameters(
    versions: VersionComparison, names: _Set, waiting: Iterable[WaitingClass]
) -> Iterator[UselessParameter]:
    """Set parameters that help none of the VO's waiting classes."""
    asked: defaultdict[str, dict[object, tuple[JobCondition, int]]] = defaultdict(dict)
    for each in waiting:
        for part in class_conditions(each.asked, each.requirements):
            for parameter in job_conditions.condition_parameters(part, versions.now.declarations):
                jobs = asked[parameter].get(part.key, (part, 0))[1]
                asked[parameter][part.key] = part, jobs + each.jobs
    for name, queues in names.items():
        if found := _check_parameter(name, queues, asked.get(fold(name), {}).values(), versions):
            yield found


def _check_parameter(
    name: str,
    queues: set[QueueAddress],
    asked: Iterable[tuple[JobCondition, int]],
    versions: VersionComparison,
) -> UselessParameter | None:
    here = versions.now
    mask = sum(1 << number for number, queue in enumerate(here.queues) if queue.address in queues)
    asked = list(asked)
    if not mask or (not asked and parameters.is_known(fold(name))):
        return None
    if any(here.fulfilling([part]) & mask for part, _ in asked):
        return None
    return UselessParameter(name=name, queues=mask.bit_count(), jobs=sum(jobs for _, jobs in asked))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedPlace:
    """A place that the change would close."""

    scope: str  #: `Site`, `Site/CE` or `Site/CE/Queue`
    text: str  #: reason, as text for people


def list_closed_places(
    conn: Connection, proposal: Proposal, *, vos: Collection[str] | None, now: datetime
) -> Iterator[ClosedPlace]:
    """The places that are open now and would be closed, as far as these VOs (None: all) may see them."""
    yield from _throttles(conn, proposal, now)
    yield from _limits(conn, proposal, vos, now)


def _throttles(conn: Connection, proposal: Proposal, now: datetime) -> Iterator[ClosedPlace]:
    before, after = proposal.before.throttles, proposal.after.throttles
    changed = [scope for scope, throttle in after.items() if before.get(scope) != throttle]
    was = _closed(conn, proposal.before, [scope for scope in changed if scope in before], now)
    for scope, why in _closed(conn, proposal.after, changed, now).items():
        if scope not in was:
            yield ClosedPlace(scope=scope, text=f"throttled ({why})")


def _closed(
    conn: Connection, config: Configuration, names: Collection[str], now: datetime
) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for some in sql.split_batches(names):
        read = scopes.read_scopes(conn, some)
        for scope, standing in throttle_state.read_standings(conn, config, read.values(), now).items():
            room = standing.room()
            if room.jobs is not None and room.jobs <= 0:
                found[scope] = room.why or "no room"
    return found


def _limits(
    conn: Connection, proposal: Proposal, vos: Collection[str] | None, now: datetime
) -> Iterator[ClosedPlace]:
    known = {
        _key(scope, rule)
        for scope, rules in running_limits.rules_by_scope(proposal.before).items()
        for rule in rules
    }
    changed = [
        scope
        for scope, rules in running_limits.rules_by_scope(proposal.after).items()
        if any(_key(scope, rule) not in known for rule in rules)
    ]
    for scope, conditions in running_limits.read_conditions(conn, proposal.after, changed, now).items():
        for each in conditions:
            if each.full and _key(scope, each.rule) not in known and each.rule.may_be_told(vos):
                yield ClosedPlace(scope=scope, text=each.why)


def _key(scope: str, rule: PlaceRule) -> tuple[object, ...]:
    return scope, rule.vo, rule.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWork:
    """A VO's work at a queue that the change closes to it."""

    queue: QueueAddress
    vo: str
    why: str  #: as text for people
    jobs: int  #: held by pilots
    pilots: int  #: submitted and not ended


def list_lost_work(
    conn: Connection, proposal: Proposal, *, vos: Collection[str] | None
) -> Iterator[LostWork]:
    """The work of these VOs (None: all) at queues that are closed to them, by queue and VO."""
    there = occupancy.count_by_queue(conn)
    for (vo, queue), present in sorted(there.items()):
        if vos is not None and vo not in vos:
            continue
        why = _why(proposal, queue, vo)
        if why is not None:
            yield LostWork(queue=queue, vo=vo, why=why, jobs=present.jobs, pilots=present.pilots)


def _why(proposal: Proposal, queue: QueueAddress, vo: str) -> str | None:
    """Why the change closes the queue to the VO; None: it does not."""
    if not _usable(proposal.before, queue, vo) or _usable(proposal.after, queue, vo):
        return None
    if not proposal.after.knows(queue):
        return "the queue is removed"
    return f"it is not for {vo}" if proposal.after.enabled(queue, vo) else "it is switched off"


def _usable(config: Configuration, queue: QueueAddress, vo: str) -> bool:
    return config.knows(queue) and config.usable(queue, vo)


@dataclass(frozen=True, slots=True, kw_only=True)
class VoJobs:
    """Effect on the waiting jobs of a VO."""

    waiting: int = 0
    stuck: int = 0  #: they lose their last queue
    freed: int = 0  #: they get their first queue
    gain: int = 0  #: they get more queues
    lose: int = 0  #: they get fewer queues


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The effects that a proposed configuration would have at this moment."""

    new: tuple[QueueAddress, ...]  #: added queues
    removed: tuple[QueueAddress, ...]  #: removed queues
    jobs: Mapping[str, VoJobs]  #: by VO
    classes: tuple[ClassShift, ...]  #: of waiting jobs, most jobs first
    pools: tuple[PoolShift, ...]  #: most waiting jobs first
    going: tuple[LostWork, ...]
    bites: tuple[ClosedPlace, ...]
    vain: Mapping[str, tuple[UselessParameter, ...]]  #: by VO

    @property
    def totals(self) -> Mapping[str, int]:
        """The totals that a guard may use."""
        return {
            "stuck_jobs": sum(each.stuck for each in self.jobs.values()),
            "freed_jobs": sum(each.freed for each in self.jobs.values()),
            "pools_gaining": sum(1 for each in self.pools if each.shift.gained),
            "pools_losing": sum(1 for each in self.pools if each.shift.lost),
            "pools_without_queue": sum(1 for each in self.pools if each.shift.had and not each.shift.has),
            "running_jobs": sum(each.jobs for each in self.going),
            "pilots": sum(each.pilots for each in self.going),
            "closed_places": len(self.bites),
            "new_queues": len(self.new),
            "removed_queues": len(self.removed),
        }


def compute_outlook(
    conn: Connection, proposal: Proposal, *, vos: Collection[str] | None, now: datetime
) -> Outlook:
    """Compute the outlook of a proposal.

    `vos` restricts jobs, pools and limits to those of these VOs; None: all. Expired values do not count.
    """
    proposal = replace(proposal, before=proposal.before.at_moment(now), after=proposal.after.at_moment(now))
    waiting = _group_by_vo(listing.list_waiting(conn, vos))
    stored = pools.list_requirements(conn, vos)
    ads = _read_job_ads(conn, proposal, waiting)
    before, after = set(proposal.before.levels), set(proposal.after.levels)
    found = _OutlookBuilder(proposal)
    for vo in sorted({*waiting, *stored}):
        found.add_vo(vo, waiting.get(vo, []), stored.get(vo, {}), ads)
    return Outlook(
        new=tuple(sorted(after - before)),
        removed=tuple(sorted(before - after)),
        jobs={vo: _sums(each, found.classes.get(vo, [])) for vo, each in sorted(waiting.items())},
        classes=tuple(
            sorted(
                (each for these in found.classes.values() for each in these), key=lambda c: -c.waiting.jobs
            )
        ),
        pools=tuple(sorted(found.pools, key=lambda pool: (-pool.waiting, pool.pool_id))),
        going=tuple(list_lost_work(conn, proposal, vos=vos)),
        bites=tuple(list_closed_places(conn, proposal, vos=vos, now=now)),
        vain=found.vain,
    )


class _OutlookBuilder:
    """Results collected VO by VO."""

    def __init__(self, proposal: Proposal) -> None:
        self._proposal = proposal
        self._changed = ChangedQueues(proposal)
        self.classes: dict[str, list[ClassShift]] = {}
        self.pools: list[PoolShift] = []
        self.vain: dict[str, tuple[UselessParameter, ...]] = {}

    def add_vo(
        self,
        vo: str,
        waiting: Sequence[WaitingClass],
        stored: Mapping[str, str],
        ads: Mapping[int, Mapping[str, Value]],
    ) -> None:
        """Add the effects on one VO."""
        changed = self._changed.from_differences(vo)
        if not changed:
            return
        here = VersionComparison(self._proposal.before, self._proposal.after, vo, changed)
        self.classes[vo] = list(shifts.class_shifts(here, waiting, ads))
        self.pools += shifts.pool_shifts(here, vo, stored, waiting)
        names = list_set_names(self._proposal.differences, self._changed, vo)
        if found := tuple(list_useless_parameters(here, names, waiting)):
            self.vain[vo] = found


def _group_by_vo(waiting: Sequence[WaitingClass]) -> dict[str, list[WaitingClass]]:
    found: defaultdict[str, list[WaitingClass]] = defaultdict(list)
    for each in waiting:
        found[each.asked.vo].append(each)
    return dict(found)


def _read_job_ads(
    conn: Connection, proposal: Proposal, waiting: Mapping[str, Sequence[WaitingClass]]
) -> Mapping[int, Mapping[str, Value]]:
    """The first job of each class by id, as its representative, where queues have conditions on jobs."""
    if not (admission_cache.is_configured(proposal.before) or admission_cache.is_configured(proposal.after)):
        return {}
    classes = [each for these in waiting.values() for each in these]
    return {job.job_id: job_groups.job_ad(job) for job in listing.list_first_jobs(conn, classes)}


def _sums(waiting: Sequence[WaitingClass], shifted: Sequence[ClassShift]) -> VoJobs:
    return VoJobs(
        waiting=sum(each.jobs for each in waiting),
        stuck=sum(each.stuck for each in shifted),
        freed=sum(each.freed for each in shifted),
        gain=sum(each.waiting.jobs for each in shifted if each.shift.gained),
        lose=sum(each.waiting.jobs for each in shifted if each.shift.lost),
    )
