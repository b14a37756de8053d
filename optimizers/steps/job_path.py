"""JobPath chooses the other steps; JobSanity checks that the job can be processed.

Limits and declarations of the configuration judge submissions only: a later one fails no accepted job.
"""

from dataclasses import replace

from optimizers.chain.chain import ChainContext, Done, Failed, Hold, JobContext, Outcome, pure

#: JobSanity comes before any other check; only JobScheduling sets the requirement class of a job.
_FIRST, _LAST = "JobSanity", "JobScheduling"
#: Sets the pool: without it a job with requirements would run anywhere.
_POOL = "Requirements"


@pure
def job_path(candidate: JobContext, context: ChainContext) -> Outcome:
    """Set the path: the job's own `JobPath`, else the configured one; InputData only with input data.

    JobSanity, Requirements and JobScheduling are part of every path, whether they are named or not.

    Source: DIRAC's JobPath optimizer.
    """
    named = candidate.description.job_path or context.operations(candidate.vo).job_path.chain
    unasked = {"JobPath", _FIRST, _LAST} | (set() if candidate.description.input_data else {"InputData"})
    asked = [step for step in named if step not in unasked]
    path = (_FIRST, *asked, *([] if _POOL in asked else [_POOL]), _LAST)
    return Done(candidate=replace(candidate, path=path))


@pure
def job_sanity(candidate: JobContext, context: ChainContext) -> Outcome:  # noqa: ARG001, the signature of all steps
    """Fail jobs that can never run: their description cannot be read, or their sandbox is gone.

    A job that only the configured defaults make invalid waits for another configuration.
    """
    if candidate.config_fault is not None:
        return Hold(reason=f"the configured defaults contradict the description: {candidate.config_fault}")
    if candidate.problems:
        return Failed(reason="; ".join(str(problem) for problem in candidate.problems))
    if candidate.sandbox_gone:
        return Failed(reason="its input sandbox is not stored any more")
    return Done(candidate=candidate)
