"""What a step of the chain says about a job."""

from dataclasses import dataclass
from datetime import timedelta

from optimizers.candidate import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The step has nothing against the job; the next one may look at it."""

    candidate: Candidate  #: with what the step found out


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The job has to wait for something that passes; the step looks again."""

    reason: str  #: shown to the owner
    delay: timedelta | None = None  #: when to look again; None: the configured `HoldTime`


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The job can never run as it is."""

    reason: str  #: shown to the owner


Outcome = Done | Hold | Failed
