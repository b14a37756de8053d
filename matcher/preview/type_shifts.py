"""Types of waiting jobs whose place in the order of job types a change moves."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from cs_config.editing.proposals import Proposal
from cs_config.options import job_tiers
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from taskqueue.task_queues.listing import WaitingClass


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeShift:
    """A type of waiting jobs that comes earlier or later than before."""

    vo: str
    job_type: Annotated[str, Field(description="Empty: jobs without a type.")]
    jobs: int  #: that wait
    before: Annotated[str, Field(description="Its tier of `JobPriorities`, as text.")]
    after: str


def list_type_shifts(proposal: Proposal, waiting: Iterable[WaitingClass]) -> Iterator[TypeShift]:
    """The types of waiting jobs with another tier, or other weights in it, by VO and type."""
    jobs: Counter[tuple[str, str]] = Counter()
    for each in waiting:
        jobs[each.asked.vo, min(each.asked.job_types, default="")] += each.jobs
    for (vo, job_type), number in sorted(jobs.items()):
        before, after = (_describe(each, vo, job_type) for each in (proposal.before, proposal.after))
        if before != after and number:
            yield TypeShift(vo=vo, job_type=job_type, jobs=number, before=before, after=after)


def _describe(config: Configuration, vo: str, job_type: str) -> str:
    tiers = options_for(config, vo).job_scheduling.job_priorities
    return job_tiers.describe_tier(tiers, [job_type] if job_type else [])
