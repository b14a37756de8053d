"""Steps Requirements and JobScheduling: the SubmitPool and the requirement class of a job, for matching.

Sites come from the job's own list and its bans; those near its input data are found at matching. Cores are
stored as numbers and as the tags that DIRAC's pilots offer. CPU time is rounded up to segments, so that jobs
of nearly the same length share a task queue.

Source: RFC #7; DIRAC's JobScheduling optimizer and TaskQueueDB.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from cs_config.tree.storage import find_common_sites
from optimizers.chain.chain import (
    NO_ELIGIBLE_QUEUE,
    ChainContext,
    Done,
    Failed,
    Hold,
    JobContext,
    Outcome,
    ResolvedPool,
    pure,
)
from optimizers.description.description import JobDescription
from requirements import canonical
from requirements.errors import did_you_mean
from requirements.values import fold
from taskqueue.task_queues.requirement_class import RequirementClass


@pure
def resolve_requirements(candidate: JobContext, context: ChainContext) -> Outcome:
    """Compute the pool id from the requirements; the eligible queues only where the VO rejects jobs without.

    Source: RFC #7.
    """
    asked = candidate.description.requirements
    if asked is None:
        return Done(candidate=replace(candidate, pool=None))
    form = canonical.canonical(asked, candidate.vo)
    pool_id = canonical.identity(form)
    pool = ResolvedPool(pool_id=pool_id, requirements=canonical.pool_form(asked), canonical=form.decode())
    rejects = context.operations(candidate.vo).job_scheduling.reject_unmatchable
    if rejects and not context.find_queue_classes(pool, candidate.vo):
        return Failed(reason=NO_ELIGIBLE_QUEUE)
    return Done(candidate=replace(candidate, pool=pool))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSites:
    """Allowed and banned sites of one job."""

    sites: frozenset[str]  #: empty: all but the banned ones
    banned: frozenset[str]  #: empty if `sites` is not
    with_data: frozenset[str]  #: those of them near its input data; empty: it has none

    @property
    def format(self) -> str:
        """Displayed as the job's site until it is matched, in DIRAC's terms."""
        sites = self.with_data or self.sites
        return "ANY" if not sites else next(iter(sites)) if len(sites) == 1 else "Multiple"


def choose_sites(candidate: JobContext, context: ChainContext) -> ChosenSites | Failed:
    """Combine all conditions on the sites of a job."""
    asked = candidate.description
    named = frozenset() if allows_any(asked.sites) else frozenset(asked.sites)
    banned = frozenset() if allows_any(asked.banned_sites) else frozenset(asked.banned_sites)
    if invalid := _invalid(named, candidate, context):
        return invalid
    sites = _exclude_sites(named, banned)
    if named and not sites:
        return Failed(reason="Impossible site requirement: every site of the job is banned by it")
    with_data = frozenset[str]()
    if candidate.replicas:
        near = _exclude_sites(find_common_sites(context.config, candidate.replicas), banned)
        with_data = _common_sites(sites, near) if sites else near
        if not with_data:
            return Failed(reason="Impossible InputData * Site requirements: its data are nowhere it may run")
    return ChosenSites(sites=sites, banned=frozenset() if sites else banned, with_data=with_data)


def allows_any(names: Iterable[str]) -> bool:
    """Whether a list contains `ANY`, which means no condition."""
    return any(fold(name) == "any" for name in names)


def _exclude_sites(sites: frozenset[str], banned: frozenset[str]) -> frozenset[str]:
    folded = {fold(site) for site in banned}
    return frozenset(site for site in sites if fold(site) not in folded)


def _common_sites(sites: frozenset[str], others: frozenset[str]) -> frozenset[str]:
    folded = {fold(site) for site in others}
    return frozenset(site for site in sites if fold(site) in folded)


def _invalid(named: frozenset[str], candidate: JobContext, context: ChainContext) -> Failed | None:
    """Fail a job with unknown sites, unless the configuration allows these."""
    if context.operations(candidate.vo).job_scheduling.allow_invalid_sites:
        return None
    unknown = sorted(_exclude_sites(named, context.config.sites))
    if not unknown:
        return None
    suggestion = did_you_mean(unknown[0], context.config.sites)
    meant = f", did you mean {suggestion}?" if suggestion else ""
    return Failed(reason=f"unknown site {', '.join(unknown)}{meant}")


_MANY = "MultiProcessor"
_WHOLE = "WholeNode"
_NUMBER = re.compile(r"([1-9][0-9]{0,3})processors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """Cores of one job."""

    minimum: int
    maximum: int | None  #: None: all cores of the node
    whole_node: bool
    tags: frozenset[str]


def read_processors(description: JobDescription) -> Processors:
    """Return the cores that a description requires.

    Source: DIRAC: n cores are the tags `nProcessors` and `MultiProcessor`, a range with more than one is
    `MultiProcessor`, a whole node `WholeNode` and `MultiProcessor`. Tags without numbers mean the same.
    """
    low, high = _range(description)
    tags = {_WHOLE, _MANY} if description.whole_node else set()
    if _read_numbers(description) or description.whole_node:
        if high is None or high > 1:
            tags.add(_MANY)
        if low == high and low > 1:
            tags.add(f"{low}Processors")
    return Processors(minimum=low, maximum=high, whole_node=_whole_node(description), tags=frozenset(tags))


def _range(description: JobDescription) -> tuple[int, int | None]:
    if description.processors is not None:
        return description.processors, description.processors
    if _read_numbers(description):
        return description.min_processors or 1, description.max_processors
    if named := [int(found[1]) for tag in description.tags if (found := _NUMBER.fullmatch(fold(tag)))]:
        return max(named), max(named)
    return 1, None if _whole_node(description) else 1


def _read_numbers(description: JobDescription) -> bool:
    asked = description.processors, description.min_processors, description.max_processors
    return asked != (None, None, None)


def _whole_node(description: JobDescription) -> bool:
    return description.whole_node or fold(_WHOLE) in map(fold, description.tags)


def round_to_segment(cpu_time: int, segments: Sequence[int]) -> int:
    """Return the smallest segment that is at least `cpu_time`, in seconds; the last one for anything above.

    `segments` must be strictly increasing.
    """
    return segments[min(bisect_left(segments, cpu_time), len(segments) - 1)]


STEP_NAME = "JobScheduling"


@pure
def job_scheduling(candidate: JobContext, context: ChainContext) -> Outcome:
    """Delay a rescheduled job, then compute its sites and requirement class.

    A job with requirements but without a pool would run anywhere, so it is held: an optimizer is faulty.
    """
    if candidate.description.requirements is not None and candidate.pool is None:
        return Hold(reason="it has Requirements, but no optimizer has set a pool for them")
    if delay := _delay(candidate, context):
        return Hold(reason=f"rescheduled {candidate.reschedules} times, continues after a delay", delay=delay)
    chosen = choose_sites(candidate, context)
    if isinstance(chosen, Failed):
        return chosen
    asked = _requirement_class(candidate, context, chosen)
    return Done(candidate=replace(candidate, requirement_class=asked, site=chosen.format))


def _delay(candidate: JobContext, context: ChainContext) -> timedelta | None:
    delays = context.operations(candidate.vo).job_scheduling.reschedule_delays
    if not candidate.reschedules or candidate.held_by == STEP_NAME or not delays:
        return None
    return timedelta(seconds=delays[min(candidate.reschedules, len(delays)) - 1])


def _requirement_class(candidate: JobContext, context: ChainContext, chosen: ChosenSites) -> RequirementClass:
    asked = candidate.description
    cores = read_processors(asked)
    segments = context.operations(candidate.vo).job_scheduling.cpu_segments
    return RequirementClass(
        vo=candidate.vo,
        cpu_time=round_to_segment(asked.cpu_time, segments),
        sites=chosen.sites,
        banned_sites=chosen.banned,
        grid_ces=frozenset() if allows_any(asked.grid_ces) else frozenset(asked.grid_ces),
        platforms=frozenset() if allows_any(asked.platforms) else frozenset(asked.platforms),
        job_types=frozenset({asked.job_type} - {""}),
        tags=frozenset(asked.tags) | cores.tags,
        min_ram=asked.min_ram_mb,
        max_ram=asked.max_ram_mb or None,
        min_ram_per_core=asked.min_ram_per_core_mb,
        processors_min=cores.minimum,
        processors_max=cores.maximum,
        whole_node=cores.whole_node,
        gpus=asked.gpus,
        replicas=candidate.replicas,
        submit_pool=candidate.pool.pool_id if candidate.pool else None,
    )
