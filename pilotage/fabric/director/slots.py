"""What a file says of the slots that are asked for at a batch system."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from pilotage.fabric.batch.batch_system import Resources
from pilotage.fabric.batch.settings import Flags

Address = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:@+-]+(/[A-Za-z0-9._:@+-]+){2}$")]


class Settings(BaseModel):
    """A part of a file: what it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Slot(Settings):
    """What a job asks of the batch system."""

    cores: int = Field(default=1, ge=1)
    memory: int | None = Field(default=None, ge=1)  #: MB of a slot
    wall_time: int | None = Field(default=None, ge=60)  #: seconds of a slot
    gpus: int = Field(default=0, ge=0)
    whole_node: bool = False
    flags: Flags = ()

    @property
    def resources(self) -> Resources:
        """As batch systems take it."""
        return Resources(
            cores=self.cores,
            memory=self.memory,
            wall_time=self.wall_time,
            gpus=self.gpus,
            whole_node=self.whole_node,
        )
