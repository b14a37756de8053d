"""Step JobPath: which other steps a job goes through.

Step JobSanity: whether the job still holds in front of the present configuration.

The submission has checked the same; the configuration may have changed since.
"""

from dataclasses import replace

from optimizers.chain.chain import ChainContext, Done, Failed, Hold, JobContext, Outcome, cacheable

#: Nothing else can be said of a job that is not sane, and without the last one none comes to wait.
_FIRST, _LAST = "JobSanity", "JobScheduling"
#: Names the pool: without it a job with requirements would run anywhere.
_POOL = "Requirements"


@cacheable
def job_path(candidate: JobContext, context: ChainContext) -> Outcome:
    """The job's own `JobPath`, else the configured one; InputData only for jobs that name input data.

    JobSanity, Requirements and JobScheduling belong to every path, whether they are named or not.

    Source: DIRAC's JobPath optimizer.
    """
    named = candidate.description.job_path or context.operations(candidate.vo).job_path.chain
    unasked = {"JobPath", _FIRST, _LAST} | (set() if candidate.description.input_data else {"InputData"})
    asked = [step for step in named if step not in unasked]
    path = (_FIRST, *asked, *([] if _POOL in asked else [_POOL]), _LAST)
    return Done(candidate=replace(candidate, path=path))


@cacheable
def job_sanity(candidate: JobContext, context: ChainContext) -> Outcome:  # noqa: ARG001, every step is called alike
    """Refuse what can never run: a description that does not hold any more, a sandbox that is gone.

    A job that only the configured defaults make wrong waits for another configuration.
    """
    if candidate.config_fault is not None:
        return Hold(reason=f"the configured defaults do not go with it: {candidate.config_fault}")
    if candidate.problems:
        return Failed(reason="; ".join(str(problem) for problem in candidate.problems))
    if candidate.sandbox_gone:
        return Failed(reason="its input sandbox is not stored any more")
    return Done(candidate=candidate)
