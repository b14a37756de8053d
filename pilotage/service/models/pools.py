"""SubmitPools on the wire."""

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from pilotage.service.models.paging import Page
from requirements.values import Value


class PoolAnswer(BaseModel):
    """Requirements of a VO with the queues that are eligible for them."""

    pool_id: str = Field(description="SHA-256 of the canonical form.")
    vo: str
    requirements: dict[str, Value] | str = Field(description="As first written: a record or an expression.")
    eligible_queues: int
    queues: list[str] = Field(
        description="`Site/CE/Queue` of each; of a VO that the token does not stand for, at its sites."
    )
    jobs: dict[str, int] = Field(description="Numbers of jobs by status.")
    more_jobs: list[str] = Field(description="Statuses with more than that: they were not counted on.")
    created_at: datetime
    last_used_at: datetime
    refreshed_at: datetime | None = Field(description="When the queues were found out; null: not yet.")
    config_version: int = Field(description="The configuration that they were found out from.")


class PoolPage(BaseModel):
    """Pools by id."""

    pools: list[PoolAnswer]
    next: str | None = Field(description="The `after` of the next page; null: this was the last.")


class PoolQuery(Page):
    """Which pools."""

    model_config = ConfigDict(extra="forbid")

    vo: str | None = None
    after: str = Field(default="", max_length=64, description="`next` of the page before.")
