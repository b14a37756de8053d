"""Step JobSanity: whether the job still holds in front of the present configuration.

The submission has checked the same; the configuration may have changed since.
"""

from optimizers.alike import alike
from optimizers.candidate import Candidate
from optimizers.context import Context
from optimizers.outcome import Done, Failed, Hold, Outcome


@alike
def job_sanity(candidate: Candidate, context: Context) -> Outcome:  # noqa: ARG001, every step is called alike
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
