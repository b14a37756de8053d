"""A job as gates look at it, whether it waits, ran or was never submitted."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True, kw_only=True)
class Applicant:
    """What limits, delays and the expressions of sites ask of a job; named as its columns are."""

    job_id: int | None  #: None: it was not submitted
    vo: str
    owner: str
    owner_group: str
    job_name: str
    job_type: str
    job_group: str
    priority: float
    submit_pool: str | None
    description: Mapping[str, object] = field(repr=False)  #: its placeholders filled
    parameters: None = None  #: nothing is left to fill

    @cached_property
    def body(self) -> str:
        """The description as it is stored."""
        return json.dumps(self.description)
