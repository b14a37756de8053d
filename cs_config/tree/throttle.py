"""The section `Throttle` of a site, CE or queue: limits on the number of matched jobs.

Source: SAM-Grid's job matching policies (levels 0 to 2) and resource brokering.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, field_validator

from cs_config.options.option_model import Count, Options, SomeSeconds
from requirements.classad import match_expression
from requirements.errors import InvalidInput


class Policy(StrEnum):
    """Which counters are compared with which limits."""

    LEVEL0 = "level0"
    LEVEL1 = "level1"
    LEVEL2 = "level2"
    BROKERING = "brokering"
    PENDING = "pending"
    SIMPLE = "simple"
    EXPRESSION = "expression"


class Stale(StrEnum):
    """Behaviour without an advertisement, or with one that is too old."""

    CLOSED = "closed"  #: no match
    OPEN = "open"  #: no limit
    DERIVED = "derived"  #: counters are derived from the states of our own jobs


class Throttle(Options):
    """The throttle of one node of the tree; all nodes on the path of a queue must allow a match."""

    policy: Annotated[Policy, Field(strict=False)]
    """level0, level1, level2, brokering, pending, simple or expression."""
    max_submitting_jobs: Count | None = None
    """Jobs that are being submitted."""
    max_submitting_and_output_gathering_jobs: Count | None = None
    """Jobs that are being submitted or whose output is being gathered."""
    max_jobs: Count | None = None
    """Jobs in any state."""
    max_pending_jobs: Count | None = None
    """Jobs that wait in the batch system."""
    requirements: str | None = None
    """ClassAd expression of the policy `expression`; one that is advertised must be true as well."""
    lifetime: SomeSeconds = 900
    """Seconds until an advertisement is stale."""
    stale: Annotated[Stale, Field(strict=False)] = Stale.CLOSED
    """closed, open or derived: what holds without a fresh advertisement."""

    @field_validator("requirements")
    @classmethod
    def _is_expression(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                match_expression.parse_match_expression(text)
            except InvalidInput as error:
                raise ValueError("; ".join(problem.message for problem in error.problems)) from error
        return text


#: The limits by their name in configuration and advertisement.
LIMITS = {str(field.alias): name for name, field in Throttle.model_fields.items() if name.startswith("max_")}
