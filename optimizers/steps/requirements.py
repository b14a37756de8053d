"""Step Requirements: from the requirements of a job to its SubmitPool and the eligible queues (RFC #7)."""

from dataclasses import replace

from optimizers.chain.chain import (
    NO_ELIGIBLE_QUEUE,
    ChainContext,
    Done,
    Failed,
    JobContext,
    Outcome,
    ResolvedPool,
    cacheable,
)
from requirements import canonical


@cacheable
def resolve_requirements(candidate: JobContext, context: ChainContext) -> Outcome:
    """Compute the pool id from the requirements and find the eligible queues; `batch` stores both.

    Source: RFC #7.
    """
    asked = candidate.description.requirements
    if asked is None:
        return Done(candidate=replace(candidate, pool=None))
    form = canonical.canonical(asked, candidate.vo)
    pool_id = canonical.identity(form)
    found = context.eligibility.find(pool_id, asked, candidate.vo)
    if not found and context.operations(candidate.vo).job_scheduling.reject_unmatchable:
        return Failed(reason=NO_ELIGIBLE_QUEUE)
    pool = ResolvedPool(pool_id=pool_id, requirements=asked, canonical=form.decode(), queue_classes=found)
    return Done(candidate=replace(candidate, pool=pool))
