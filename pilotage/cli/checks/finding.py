"""The answer to one question of `pilotage doctor`."""

from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """How a finding is meant."""

    GOOD = "good"
    WARNING = "warning"  #: works, but not as it should
    BAD = "bad"  #: does not work, or is dangerous


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The answer to one question."""

    subject: str
    health: Health
    message: str
