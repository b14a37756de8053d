"""Edits of waiting jobs: other values in their descriptions, checked as a submission is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Engine

from cs_config.options import keywords
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from optimizers.description import changes
from optimizers.description.changes import ChangedBody
from optimizers.submit.checking import CheckedJobs, check_sources, record_as_text
from optimizers.submit.submitter import Submitter
from requirements.errors import InvalidJob, PilotageError, Problem
from requirements.job_fields import WITH_JOB_ID
from taskqueue.db import database
from taskqueue.jobs import descriptions, edits, placeholders
from taskqueue.jobs.descriptions import Description, StoredDescription
from taskqueue.jobs.edits import EditedJob
from taskqueue.jobs.jobs import Job


@dataclass(slots=True, kw_only=True)
class EditedJobs:
    """Jobs with one new description, and what the first of them becomes."""

    first_job: int  #: id
    checked: CheckedJobs
    jobs: int = 0


@dataclass(slots=True, kw_only=True)
class EditResult:
    """Outcome of an edit."""

    done: list[int] = field(default_factory=list)  #: edited jobs, of which the optimizers are to be notified
    unchanged: list[int] = field(default_factory=list)  #: jobs that have these values already
    refused: dict[int, PilotageError] = field(default_factory=dict)
    taken: list[int] = field(default_factory=list)  #: jobs that a pilot got, or that were edited, meanwhile
    checked: list[EditedJobs] = field(default_factory=list)  #: for each new description


def edit(
    engine: Engine,
    config: Configuration,
    jobs: Sequence[Job],
    wanted: Mapping[str, object],
    *,
    source: str,
    now: datetime,
) -> EditResult:
    """Give the descriptions of jobs other values, in one transaction.

    Jobs that share a description share the new one. Each job is checked with its own values; an invalid one
    is refused and left as it is.
    """
    return store(engine, plan(engine, config, jobs, wanted), source=source, now=now)


def plan(
    engine: Engine,
    config: Configuration,
    jobs: Sequence[Job],
    wanted: Mapping[str, object],
    *,
    of_copies: bool = False,
) -> "EditPlan":
    """The new descriptions of jobs; nothing is stored. InvalidRequest for too long old ones together.

    `of_copies`: they are for copies of the jobs, which may wait for other ones.
    """
    job_ids = [job.job_id for job in jobs]
    with database.reading(engine) as conn:
        descriptions.require_few_bytes(conn, job_ids)
        stored = descriptions.read_stored(conn, job_ids)
    found = EditPlan(config=config, wanted=wanted, of_copies=of_copies)
    for job in jobs:
        found.add(job, stored[job.job_id])
    return found


def store(engine: Engine, plan: "EditPlan", *, source: str, now: datetime) -> EditResult:
    """Give the jobs the descriptions that were planned, unless they have changed since."""
    with database.writing(engine) as conn:
        plan.result.done = edits.edit_jobs(conn, plan.edited, plan.new, source=source, now=now)
    tried = {each.job_id for each in plan.edited}
    plan.result.taken = sorted(tried.difference(plan.result.done))
    return plan.result


@dataclass(slots=True, kw_only=True)
class EditPlan:
    """New descriptions of jobs."""

    config: Configuration
    wanted: Mapping[str, object]
    of_copies: bool = False  #: these may wait for other jobs than the ones they are copies of
    new: list[Description] = field(default_factory=list)
    edited: list[EditedJob] = field(default_factory=list)
    result: EditResult = field(default_factory=EditResult)
    _bodies: dict[int, ChangedBody] = field(default_factory=dict)  #: by id of the old description
    _places: dict[int, int] = field(default_factory=dict)

    def add(self, job: Job, stored: StoredDescription) -> None:
        """Plan the edit of a job, or note why it stays as it is."""
        try:
            changed = self._change(job, stored)
            if not changed.note:
                self.result.unchanged.append(job.job_id)
                return
            checked = self._check(job, stored, changed)
        except PilotageError as error:
            self.result.refused[job.job_id] = error
            return
        [member] = checked.submitted.members
        if stored.description_id not in self._places:
            self._places[stored.description_id] = len(self.new)
            self.new.append(_describe(job, stored, changed, checked))
            self.result.checked.append(EditedJobs(first_job=job.job_id, checked=checked))
        place = self._places[stored.description_id]
        self.result.checked[place].jobs += 1
        self.edited.append(
            EditedJob(
                job_id=job.job_id,
                description_id=stored.description_id,
                place=place,
                texts={
                    name: str(placeholders.put_job_id(getattr(member.whole, name), job.job_id))
                    for name in WITH_JOB_ID
                },
                note=changed.note,
            )
        )

    def _change(self, job: Job, stored: StoredDescription) -> ChangedBody:
        if stored.description_id not in self._bodies:
            options = options_for(self.config, job.vo)
            changed = changes.change_body(stored.body, self.wanted, options)
            names = () if self.of_copies else ("After", "AfterPolicy")
            if any(changed.body.get(name) != stored.body.get(name) for name in names):
                message = f"is not changed: {keywords.KEPT_BY_JOB['after']}; submit a copy"
                raise InvalidJob([Problem(path="After", message=message)])
            self._bodies[stored.description_id] = changed
        return self._bodies[stored.description_id]

    def _check(self, job: Job, stored: StoredDescription, changed: ChangedBody) -> CheckedJobs:
        body = placeholders.fill_placeholders(changed.body, stored.parameters)
        owner = Submitter(subject=job.owner, vo=job.vo, owner=job.owner, owner_group=job.owner_group)
        sandbox = None if stored.sandbox is None else f"sha256:{stored.sandbox}"
        found = check_sources(self.config, owner, [body], sandbox=sandbox)
        if len(found) != 1 or len(found[0].submitted.members) != 1:
            raise InvalidJob([Problem(path="Parameters", message="would make many jobs of one")])
        return found[0]


def _describe(job: Job, stored: StoredDescription, changed: ChangedBody, checked: CheckedJobs) -> Description:
    description = checked.submitted.members[0].description
    return Description(
        source=record_as_text({"VO": job.vo, **changed.body}),
        body=changed.body,
        sandbox=stored.sandbox,
        rank=None if description.rank is None else description.rank.text,
        waiting_ttl=description.waiting_ttl or None,
        relax_after=description.relax_after,
    )
