"""Traces of ended jobs: the history of each as a tree of spans, from the job log and its attempts.

A span is an interval with a name, attributes and spans within it, as OpenTelemetry has them.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby, pairwise
from typing import Final

from sqlalchemy import Connection, RowMapping, select

from requirements.states import FINAL, PREPARING, JobStatus
from taskqueue.db import sql
from taskqueue.jobs import jobs, log
from taskqueue.jobs.jobs import Job
from taskqueue.jobs.log import LogEntry
from taskqueue.schema.tables import attempts, job_waits
from taskqueue.schema.tables import jobs as jobs_table

#: Changes of a job's status in its trace; of a longer history only the newest are read.
MOST_CHANGES: Final = 100

JOBS = select(*jobs.read_columns()).where(sql.is_listed(jobs_table.c.job_id))
WAITS = select(job_waits).where(sql.is_listed(job_waits.c.job_id))
ATTEMPTS = select(
    *(attempts.c.job_id, attempts.c.epoch, attempts.c.site, attempts.c.ce, attempts.c.queue),
    *(attempts.c.stamp, attempts.c.processors, attempts.c.exit_code, attempts.c.closed_as),
).where(sql.is_listed(attempts.c.job_id))

Attributes = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """An interval in the life of a job."""

    name: str
    begin: datetime
    end: datetime
    attributes: Attributes = field(default_factory=dict)
    failed: str = ""  #: why it ended badly
    children: Sequence["Span"] = ()


def read_traces(conn: Connection, job_ids: Collection[int]) -> list[Span]:
    """One span named `job` for each of some hundreds of ended jobs, in the order of their ids."""
    if not job_ids:
        return []
    ids = {"ids": sorted(job_ids)}
    logs: defaultdict[int, list[LogEntry]] = defaultdict(list)
    for entry in log.read_logs(conn, job_ids):
        logs[entry.job_id].append(entry)
    tried = {(row["job_id"], row["epoch"]): row for row in conn.execute(ATTEMPTS, ids).mappings()}
    waited: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for row in conn.execute(WAITS, ids):
        waited[row.job_id][f"pilotage.waited.{row.cause}"] = row.seconds
    found = (jobs.from_row(dict(row)) for row in conn.execute(JOBS, ids).mappings())
    return [
        replace(trace, attributes={**trace.attributes, **waited[job.job_id]})
        for job in sorted(found, key=lambda job: job.job_id)
        if job.status in FINAL
        for trace in [build_trace(job, logs[job.job_id][-MOST_CHANGES:], tried)]
    ]


def build_trace(job: Job, entries: Sequence[LogEntry], tried: Mapping[tuple[int, int], RowMapping]) -> Span:
    """The trace of an ended job from its log, in order, and its attempts by job id and number.

    Below it is a span for each phase (submit, optimizers, wait, attempt), below that one for each status.
    """
    phases = [
        _build_phase(phase, list(changes), tried)
        for (phase, _), changes in groupby(_split(entries), key=lambda each: _read_phase(each[0]))
        if phase
    ]
    texts = {
        "vo": job.vo, "owner": job.owner, "owner_group": job.owner_group, "job_name": job.job_name,
        "job_type": job.job_type, "job_group": job.job_group, "submit_pool": job.submit_pool or "",
        "site": job.site, "status": job.status.value, "minor_status": job.minor_status,
    }  # fmt: skip
    return Span(
        name="job",
        begin=job.submitted_at,
        end=job.ended_at or job.updated_at,
        attributes={"pilotage.job_id": job.job_id, **_name(texts)},
        failed=job.minor_status or "failed" if job.status is JobStatus.FAILED else "",
        children=phases,
    )


_Change = tuple[LogEntry, datetime]  #: and its end


def _split(entries: Sequence[LogEntry]) -> Iterator[_Change]:
    """Each entry with the time of the next one; that of a job's end has none."""
    for entry, following in pairwise(entries):
        yield entry, max(entry.at, following.at)


def _read_phase(entry: LogEntry) -> tuple[str, int]:
    """Name of the phase that a status belongs to, and number of the attempt; empty: an end."""
    status = entry.to_status
    if status in FINAL:
        return "", 0
    if status is JobStatus.SUBMITTING:
        return "submit", 0
    if status in PREPARING:
        return "optimizers", 0
    if status is JobStatus.WAITING:
        return "wait", 0
    return "attempt", entry.epoch


def _build_phase(name: str, changes: Sequence[_Change], tried: Mapping[tuple[int, int], RowMapping]) -> Span:
    first, last = changes[0][0], changes[-1]
    attempt = tried.get((first.job_id, first.epoch)) if name == "attempt" else None
    attributes: Attributes = {}
    failed = ""
    if attempt is not None:
        kept = {"attempt": "epoch", "pilot": "stamp"}
        names = ("attempt", "site", "ce", "queue", "pilot", "processors", "exit_code", "closed_as")
        attributes = _name({each: attempt[kept.get(each, each)] for each in names})
        closed = attempt["closed_as"]
        failed = closed if closed and closed != "finished" else ""
    return Span(
        name=name,
        begin=first.at,
        end=last[1],
        attributes=attributes,
        failed=failed,
        children=[_build_status(entry, end) for entry, end in changes],
    )


def _build_status(entry: LogEntry, end: datetime) -> Span:
    texts = {"minor_status": entry.minor_status, "source": entry.source}
    return Span(name=entry.to_status.value, begin=entry.at, end=end, attributes=_name(texts))


def _name(values: Mapping[str, str | int | float | None]) -> dict[str, str | int | float]:
    """Attributes under the prefix of all ours, without empty ones."""
    return {f"pilotage.{name}": value for name, value in values.items() if value not in (None, "")}
