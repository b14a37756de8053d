"""The result of one check of `pilotage doctor`."""

from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """Severity of a finding."""

    GOOD = "good"
    WARNING = "warning"  #: works, but not as it should
    BAD = "bad"  #: does not work, or is dangerous


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    subject: str
    health: Health
    message: str
