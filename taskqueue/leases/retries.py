"""Retries: jobs that a rule lets run again when they fail, some with other descriptions.

A retry is a rescheduling that does not count against its maximum. It is decided in the transaction that ends
the attempt, on locked rows; how often a rule was used follows from how the earlier attempts ended. Jobs
without rules are found by the database and cost nothing else. What a rule makes of a description is planned
by the caller's `RetryPlan`.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, bindparam, or_, select

from cs_config.options.retry_rules import PILOT_LOST, Ending
from taskqueue.db import sql
from taskqueue.jobs import descriptions, edits
from taskqueue.jobs.descriptions import Description, StoredDescription
from taskqueue.jobs.edits import EditedJob
from taskqueue.jobs.jobs import Job, read_jobs
from taskqueue.leases.attempts import FINISHED
from taskqueue.schema.tables import attempts, jobs
from taskqueue.schema.tables import descriptions as descriptions_table

#: Minor status of a job that a rule has rescheduled, and `closed_as` of the attempt if its pilot was lost.
RETRIED: Final = "Retried by a rule"
CLOSED_AS: Final = "retried"
#: The keyword in the JSON of a description; a quotation mark in a text has a backslash.
_STATED: Final = '"Retry": ['

STATES_RULES: Final = descriptions_table.c.body.contains(_STATED, autoescape=True)

#: Those of some jobs that have rules of their own, or whose VO has some.
RULED = (
    select(jobs.c.job_id)
    .join(descriptions_table, descriptions_table.c.description_id == jobs.c.description_id)
    .where(
        sql.is_listed(jobs.c.job_id),
        or_(jobs.c.vo.in_(bindparam("ruled_vos", expanding=True)), STATES_RULES),
    )
)
ENDED_BEFORE = (
    select(attempts.c.job_id, attempts.c.closed_as, attempts.c.exit_code, attempts.c.request)
    .where(sql.is_listed(attempts.c.job_id), attempts.c.closed_as.in_([FINISHED, CLOSED_AS]))
    .order_by(attempts.c.job_id, attempts.c.epoch)
)
PUT_OFF = sql.bulk_update(jobs, "due_at", key="job_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """An attempt that is about to end."""

    job_id: int
    site: str
    ram_mb: int | None  #: that the job was given, or more that it used; None: neither is known
    ending: Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryQuestion:
    """A job with rules, of which an attempt ends."""

    job: Job
    stored: StoredDescription
    failed: FailedAttempt
    before: Sequence[Ending]  #: of its earlier attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDescription:
    """A job with the description that it gets."""

    job: EditedJob
    description: Description


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """A job runs again."""

    note: str  #: the end, what is changed, and which retry it is
    delay: timedelta = timedelta()
    change: NewDescription | None = None  #: None: with the same description


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRetry:
    """A rule names the end, but the job does not run again."""

    reason: str


RetryDecision = Retry | NoRetry


#: What the rules of a job make of an end; None: none of them names it.
RetryPlan = Callable[[RetryQuestion], RetryDecision | None]


def plan_nothing(_: RetryQuestion) -> None:
    """The plan of callers that end no attempt."""


def decide_retries(
    conn: Connection, failed: Sequence[FailedAttempt], plan: RetryPlan, *, ruled_vos: Collection[str]
) -> Mapping[int, RetryDecision]:
    """What rules make of the ends of locked jobs; those that no rule names are left out.

    `ruled_vos` have rules for all of their jobs.
    """
    by_id = {each.job_id: each for each in failed}
    if not by_id:
        return {}
    ruled = [row.job_id for row in sql.read_batches(conn, RULED, by_id, ruled_vos=sorted(ruled_vos))]
    if not ruled:
        return {}
    stored = descriptions.read_stored(conn, ruled)
    before = _read_endings(conn, ruled)
    decided = {
        job.job_id: plan(
            RetryQuestion(
                job=job,
                stored=stored[job.job_id],
                failed=by_id[job.job_id],
                before=before.get(job.job_id, ()),
            )
        )
        for job in read_jobs(conn, ruled)
    }
    return {job_id: each for job_id, each in decided.items() if each is not None}


def _read_endings(conn: Connection, job_ids: Collection[int]) -> Mapping[int, Sequence[Ending]]:
    found: defaultdict[int, list[Ending]] = defaultdict(list)
    for row in sql.read_batches(conn, ENDED_BEFORE, job_ids):
        if row.closed_as == CLOSED_AS:
            found[row.job_id].append(Ending(reason=PILOT_LOST))
            continue
        result = json.loads(row.request or "{}").get("finish", {})
        if result.get("status") == "Failed":
            reason = result.get("minor_status", "")
            found[row.job_id].append(Ending(reason=reason, exit_code=row.exit_code))
    return found


def apply_retries(conn: Connection, retries: Mapping[int, Retry], *, now: datetime) -> None:
    """Give jobs that were rescheduled by rules their new descriptions, and put off those with a delay."""
    changed = [each.change for _, each in sorted(retries.items()) if each.change is not None]
    edited = [replace(each.job, place=place) for place, each in enumerate(changed)]
    edits.replace_descriptions(conn, edited, [each.description for each in changed])
    delayed = {job_id: now + each.delay for job_id, each in sorted(retries.items()) if each.delay}
    if delayed:
        PUT_OFF.execute(conn, {"job_id": [*delayed], "due_at": [*delayed.values()]})
