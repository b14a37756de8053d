"""Which jobs, as a value."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, FromClause

from taskqueue import whose
from taskqueue.states import JobStatus
from taskqueue.tables import jobs as table
from taskqueue.whose import Whose


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which jobs; None asks nothing, an empty set is met by no job."""

    job_ids: frozenset[int] | None = None
    vos: frozenset[str] | None = None
    owner: str | None = None
    owner_group: str | None = None
    statuses: frozenset[JobStatus] | None = None
    minor_status: str | None = None
    sites: frozenset[str] | None = None
    submit_pool: str | None = None
    job_name: str | None = None
    job_type: str | None = None
    job_group: str | None = None
    submitted_since: datetime | None = None
    submitted_before: datetime | None = None
    any_of: tuple[Whose, ...] = ()  #: one of these besides, if there are any

    @property
    def is_met_by_none(self) -> bool:
        """Whether one sees without looking that no job can meet it."""
        return frozenset() in (self.job_ids, self.vos, self.statuses, self.sites)

    def clauses(self, of: FromClause = table) -> list[ColumnElement[bool]]:
        """It as conditions on the table of jobs, or on what was selected from it."""
        sets = {
            of.c.job_id: self.job_ids,
            of.c.vo: self.vos,
            of.c.status: self.statuses,
            of.c.site: self.sites,
        }
        equal = {
            of.c.owner: self.owner,
            of.c.owner_group: self.owner_group,
            of.c.minor_status: self.minor_status,
            of.c.submit_pool: self.submit_pool,
            of.c.job_name: self.job_name,
            of.c.job_type: self.job_type,
            of.c.job_group: self.job_group,
        }
        clauses: list[ColumnElement[bool]] = []
        clauses += [column.in_(sorted(allowed)) for column, allowed in sets.items() if allowed is not None]
        clauses += [column == value for column, value in equal.items() if value is not None]
        if self.submitted_since is not None:
            clauses.append(of.c.submitted_at >= self.submitted_since)
        if self.submitted_before is not None:
            clauses.append(of.c.submitted_at < self.submitted_before)
        return clauses + whose.clauses(self.any_of, vo=of.c.vo, at=of.c.site.in_, owner=of.c.owner)
