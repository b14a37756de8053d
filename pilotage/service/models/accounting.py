"""What is asked of the accounts, and what they answer."""

from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from pilotage.service.models.jobs import Words, words
from taskqueue.accounting.report import TimeBucket, UsageRow

_Column = Annotated[str, Field(max_length=40)]


class AccountingQuery(BaseModel):
    """Which sums; several values, separated by commas, mean any of them."""

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
        default=None, description="Sums for each of these; left out: of the whole."
    )
    vo: Words = None
    site: Words = None
    ce: Words = None
    queue: Words = None
    owner: Words = None
    owner_group: Words = None
    status: Words = None


class AccountingRow(BaseModel):
    """The sums of one combination of the values that were asked by, which stand beside them."""

    model_config = ConfigDict(extra="allow")

    jobs: int = Field(description="That ended; one that failed and was started again ends again.")
    attempts: int = Field(description="That had begun and are over.")
    wall_seconds: float = Field(description="Of attempts, in the hours in which they were spent.")
    core_seconds: float = Field(description="Wall time, times the cores that the job might use.")
    cpu_seconds: float = Field(description="As far as pilots told it.")
    cpu_efficiency: float | None = Field(description="CPU by core time, where CPU was told; null: nowhere.")
    normalised_cpu_seconds: float = Field(description="CPU time times power, as far as pilots measured it.")
    waited: dict[str, float] = Field(description="Seconds by what the jobs that ended had waited for.")

    @classmethod
    def of(cls, line: UsageRow, by: list[str]) -> Self:
        """A line with its names."""
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
    """The sums, by time and values."""

    since: datetime = Field(serialization_alias="from")
    until: datetime = Field(serialization_alias="to")
    by: list[str]
    bucket: TimeBucket | None
    rows: list[AccountingRow]
