"""Step JobScheduling: what matching will look at, the requirement class of the job.

Source: DIRAC's JobScheduling optimizer.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from cs_config import platforms
from optimizers import job_sites, processors
from optimizers.alike import alike
from optimizers.candidate import Candidate
from optimizers.context import Context
from optimizers.cpu_segments import segment
from optimizers.outcome import Done, Failed, Hold, Outcome
from taskqueue.classes import RequirementClass

NAME = "JobScheduling"


@alike
def job_scheduling(candidate: Candidate, context: Context) -> Outcome:
    """Let a job that was taken back wait a while, then decide where it may run and what it needs there.

    A job with requirements and without a pool would run anywhere; only a faulty optimizer leads here.
    """
    if candidate.description.requirements is not None and candidate.pool is None:
        return Hold(reason="it has Requirements, and no optimizer has named a pool for them")
    if delay := _delay(candidate, context):
        return Hold(reason=f"rescheduled {candidate.reschedules} times, goes on after a while", delay=delay)
    chosen = job_sites.choose(candidate, context)
    if isinstance(chosen, Failed):
        return chosen
    asked = _requirement_class(candidate, context, chosen)
    return Done(candidate=replace(candidate, requirement_class=asked, site=chosen.shown))


def _delay(candidate: Candidate, context: Context) -> timedelta | None:
    """How long the n-th try has to wait, unless it has."""
    delays = context.operations(candidate.vo).job_scheduling.reschedule_delays
    if not candidate.reschedules or candidate.held_by == NAME or not delays:
        return None
    return timedelta(seconds=delays[min(candidate.reschedules, len(delays)) - 1])


def _requirement_class(
    candidate: Candidate, context: Context, chosen: job_sites.ChosenSites
) -> RequirementClass:
    asked = candidate.description
    cores = processors.wanted(asked)
    segments = context.operations(candidate.vo).job_scheduling.cpu_segments
    return RequirementClass(
        vo=candidate.vo,
        cpu_time=segment(asked.cpu_time, segments),
        sites=chosen.sites,
        banned_sites=chosen.banned,
        grid_ces=frozenset() if job_sites.says_any(asked.grid_ces) else frozenset(asked.grid_ces),
        platforms=_platforms(asked.platforms, context),
        job_types=frozenset({asked.job_type} - {""}),
        tags=frozenset(asked.tags) | cores.tags,
        min_ram=asked.min_ram_mb,
        max_ram=asked.max_ram_mb or None,
        min_ram_per_core=asked.min_ram_per_core_mb,
        processors_min=cores.minimum,
        processors_max=cores.maximum,
        whole_node=cores.whole_node,
        gpus=asked.gpus,
        submit_pool=candidate.pool.pool_id if candidate.pool else None,
    )


def _platforms(asked: Sequence[str], context: Context) -> frozenset[str]:
    if job_sites.says_any(asked):
        return frozenset()
    return frozenset(platforms.compatible(context.config, asked))
