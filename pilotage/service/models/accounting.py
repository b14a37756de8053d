"""Requests for accounting sums, and their answers."""

from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from pilotage.service.models.jobs import Words, words
from taskqueue.accounting.report import TimeBucket, UsageRow

_Column = Annotated[str, Field(max_length=40)]


class AccountingQuery(BaseModel):
    """Filter and grouping of sums; several values, separated by commas, mean any of them."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    by: Annotated[list[_Column], Field(max_length=10), BeforeValidator(words)] = Field(
        default=["vo"], description="Any of vo, site, ce, queue, owner, owner_group, status."
    )
    since: str | None = Field(
        default=None,
        alias="from",
        max_length=40,
        description="A time (RFC 3339), a date, or how long ago, such as 24h, 7d, 12w; 7d if left out.",
    )
    until: str | None = Field(
        default=None, alias="to", max_length=40, description="The same; now if left out."
    )
    bucket: TimeBucket | None = Field(
        default=None, description="Sums for each hour, day, week …; left out: for the whole period."
    )
    vo: Words = None
    site: Words = None
    ce: Words = None
    queue: Words = None
    owner: Words = None
    owner_group: Words = None
    status: Words = None


class AccountingRow(BaseModel):
    """Sums for one combination of the values grouped by, which are further fields of the row."""

    model_config = ConfigDict(extra="allow")

    jobs: int = Field(description="Jobs that ended; a job that failed and was restarted ends again.")
    attempts: int = Field(description="Attempts that started and are over.")
    wall_seconds: float = Field(description="Wall time of attempts, in the hours in which it was spent.")
    core_seconds: float = Field(description="Wall time multiplied by the cores assigned to the job.")
    cpu_seconds: float = Field(description="CPU time, where pilots reported it.")
    cpu_efficiency: float | None = Field(
        description="CPU time by core time, of attempts with reported CPU time; null: there are none."
    )
    normalised_cpu_seconds: float = Field(description="CPU time multiplied by power, where measured.")
    waited: dict[str, float] = Field(description="Seconds that ended jobs waited, by cause.")

    @classmethod
    def from_usage(cls, line: UsageRow, by: list[str]) -> Self:
        """Add the names of the columns."""
        use, efficiency = line.use, line.efficiency
        known: dict[str, Any] = {} if line.at is None else {"at": line.at}
        return cls(
            **known,
            **dict(zip(by, line.values, strict=True)),
            jobs=use.jobs,
            attempts=use.attempts,
            wall_seconds=use.wall_seconds,
            core_seconds=use.core_seconds,
            cpu_seconds=use.cpu_seconds,
            cpu_efficiency=None if efficiency is None else round(efficiency, 4),
            normalised_cpu_seconds=use.normalised_seconds,
            waited=dict(line.waited),
        )


class AccountingAnswer(BaseModel):
    """The sums by time and values."""

    since: datetime = Field(serialization_alias="from")
    until: datetime = Field(serialization_alias="to")
    by: list[str]
    bucket: TimeBucket | None
    rows: list[AccountingRow]
