"""Step JobPath: which other steps a job goes through."""

from dataclasses import replace

from optimizers.alike import alike
from optimizers.candidate import Candidate
from optimizers.context import Context
from optimizers.outcome import Done, Outcome

#: Nothing else can be said of a job that is not sane, and without the last one none comes to wait.
_FIRST, _LAST = "JobSanity", "JobScheduling"
#: Names the pool: without it a job with requirements would run anywhere.
_POOL = "Requirements"


@alike
def job_path(candidate: Candidate, context: Context) -> Outcome:
    """The job's own `JobPath`, else the configured one; InputData only for jobs that name input data.

    JobSanity, Requirements and JobScheduling belong to every path, whether they are named or not.

    Source: DIRAC's JobPath optimizer.
    """
    named = candidate.description.job_path or context.operations(candidate.vo).job_path.chain
    unasked = {"JobPath", _FIRST, _LAST} | (set() if candidate.description.input_data else {"InputData"})
    asked = [step for step in named if step not in unasked]
    path = (_FIRST, *asked, *([] if _POOL in asked else [_POOL]), _LAST)
    return Done(candidate=replace(candidate, path=path))
