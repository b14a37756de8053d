"""What a pilot says about its attempt, and what it is answered."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

#: Characters of the payload's output that are kept; a pilot sends the last ones.
_TAIL = 16_384


class Start(BaseModel):
    """The payload is about to run."""

    model_config = ConfigDict(extra="allow")


class Heartbeat(BaseModel):
    """The payload runs."""

    model_config = ConfigDict(extra="allow")

    progress: str | None = Field(default=None, max_length=2000, description="For people; null: as before.")
    output_tail: str | None = Field(default=None, description="The payload's last output; null: as before.")

    @property
    def tail(self) -> str | None:
        """As much of the output as is kept."""
        return None if self.output_tail is None else self.output_tail[-_TAIL:]


class Finish(BaseModel):
    """The payload has ended."""

    model_config = ConfigDict(extra="allow")

    status: Literal["Done", "Failed"]
    exit_code: int | None = Field(default=None, ge=-(2**31), le=2**31 - 1)
    minor_status: str = Field(default="", max_length=2000)
    application_status: str = Field(default="", max_length=2000)


class Release(BaseModel):
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
