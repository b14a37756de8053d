"""Who submits, as the optimizers want to know it."""

from optimizers.submission import Submitter
from pilotage.service.callers import Caller


def submitter_of(caller: Caller) -> Submitter:
    """Who submits, as the token says."""
    return Submitter(
        subject=caller.subject,
        vo=caller.vo or "",
        owner=caller.user or caller.role.value,
        owner_group=caller.group,
        operator=caller.is_operator,
    )
