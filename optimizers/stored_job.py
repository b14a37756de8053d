"""From a stored job to a candidate of the chain."""

import json

from optimizers import description
from optimizers.candidate import Candidate
from optimizers.context import Context
from optimizers.description import JobDescription
from requirements.errors import InvalidInput
from requirements.problem import Problem
from taskqueue import placeholders
from taskqueue.preparing import PreparingJob

#: Stands for a description that cannot be read; JobSanity fails its job.
_UNREADABLE = JobDescription(executable="", cpu_time=0)


def candidate_of(job: PreparingJob, context: Context) -> Candidate:
    """The job as the steps see it, its description read with the options of today."""
    read, problems, fault = _description(job, context)
    return Candidate(
        job_id=job.job_id,
        vo=job.vo,
        owner=job.owner,
        owner_group=job.owner_group,
        description=read,
        problems=problems,
        config_fault=fault,
        sandbox_gone=job.sandbox_gone,
        reschedules=job.reschedules,
        held_by=job.step,
    )


def _description(
    job: PreparingJob, context: Context
) -> tuple[JobDescription, tuple[Problem, ...], str | None]:
    """The description, what is wrong with it, and what of that is a fault of the configuration."""
    options = context.operations(job.vo)
    try:
        members = json.loads(job.parameters) if job.parameters else None
        filled = placeholders.fill(json.loads(job.body), members)
        try:
            return description.parse(filled, options), (), None
        except InvalidInput as invalid:
            description.parse(filled, options, with_defaults=False)
            return _UNREADABLE, (), "; ".join(str(problem) for problem in invalid.problems)
    except InvalidInput as invalid:
        return _UNREADABLE, invalid.problems, None
    except (ValueError, TypeError, AttributeError) as error:
        return _UNREADABLE, (Problem(path="description", message=f"cannot be read: {error}"),), None
