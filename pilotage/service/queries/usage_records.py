"""Usage records of a site for a month, with the names and the power that the configuration has."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

from pydantic import BaseModel, Field

from cs_config.tree import parameters
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from pilotage.service.auth import visibility
from pilotage.service.auth.callers import Caller
from pilotage.service.models import StrictInput
from pilotage.service.services import Services
from requirements import input_faults
from requirements.values import fold
from taskqueue.accounting import records
from taskqueue.accounting.records import UsageRecord

#: Name of the parameter, folded.
_BENCHMARK = "hepscore23"


class UsageRecordQuery(StrictInput):
    """A site and a month."""

    site: str = Field(max_length=200, description="The site.")
    month: str = Field(
        pattern=input_faults.MONTH, description="Month of the end of attempts, in UTC: 2026-10."
    )
    after: int = Field(default=0, ge=0, lt=2**63, description="Continue after this job: `next` of a page.")

    @property
    def period(self) -> tuple[datetime, datetime]:
        """The month: its begin, and that of the next."""
        begin = datetime.strptime(self.month, "%Y-%m").replace(tzinfo=UTC)
        year, month = divmod(begin.year * 12 + begin.month, 12)
        return begin, begin.replace(year=year, month=month + 1)


class UsageRecordRow(BaseModel):
    """What one attempt of a job used, from its start to its end."""

    job_id: int
    attempt: int = Field(description="Its number among the attempts of the job.")
    vo: str
    owner: str | None = Field(description="Null: the token does not cover the names of the VO.")
    dn: str | None = Field(description="The first name of the owner in certificates; null: none is known.")
    ce: str
    queue: str
    processors: int
    started: datetime
    ended: datetime
    wall_seconds: float
    cpu_seconds: float = Field(description="0 if the pilot reported none.")
    peak_ram_mb: int | None
    hepscore23: float | None = Field(description="Of a core of the queue; null: its parameters state none.")
    attempts: int = Field(description="How often accounting counted it: 2 if it was lost and resumed.")


class UsageRecordAnswer(BaseModel):
    """Records of some of the jobs; a page may have none although more follow."""

    records: list[UsageRecordRow]
    next: int | None = Field(description="`after` of the next page; null: this is the last.")
    accounted_attempts: int | None = Field(
        description="On the last page: attempts of the month that accounting counted; more than the sum of "
        "`attempts`: some are deleted with their jobs."
    )


def read(parts: Services, caller: Caller, query: UsageRecordQuery) -> UsageRecordAnswer:
    """Read a page of records; `NotAllowed` for a site that is not the caller's."""
    config = parts.live.current
    visibility.require_site(caller, config, query.site)
    since, until = query.period
    with parts.replica.reading() as conn:
        page = records.read_page(conn, site=query.site, since=since, until=until, after=query.after)
        is_last = page.last is None
        accounted = (
            records.count_accounted(conn, site=query.site, since=since, until=until) if is_last else None
        )
    site = _Site(name=query.site, config=config, caller=caller)
    rows = [site.describe(each) for each in page.records]
    return UsageRecordAnswer(records=rows, next=page.last, accounted_attempts=accounted)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """A site as a caller sees it; the power of each queue is looked up once."""

    name: str
    config: Configuration
    caller: Caller
    powers: dict[tuple[str, str, str], float | None] = field(default_factory=dict)

    def describe(self, record: UsageRecord) -> UsageRecordRow:
        is_named = visibility.may_see_names_of(self.caller, vo=record.vo, owner=record.owner, site=self.name)
        user = self.config.registry.users.get(record.owner) if is_named else None
        return UsageRecordRow(
            job_id=record.job_id,
            attempt=record.epoch,
            vo=record.vo,
            owner=record.owner if is_named else None,
            dn=user.dn[0] if user and user.dn else None,
            ce=record.ce,
            queue=record.queue,
            processors=record.processors,
            started=record.started_at,
            ended=record.ended_at,
            wall_seconds=record.use.wall_seconds,
            cpu_seconds=record.use.cpu_seconds,
            peak_ram_mb=record.peak_ram_mb,
            hepscore23=self._find_power(record),
            attempts=record.use.attempts,
        )

    def _find_power(self, record: UsageRecord) -> float | None:
        key = (record.ce, record.queue, record.vo)
        if key not in self.powers:
            address = QueueAddress(site=self.name, ce=record.ce, queue=record.queue)
            self.powers[key] = _read_power(self.config, address, record.vo)
        return self.powers[key]


def _read_power(config: Configuration, queue: QueueAddress, vo: str) -> float | None:
    """The benchmark of a core of a queue; None if none is stated, or none that is allowed."""
    values = config.values_around(queue, vo)
    stated = next((value for name, value in values.items() if fold(name) == _BENCHMARK), None)
    if not isinstance(stated, int | float) or parameters.find_fault(_BENCHMARK, stated):
        return None
    return float(stated)
