"""SubmitPools and resources."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, RootModel

from pilotage.service.models.paging import ListPage
from requirements.values import Value


class PoolAnswer(BaseModel):
    """Requirements of a VO with the queues that are eligible for them."""

    pool_id: str = Field(description="SHA-256 of the canonical form.")
    vo: str
    requirements: dict[str, Value] | str = Field(description="As first submitted: a record or an expression.")
    eligible_queues: int
    queues: list[str] = Field(
        description="`Site/CE/Queue` of each; of a VO that the token is not for, only those at its sites."
    )
    jobs: dict[str, int] = Field(description="Numbers of jobs by status.")
    more_jobs: list[str] = Field(description="Statuses whose count in `jobs` is only a lower bound.")
    created_at: datetime
    last_used_at: datetime
    refreshed_at: datetime | None = Field(description="When the queues were computed; null: not yet.")
    config_version: int = Field(description="The configuration that they were computed from.")


class PoolPage(BaseModel):
    """Pools by id."""

    pools: list[PoolAnswer]
    next: str | None = Field(description="The `after` of the next page; null: this was the last.")


class PoolQuery(ListPage):
    """Filter of pools."""

    model_config = ConfigDict(extra="forbid")

    vo: str | None = None
    after: str = Field(default="", max_length=64, description="`next` of the page before.")


class NodeSelection(BaseModel):
    """Filter of nodes of the resource tree."""

    model_config = ConfigDict(extra="forbid")

    vo: str | None = Field(default=None, description="VO whose parameters apply; default: the token's.")
    node: str = "Queue"
    ce: dict[str, Any] = Field(default_factory=dict, description="By effective parameters of the CE.")
    queue: dict[str, Any] = Field(default_factory=dict, description="By effective parameters of the queue.")


class NodeTree(RootModel[dict[str, dict[str, dict[str, dict[str, Value]]]]]):
    """Site → CE → queue → its effective parameters."""


class ParameterAnswer(BaseModel):
    """An effective parameter and its origin."""

    value: Value
    level: str = Field(description="`Site`, `CE` or `Queue`; with `VOs/<vo>` for the value of a VO.")
    path: str
    file: str
    line: int


class QueueAnswer(BaseModel):
    """A queue with its parameters for a VO."""

    queue: str = Field(description="`Site/CE/Queue`.")
    vo: str | None
    usable: bool = Field(description="Enabled, and open to the VO.")
    config_version: int
    parameters: dict[str, ParameterAnswer]


class Switch(BaseModel):
    """Draining or resuming a queue."""

    model_config = ConfigDict(extra="forbid")

    message: str = Field(default="", max_length=1000, description="For the history of the configuration.")
