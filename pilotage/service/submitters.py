"""Who submits, as the optimizers want to know it, and what a submission does."""

from collections.abc import Sequence

from optimizers import submission
from optimizers.submission import Source, Submitter
from pilotage.service.callers import Caller
from pilotage.service.parts import Parts


def submitter_of(caller: Caller) -> Submitter:
    """Who submits, as the token says."""
    return Submitter(
        subject=caller.subject,
        vo=caller.vo or "",
        owner=caller.user or caller.role.value,
        owner_group=caller.group,
        operator=caller.is_operator,
    )


def submit(
    parts: Parts, caller: Caller, sources: Sequence[Source], *, key: str | None, sandbox: str | None = None
) -> list[int]:
    """Store the jobs of a submission, and have the optimizers look at them; their ids.

    Raises:
        PilotageError: As `submission.accept`; nothing is stored.
    """
    accepted = submission.accept(
        parts.engine,
        parts.live.current,
        submitter_of(caller),
        sources,
        now=parts.clock(),
        key=key,
        sandbox=sandbox,
    )
    parts.metrics.optimized(accepted.passed)
    parts.ring(accepted.due)
    return accepted.job_ids
