"""Run the optimizers for a description without storing anything."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from cs_config.tree.configuration import Configuration
from optimizers.chain import chain
from optimizers.chain.chain import ChainContext, Done, Failed, Hold, JobContext, make_context
from optimizers.description.description import JobDescription
from optimizers.steps.job_scheduling import job_scheduling
from optimizers.submit.checking import Source, check_sources
from optimizers.submit.submitter import Ownership, Submitter
from taskqueue.task_queues.requirement_class import RequirementClass

#: Placeholder for the archive, which is sent only with a submission.
_ARCHIVE = f"sha256:{'0' * 64}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """Result of the optimizers for a job that is not stored."""

    whose: Ownership
    description: JobDescription
    requirement_class: RequirementClass  #: attributes for matching, even if the job would be held or failed
    trouble: str | None  #: why it would be held or failed; None: it would wait for a pilot


def dry_run_source(config: Configuration, submitter: Submitter, source: Source, *, now: datetime) -> DryRun:
    """Run the optimizers for the first job of a description; InvalidJob: the submission would refuse it."""
    submitted = check_sources(config, submitter, [source], sandbox=_ARCHIVE)[0].submitted
    return dry_run_description(config, submitted.whose, submitted.members[0].whole, now=now)


def dry_run_description(
    config: Configuration, whose: Ownership, description: JobDescription, *, now: datetime
) -> DryRun:
    """Run the optimizers for a job with this description."""
    context = make_context(config, now)
    candidate = JobContext(
        job_id=0, vo=whose.vo, owner=whose.owner, owner_group=whose.owner_group, description=description
    )
    outcome = chain.run_chain(candidate, chain.installed_steps(), context).outcome
    asked = outcome.candidate.requirement_class if isinstance(outcome, Done) else None
    return DryRun(
        whose=whose,
        description=description,
        requirement_class=asked or _requirement_class(candidate, context),
        trouble=_failure_message(outcome) if isinstance(outcome, Hold | Failed) else None,
    )


def _failure_message(outcome: Hold | Failed) -> str:
    return f"the optimizers would {'hold' if isinstance(outcome, Hold) else 'fail'} it: {outcome.reason}"


def _requirement_class(candidate: JobContext, context: ChainContext) -> RequirementClass:
    """Compute the class from the description alone, without its data, even if it bans all its own sites."""
    stated = candidate.description
    places: dict[str, Any] = {
        "sites": frozenset(stated.sites),
        "banned_sites": frozenset(stated.banned_sites),
    }
    # Requirements are checked separately; the job has no pool.
    anywhere = replace(
        candidate, description=replace(stated, sites=(), banned_sites=(), requirements=None), pool=None
    )
    outcome = job_scheduling(anywhere, context)
    found = outcome.candidate.requirement_class if isinstance(outcome, Done) else None
    return replace(found or RequirementClass(vo=candidate.vo, cpu_time=stated.cpu_time), **places)
