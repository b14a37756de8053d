"""The outlook of a proposed configuration: its effects on waiting jobs, pools, places and running work.

All effects are computed with the evaluator and the limits that matching uses.

A guard is a condition on an outlook, such as `stuck_jobs=0`, that must hold for a change to be made.
"""

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from typing import Annotated, Final

from pydantic import Field
from sqlalchemy import Connection

from cs_config.editing.editor import ConfigEditor, ProposalCheck
from cs_config.editing.proposals import Proposal
from cs_config.source.diff import ABSENT, Difference, list_leaves
from cs_config.tree import parameters, resources
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.explain import job_conditions, kept_for_floors, queue_report, work_budget
from matcher.explain.job_conditions import JobCondition
from matcher.explain.queue_report import WaitingWork
from matcher.explain.work_budget import ChosenClasses
from matcher.limits import floors, running_limits, throttle_standings
from matcher.limits.floors import FloorStanding
from matcher.limits.running_limits import PlaceCondition
from matcher.preview import shifts
from matcher.preview.lowered_floors import LoweredFloor, list_lowered_floors
from matcher.preview.shifts import ChangedQueues, ClassShift, ComparedAds, PoolShift, VersionComparison
from matcher.preview.type_shifts import TypeShift, list_type_shifts
from requirements.bitset import mask_from
from requirements.errors import InvalidRequest, PilotageError, Problem, did_you_mean
from requirements.requirement_class import RequirementClass
from requirements.values import fold
from taskqueue.pools import pools
from taskqueue.sites import occupancy
from taskqueue.task_queues import listing
from taskqueue.task_queues.listing import WaitingClass

#: Sections without parameters: limits hold names of VOs and kinds of jobs.
_NO_PARAMETERS = frozenset({"Throttle", "Forwarding", *resources.OF_LIMITS})


@dataclass(frozen=True, slots=True, kw_only=True)
class UselessParameter:
    """A parameter that makes no queue eligible for a waiting job."""

    vo: str
    name: str
    queues: int  #: queues that get it
    jobs: Annotated[
        int,
        Field(description="Waiting jobs that it decides about, and lets none in there; 0: no job needs it."),
    ]


def list_useless_parameters(
    versions: VersionComparison,
    waiting: Iterable[WaitingClass],
    queues_by_name: Mapping[str, Collection[QueueAddress]],
) -> Iterator[UselessParameter]:
    """Set parameters that help none of the VO's waiting classes."""
    here = versions.new
    asked: defaultdict[str, dict[object, tuple[JobCondition, int]]] = defaultdict(dict)
    for each in waiting:
        for part in job_conditions.class_conditions(each.asked, each.requirements):
            for parameter in job_conditions.list_parameters(part, "", here.declarations):
                jobs = asked[parameter].get(part.key, (part, 0))[1]
                asked[parameter][part.key] = part, jobs + each.jobs
    for name, addresses in queues_by_name.items():
        queues = mask_from([n for n, queue in enumerate(here.queues) if queue.address in addresses])
        parts = asked[fold(name)].values()
        if not queues or (not parts and parameters.is_known(fold(name))):
            continue
        if not any(here.fulfilling([part]) & queues for part, _ in parts):
            jobs = sum(jobs for _, jobs in parts)
            yield UselessParameter(vo=versions.vo, name=name, queues=queues.bit_count(), jobs=jobs)


def list_set_parameters(
    differences: Iterable[Difference], changed: ChangedQueues, vo: str
) -> Mapping[str, Collection[QueueAddress]]:
    """The names of the parameters that a change sets for a VO, with the queues that may get them."""
    found: defaultdict[str, set[QueueAddress]] = defaultdict(set)
    for difference in differences:
        for names in list_leaves(difference) if difference.after is not ABSENT else ():
            if names[:2] == ("Resources", "Sites") and not _NO_PARAMETERS.intersection(names):
                found[names[-1]] |= changed.queues_of(names, vo)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedPlace:
    """A place that the change would close."""

    scope: str  #: `Site`, `Site/CE` or `Site/CE/Queue`
    why: str  #: as text for people


def list_closed_places(
    conn: Connection, proposal: Proposal, *, vos: Collection[str] | None, now: datetime
) -> Iterator[ClosedPlace]:
    """The places that are open now and would be closed, as far as these VOs (None: all) may see them."""
    before, after = proposal.before.throttles, proposal.after.throttles
    changed = [scope for scope, throttle in after.items() if before.get(scope) != throttle]
    was = _closed_throttles(conn, proposal.before, [scope for scope in changed if scope in before], now)
    for scope, why in _closed_throttles(conn, proposal.after, changed, now).items():
        if scope not in was:
            yield ClosedPlace(scope=scope, why=f"throttled ({why})")
    rules = {
        scope: {(each.stored_vo, each.limit) for each in these}
        for scope, these in running_limits.rules_by_scope(proposal.before).items()
    }
    limited = [
        scope
        for scope, these in running_limits.rules_by_scope(proposal.after).items()
        if any((each.stored_vo, each.limit) not in rules.get(scope, ()) for each in these)
    ]
    full = set(_list_full(conn, proposal.before, [scope for scope in limited if scope in rules], now))
    for key, (scope, condition) in _list_full(conn, proposal.after, limited, now).items():
        is_new = (condition.rule.stored_vo, condition.rule.limit) not in rules.get(scope, ())
        if is_new and key not in full and condition.rule.is_visible(vos):
            yield ClosedPlace(scope=scope, why=condition.why)
    yield from _list_kept(conn, proposal, vos=vos, now=now)


def _list_full(
    conn: Connection, config: Configuration, names: Collection[str], now: datetime
) -> Mapping[Hashable, tuple[str, PlaceCondition]]:
    """What lets no further job of a kind in at these places, by place, kind of condition and kind of job."""
    return {
        (scope, each.rule.stored_vo, type(limit), limit.attribute, fold(limit.value)): (scope, each)
        for scope, conditions in running_limits.read_conditions(conn, config, names, now).items()
        for each in conditions
        if each.full
        for limit in [each.rule.limit]
    }


def _list_kept(
    conn: Connection, proposal: Proposal, *, vos: Collection[str] | None, now: datetime
) -> Iterator[ClosedPlace]:
    """The sites that would be kept for one of these VOs (None: any), and are not kept for it now."""
    before, after = (floors.list_floors(each) for each in (proposal.before, proposal.after))
    changed = {key for key, floor in after.items() if before.get(key) != floor}
    sites = {site for site, _ in changed}
    kept = {(each.site, each.vo) for each, _ in _list_kept_for(conn, proposal.before, sites, now)}
    for each, number in _list_kept_for(conn, proposal.after, sites, now):
        key = (each.site, each.vo)
        if (vos is None or each.vo in vos) and key in changed and key not in kept:
            yield ClosedPlace(scope=each.site, why=kept_for_floors.describe(each, number))


def _list_kept_for(
    conn: Connection, config: Configuration, sites: Collection[str], now: datetime
) -> Iterator[tuple[FloorStanding, int]]:
    """VOs below their floors at these sites that have waiting jobs which fit there, with their number."""
    fitting = kept_for_floors.FittingJobs(conn, config)
    for each in kept_for_floors.read_standings(conn, config, sites, now):
        if each.is_below and (number := fitting.count(each.vo, each.site)):
            yield each, number


def _closed_throttles(
    conn: Connection, config: Configuration, names: Collection[str], now: datetime
) -> Mapping[str, str]:
    rooms = (
        (scope, standing.room())
        for scope, standing in throttle_standings.iterate_standings(conn, config, names, now)
    )
    return {scope: room.why or "no room" for scope, room in rooms if room.jobs is not None and room.jobs <= 0}


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
    before, after = proposal.before, proposal.after
    for (vo, queue), present in sorted(occupancy.count_by_queue(conn).items()):
        visible = vos is None or vo in vos
        if not visible or not _is_usable(before, queue, vo) or _is_usable(after, queue, vo):
            continue
        if not after.knows(queue):
            why = "the queue is removed"
        else:
            why = f"it is not for {vo}" if after.enabled(queue, vo) else "it is switched off"
        yield LostWork(queue=queue, vo=vo, why=why, jobs=present.jobs, pilots=present.pilots)


def _is_usable(config: Configuration, queue: QueueAddress, vo: str) -> bool:
    return config.knows(queue) and config.usable(queue, vo)


@dataclass(frozen=True, slots=True, kw_only=True)
class VoJobs:
    """Effect on the waiting jobs of a VO."""

    waiting: int
    stuck: Annotated[int, Field(description="Jobs that lose their last queue.")]
    freed: Annotated[int, Field(description="Jobs that get their first queue.")]
    gain: Annotated[int, Field(description="Jobs that get more queues.")]
    lose: Annotated[int, Field(description="Jobs that get fewer queues.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The effects that a proposed configuration would have at this moment."""

    new: tuple[QueueAddress, ...] = ()  #: added queues
    removed: tuple[QueueAddress, ...] = ()  #: removed queues
    jobs: Mapping[str, VoJobs] = field(default_factory=dict)  #: by VO
    classes: tuple[ClassShift, ...] = ()  #: of waiting jobs, most jobs first
    pools: tuple[PoolShift, ...] = ()  #: most waiting jobs first
    lost_work: tuple[LostWork, ...] = ()
    closed_places: tuple[ClosedPlace, ...] = ()
    lowered_floors: tuple[LoweredFloor, ...] = ()
    types: tuple[TypeShift, ...] = ()  #: of waiting jobs, whose place in the order changes
    useless_parameters: Mapping[str, tuple[UselessParameter, ...]] = field(default_factory=dict)  #: by VO
    #: By VO, the classes and pools for which nothing was computed, because they are very many or long.
    left_out: Mapping[str, WaitingWork] = field(default_factory=dict)

    @property
    def totals(self) -> Mapping[str, int]:
        """The totals that a guard may use."""
        return {
            "stuck_jobs": sum(each.stuck for each in self.jobs.values()),
            "freed_jobs": sum(each.freed for each in self.jobs.values()),
            "pools_gaining": sum(1 for each in self.pools if each.shift.gained),
            "pools_losing": sum(1 for each in self.pools if each.shift.lost),
            "pools_without_queue": sum(1 for each in self.pools if each.shift.had and not each.shift.has),
            "running_jobs": sum(each.jobs for each in self.lost_work),
            "pilots": sum(each.pilots for each in self.lost_work),
            "closed_places": len(self.closed_places),
            "lowered_floors": len(self.lowered_floors),
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
    changed = ChangedQueues(proposal)
    everything = listing.list_waiting(conn, vos)
    stored = pools.list_requirements(conn, vos)
    split = _choose_classes(changed, everything, stored)
    waiting: defaultdict[str, list[WaitingClass]] = defaultdict(list)
    for each in split.chosen:
        if each.jobs:
            waiting[each.asked.vo].append(each)
    has_admission = proposal.before.has_admission or proposal.after.has_admission
    before, after = (
        job_conditions.read_job_ads(conn, each, list(chain(*waiting.values())), needed=has_admission)
        for each in (proposal.before, proposal.after)
    )
    ads = ComparedAds(before=before, after=after)
    looked_at = {each.asked.submit_pool for each in split.chosen}
    left = [*split.left]
    with_left = {each.asked.vo for each in left}
    classes: dict[str, list[ClassShift]] = {}
    shifted: list[PoolShift] = []
    useless: dict[str, tuple[UselessParameter, ...]] = {}
    affected = [
        (vo, queues) for vo in sorted({*waiting, *stored}) if (queues := changed.from_differences(vo))
    ]
    for (vo, queues), budget in zip(affected, work_budget.share(len(affected)), strict=True):
        here = VersionComparison(proposal.before, proposal.after, vo, queues, budget)
        these = waiting.get(vo, [])
        of_classes = list(shifts.class_shifts(here, these, ads))
        asked = {pool: asked for pool, asked in stored.get(vo, {}).items() if pool in looked_at}
        of_pools = list(shifts.pool_shifts(here, vo, asked, these))
        classes[vo] = [each for each in of_classes if each.shift.is_complete]
        shifted += [each for each in of_pools if each.shift.is_complete]
        left += [each.waiting for each in of_classes if not each.shift.is_complete]
        in_left = {each.asked.submit_pool for each in left}
        left += [
            _without_jobs(vo, each.pool_id, asked[each.pool_id])
            for each in of_pools
            if not each.shift.is_complete and each.pool_id not in in_left
        ]
        if vo in with_left:
            continue  # a class that was left out may need the parameter
        names = list_set_parameters(proposal.differences, changed, vo)
        new = [here.derive_classes(each)[1] for each in these]
        if found := tuple(list_useless_parameters(here, new, names)):
            useless[vo] = found
    old_queues, new_queues = set(proposal.before.levels), set(proposal.after.levels)
    return Outlook(
        new=tuple(sorted(new_queues - old_queues)),
        removed=tuple(sorted(old_queues - new_queues)),
        jobs={
            vo: _sum_jobs(work.jobs, classes.get(vo, []))
            for vo, work in sorted(queue_report.sum_work(everything).items())
        },
        classes=tuple(sorted(chain(*classes.values()), key=lambda each: -each.waiting.jobs)),
        pools=tuple(sorted(shifted, key=lambda pool: (-pool.waiting, pool.pool_id))),
        lost_work=tuple(list_lost_work(conn, proposal, vos=vos)),
        closed_places=tuple(list_closed_places(conn, proposal, vos=vos, now=now)),
        lowered_floors=tuple(list_lowered_floors(conn, proposal, vos=vos, now=now)),
        types=tuple(list_type_shifts(proposal, everything)),
        useless_parameters=useless,
        left_out=queue_report.sum_work(left),
    )


def compute_visible_outlook(editor: ConfigEditor, proposal: Proposal) -> Outlook:
    """The effects of a proposal on the jobs that the author of the change may see."""
    rights = editor.rights
    # A site admin's changes concern the site, where the jobs of every VO are visible to the admin.
    vos = None if rights.everything or rights.sites else rights.sees
    with editor.transactions.reading() as conn:
        return compute_outlook(conn, proposal, vos=vos, now=editor.clock())


def _choose_classes(
    changed: ChangedQueues, waiting: Sequence[WaitingClass], stored: Mapping[str, Mapping[str, str]]
) -> ChosenClasses:
    """The classes of VOs with changed queues, and their pools without jobs, that one preview evaluates."""
    affected = {
        vo: len(changed.from_differences(vo)) for vo in {*stored, *(each.asked.vo for each in waiting)}
    }
    in_use = {each.asked.submit_pool for each in waiting}
    unused = (
        _without_jobs(vo, pool_id, requirements)
        for vo, of_vo in stored.items()
        for pool_id, requirements in of_vo.items()
        if pool_id not in in_use
    )
    concerned = (each for each in chain(waiting, unused) if affected[each.asked.vo])
    queues = 2 * max(affected.values(), default=0)  # in both versions
    return work_budget.choose_classes(concerned, queues=queues, characters=work_budget.PREVIEWED)


def _without_jobs(vo: str, pool_id: str, requirements: str) -> WaitingClass:
    asked = RequirementClass(vo=vo, cpu_time=0, submit_pool=pool_id)
    return WaitingClass(asked=asked, requirements=requirements, jobs=0, first_job=0)


def _sum_jobs(waiting: int, shifted: Sequence[ClassShift]) -> VoJobs:
    return VoJobs(
        waiting=waiting,
        stuck=sum(each.stuck for each in shifted),
        freed=sum(each.freed for each in shifted),
        gain=sum(each.waiting.jobs for each in shifted if each.shift.gained),
        lose=sum(each.waiting.jobs for each in shifted if each.shift.lost),
    )


_COMPARISONS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "=": operator.eq,
    "==": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_GUARD: Final = re.compile(r"\s*(\w+)\s*(<=|>=|==|=|<|>)\s*(\d{1,15})\s*", re.ASCII)
#: Totals that are known only if every class and pool is evaluated.
_OF_CLASSES: Final = frozenset(
    {"stuck_jobs", "freed_jobs", "pools_gaining", "pools_losing", "pools_without_queue"}
)
#: Names allowed in a guard: the totals of an outlook.
NAMES: Final = tuple(Outlook().totals)


class GuardFailed(PilotageError):
    """A guard does not hold for the proposed change; nothing was changed."""

    code = "guard_failed"

    def __init__(self, failed: Sequence[str], totals: Mapping[str, int]) -> None:
        super().__init__("; ".join(failed))
        self.details = {"totals": dict(totals)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One condition on a total."""

    text: str
    name: str
    comparison: str
    number: int

    def holds(self, totals: Mapping[str, int]) -> bool:
        """Whether it is true of an outlook's totals."""
        return _COMPARISONS[self.comparison](totals[self.name], self.number)


def read_guards(texts: Iterable[str]) -> tuple[Guard, ...]:
    """Parse guards."""
    found = [_read(text) for text in texts]
    if problems := [each for each in found if isinstance(each, Problem)]:
        raise InvalidRequest(problems)
    return tuple(each for each in found if isinstance(each, Guard))


def _read(text: str) -> Guard | Problem:
    match = _GUARD.fullmatch(text)
    if match is None:
        message = "is not a guard: expected a name, a comparison and a number, such as stuck_jobs=0"
        return Problem(path=f"guard {text!r:.100}", message=message)
    name, comparison, number = match.groups()
    if name not in NAMES:
        message = f"{name} is unknown, allowed are {', '.join(NAMES)}"
        return Problem(path="guard", message=message, suggestion=did_you_mean(name, NAMES))
    return Guard(text=text.strip(), name=name, comparison=comparison, number=int(number))


def list_failing(guards: Iterable[Guard], outlook: Outlook) -> list[str]:
    """The guards that do not hold, each with the actual total, or that need what was not computed."""
    totals = outlook.totals
    failing = []
    for guard in guards:
        if not guard.holds(totals):
            failing.append(f"guard {guard.text}: there would be {totals[guard.name]}")
        elif outlook.left_out and guard.name in _OF_CLASSES:
            classes = sum(each.classes for each in outlook.left_out.values())
            failing.append(
                f"guard {guard.text}: of {classes} more sets of requirements nothing was computed, since they"
                " are too many or too long; change fewer queues at once"
            )
    return failing


def check_guards(guards: Iterable[Guard], outlook: Outlook) -> None:
    """Check all guards; `GuardFailed` names each that does not hold, with the actual total."""
    if failed := list_failing(guards, outlook):
        raise GuardFailed(failed, outlook.totals)


def make_check(editor: ConfigEditor, guards: Sequence[Guard]) -> ProposalCheck | None:
    """The check of a change that has guards, by what its author may see; None: there are none."""
    if not guards:
        return None
    return lambda proposal: check_guards(guards, compute_visible_outlook(editor, proposal))
