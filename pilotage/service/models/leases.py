"""What a pilot says about its attempt, and what it is answered."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from taskqueue.leases.lifecycle import GridJobPhase as KeptPhase
from taskqueue.leases.lifecycle import Progress

#: Characters of the payload's output that are kept; a pilot sends the last ones.
_TAIL = 16_384


#: Phases, and states of local jobs, in one heartbeat.
_MOST_PHASES, _MOST_STATES = 50, 20
#: What is counted stays exact in every JSON reader.
_Count = Annotated[int, Field(ge=0, le=2**53)]
#: Seconds of CPU time: ten thousand cores for four months; and normalised seconds in one.
_MOST_CPU, _MOST_POWER = 1e11, 1e6
_SHOWN = r"^[^\x00-\x1f\x7f]*$"
_STATE = r"^[a-z][a-z_]{0,31}$"


class StartBody(BaseModel):
    """The payload is about to run."""

    model_config = ConfigDict(extra="allow")


class PhaseBody(BaseModel):
    """How far one phase of a grid job is, all its local jobs together."""

    model_config = ConfigDict(extra="ignore", from_attributes=True)

    name: str = Field(min_length=1, max_length=100, pattern=_SHOWN)
    done: _Count
    of: _Count
    unit: str = Field(
        default="", max_length=30, pattern=_SHOWN, description="What is counted, such as events."
    )

    @model_validator(mode="after")
    def _not_beyond_the_end(self) -> Self:
        if self.done > self.of:
            raise ValueError(f"{self.name}: {self.done} of {self.of} is more than all")
        return self


class HeartbeatBody(BaseModel):
    """The payload runs."""

    model_config = ConfigDict(extra="allow")

    progress: str | None = Field(default=None, max_length=2000, description="For people; null: as before.")
    output_tail: str | None = Field(default=None, description="The payload's last output; null: as before.")
    phases: list[PhaseBody] | None = Field(
        default=None, max_length=_MOST_PHASES, description="Of a grid job, in their order; null: as before."
    )
    local_jobs: dict[Annotated[str, Field(pattern=_STATE)], _Count] | None = Field(
        default=None,
        max_length=_MOST_STATES,
        description="Numbers of a grid job's local jobs by state; null: as before.",
    )

    def told(self) -> Progress:
        """What is kept of it."""
        phases = [KeptPhase(**each.model_dump()) for each in self.phases or ()]
        return Progress(
            text=self.progress,
            output_tail=None if self.output_tail is None else self.output_tail[-_TAIL:],
            phases=None if self.phases is None else phases,
            local_jobs=self.local_jobs,
        )


class FinishBody(BaseModel):
    """The payload has ended."""

    model_config = ConfigDict(extra="allow")

    status: Literal["Done", "Failed"]
    exit_code: int | None = Field(default=None, ge=-(2**31), le=2**31 - 1)
    minor_status: str = Field(default="", max_length=2000)
    application_status: str = Field(default="", max_length=2000)
    cpu_seconds: float | None = Field(
        default=None, ge=0, le=_MOST_CPU, description="CPU time of the payload with all its processes."
    )
    cpu_power: float | None = Field(
        default=None, gt=0, le=_MOST_POWER, description="Normalised seconds in one of them, where measured."
    )


class ReleaseBody(BaseModel):
    """The pilot gives the job back."""

    model_config = ConfigDict(extra="allow")

    reason: str = Field(default="", max_length=2000)


class LeaseAnswer(BaseModel):
    """What the service has to say; the same request again gets the same answer."""

    model_config = ConfigDict(extra="allow")

    commands: list[str] = Field(default=[], description="`kill`: end the payload, deliver what there is.")
    heartbeat_seconds: float | None = Field(default=None, description="Seconds until the next one.")


class OutputStored(BaseModel):
    """The output archive is safe."""

    output: str = Field(description="`sha256:<digest>`.")
    size: int = Field(description="Bytes.")
