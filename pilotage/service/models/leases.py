"""Lease reports of pilots, and the answers."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from taskqueue.leases.lifecycle import GridJobPhase as KeptPhase
from taskqueue.leases.lifecycle import Progress

#: Characters of the payload's output that are stored: the last ones.
_TAIL = 16_384


#: Most phases, and states of local jobs, in one heartbeat.
_MOST_PHASES, _MOST_STATES = 50, 20
#: Exact in every JSON reader.
_Count = Annotated[int, Field(ge=0, le=2**53)]
#: CPU seconds: ten thousand cores for four months; normalised seconds per CPU second.
_MOST_CPU, _MOST_POWER = 1e11, 1e6
_SHOWN = r"^[^\x00-\x1f\x7f]*$"
_STATE = r"^[a-z][a-z_]{0,31}$"


class StartBody(BaseModel):
    """Report that the payload is about to run."""

    model_config = ConfigDict(extra="allow")


class PhaseBody(BaseModel):
    """Progress of one phase of a grid job, summed over its local jobs."""

    model_config = ConfigDict(extra="ignore", from_attributes=True)

    name: str = Field(min_length=1, max_length=100, pattern=_SHOWN)
    done: _Count
    of: _Count
    unit: str = Field(
        default="", max_length=30, pattern=_SHOWN, description="Unit of the counts, such as events."
    )

    @model_validator(mode="after")
    def _not_beyond_the_end(self) -> Self:
        if self.done > self.of:
            raise ValueError(f"{self.name}: {self.done} of {self.of} is more than all")
        return self


class HeartbeatBody(BaseModel):
    """Report that the payload runs."""

    model_config = ConfigDict(extra="allow")

    progress: str | None = Field(default=None, max_length=2000, description="For people; null: unchanged.")
    output_tail: str | None = Field(default=None, description="End of the payload's output; null: unchanged.")
    phases: list[PhaseBody] | None = Field(
        default=None, max_length=_MOST_PHASES, description="Of a grid job, in order; null: unchanged."
    )
    local_jobs: dict[Annotated[str, Field(pattern=_STATE)], _Count] | None = Field(
        default=None,
        max_length=_MOST_STATES,
        description="Numbers of a grid job's local jobs by state; null: unchanged.",
    )

    def to_progress(self) -> Progress:
        """The part that is stored."""
        phases = [KeptPhase(**each.model_dump()) for each in self.phases or ()]
        return Progress(
            text=self.progress,
            output_tail=None if self.output_tail is None else self.output_tail[-_TAIL:],
            phases=None if self.phases is None else phases,
            local_jobs=self.local_jobs,
        )


class FinishBody(BaseModel):
    """Report that the payload has ended."""

    model_config = ConfigDict(extra="allow")

    status: Literal["Done", "Failed"]
    exit_code: int | None = Field(default=None, ge=-(2**31), le=2**31 - 1)
    minor_status: str = Field(default="", max_length=2000)
    application_status: str = Field(default="", max_length=2000)
    cpu_seconds: float | None = Field(
        default=None, ge=0, le=_MOST_CPU, description="CPU time of the payload with all its processes."
    )
    cpu_power: float | None = Field(
        default=None, gt=0, le=_MOST_POWER, description="Normalised seconds per CPU second, if measured."
    )


class ReleaseBody(BaseModel):
    """Return of a job by its pilot."""

    model_config = ConfigDict(extra="allow")

    reason: str = Field(default="", max_length=2000)


class LeaseAnswer(BaseModel):
    """Commands for the pilot; a repeated request gets the same answer."""

    model_config = ConfigDict(extra="allow")

    commands: list[str] = Field(default=[], description="`kill`: end the payload and deliver its output.")
    heartbeat_seconds: float | None = Field(default=None, description="Seconds until the next heartbeat.")


class OutputStored(BaseModel):
    """The stored output archive."""

    output: str = Field(description="`sha256:<digest>`.")
    size: int = Field(description="Bytes.")
