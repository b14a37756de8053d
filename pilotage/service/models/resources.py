"""Resources on the wire."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, RootModel

from requirements.values import Value


class Selection(BaseModel):
    """Which nodes of the resource tree."""

    model_config = ConfigDict(extra="forbid")

    vo: str | None = Field(default=None, description="Whose parameters count; without it the token's VO.")
    node: str = "Queue"
    ce: dict[str, Any] = Field(default_factory=dict, description="By effective parameters of the CE.")
    queue: dict[str, Any] = Field(default_factory=dict, description="By effective parameters of the queue.")


class NodeTree(RootModel[dict[str, dict[str, dict[str, dict[str, Value]]]]]):
    """Site → CE → queue → its effective parameters."""


class ParameterAnswer(BaseModel):
    """One effective parameter and where it comes from."""

    value: Value
    level: str = Field(description="`Site`, `CE` or `Queue`; with `VOs/<vo>` for the value of a VO.")
    path: str
    file: str
    line: int


class QueueAnswer(BaseModel):
    """A queue as a VO gets it."""

    queue: str = Field(description="`Site/CE/Queue`.")
    vo: str | None
    usable: bool = Field(description="Enabled, and open for the VO.")
    config_version: int
    parameters: dict[str, ParameterAnswer]


class Switch(BaseModel):
    """Why a queue is drained or resumed."""

    model_config = ConfigDict(extra="forbid")

    message: str = Field(default="", max_length=1000, description="For the history of the configuration.")
