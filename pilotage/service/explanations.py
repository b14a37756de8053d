"""Explanations of jobs, submitted or not, as they are answered."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from random import Random
from typing import Any

from sqlalchemy import Connection

from cs_config import admissions, glue
from cs_config.configuration import Configuration
from cs_config.operations import operations
from matcher import changes, closures, forwarded, job_ads, ranks, survey
from matcher.applicants import Applicant
from matcher.changes import Change
from matcher.effort import Effort
from matcher.explain import Explanation, explain
from matcher.holding import Situation, holding
from matcher.parts import Demand
from matcher.ranks import Ranked
from optimizers import description, foresight
from optimizers.foresight import Foreseen
from optimizers.submitter import Ownership
from pilotage.service.models.explain import ChangeAnswer, ForwardingAnswer, JobExplanation, ReasonAnswer
from requirements.bits import bits
from requirements.errors import InvalidInput
from requirements.expression import Expression
from taskqueue import descriptions, job_classes
from taskqueue.classes import RequirementClass
from taskqueue.jobs import Job

#: DIRAC's word for no name in particular.
_ANY = "any"
_NOT_ALL_TRIED = "its Requirements are long: not every change of them was tried, another may help more"
_TOO_MANY_AT_ONCE = f"changes of more than {changes.TOGETHER} requirements at once; none of fewer helps"


def of_job(
    conn: Connection, config: Configuration, job: Job, *, forwarding: bool = False, now: datetime
) -> JobExplanation:
    """Why a job runs or does not; with `forwarding` also what is decided where."""
    body = descriptions.of_job(conn, job.job_id).body
    applicant = _applicant(job, body)
    demand = _in_front_of_queues(config, _demand(conn, config, job, body, now), applicant)
    found = _explanation(conn, config, demand, applicant, job, now)
    return _with_forwarding(found, config, demand) if forwarding else found


def of_foreseen(
    conn: Connection, config: Configuration, foreseen: Foreseen, *, forwarding: bool = False, now: datetime
) -> JobExplanation:
    """Whether a description that was not submitted would find queues."""
    applicant = _unsubmitted(foreseen)
    demand = _in_front_of_queues(config, _of(foreseen), applicant)
    found = _explanation(conn, config, demand, applicant, None, now)
    if foreseen.trouble:
        found.now.insert(0, foreseen.trouble)
    return _with_forwarding(found, config, demand) if forwarding else found


def ranked_queues(
    conn: Connection, config: Configuration, job: Job, *, random: Random, now: datetime
) -> list[Ranked]:
    """The queues that a job may run in, in the order of its `Rank`."""
    body = descriptions.of_job(conn, job.job_id).body
    foreseen = _foreseen(config, job, body, now)
    rank = None if foreseen is None else foreseen.description.rank
    return _ranked(config, _demand(conn, config, job, body, now), _applicant(job, body), rank, random)


def ranked_queues_of_foreseen(config: Configuration, foreseen: Foreseen, *, random: Random) -> list[Ranked]:
    """The same for a description that was not submitted."""
    return _ranked(config, _of(foreseen), _unsubmitted(foreseen), foreseen.description.rank, random)


def _ranked(
    config: Configuration, demand: Demand, applicant: Applicant, rank: Expression | None, random: Random
) -> list[Ranked]:
    vo = demand.asked.vo
    whole = survey.of_vo(config, vo)
    eligible = whole.eligible(_in_front_of_queues(config, demand, applicant))
    addresses = (whole.queues[number].address for number in bits(eligible))
    ads = ((each, glue.ad(config.values(each, vo), each)) for each in addresses)
    return ranks.ordered(ads, rank, job_ads.of(applicant), random)


def _in_front_of_queues(config: Configuration, demand: Demand, applicant: Applicant) -> Demand:
    """The demand with the job itself, if any queue asks who it is."""
    return replace(demand, job=job_ads.of(applicant)) if admissions.configured(config) else demand


def _with_forwarding(found: JobExplanation, config: Configuration, demand: Demand) -> JobExplanation:
    vo = demand.asked.vo
    told = forwarded.of(config, survey.of_vo(config, vo), vo, demand)
    return found.model_copy(update={"forwarding": [ForwardingAnswer.of(each) for each in told]})


def _explanation(
    conn: Connection,
    config: Configuration,
    demand: Demand,
    applicant: Applicant,
    job: Job | None,
    now: datetime,
) -> JobExplanation:
    vo = demand.asked.vo
    whole = survey.of_vo(config, vo)
    found = explain(whole, vo, demand)
    situation = Situation(
        job=job,
        applicant=applicant,
        demand=demand,
        survey=whole,
        eligible=whole.eligible(demand),
        config=config,
        now=now,
    )
    effort = Effort()
    closed = closures.closed(conn, config, applicant, whole, now)
    better = changes.changes(whole, vo, demand, effort, closed=closed)
    return JobExplanation(
        job_id=job.job_id if job else None,
        status=job.status if job else None,
        eligible_queues=found.eligible_queues,
        candidate_queues=found.candidate_queues,
        reasons=[ReasonAnswer.of(each) for each in found.exclusions],
        changes=[ChangeAnswer.of(each) for each in better],
        left_out=_left_out(found, better, effort),
        now=holding(conn, situation),
    )


def _left_out(found: Explanation, better: Sequence[Change], effort: Effort) -> list[str]:
    """What a user has to know of the changes that were not tried."""
    helpless = found.candidate_queues and not found.eligible_queues and not better
    return [_NOT_ALL_TRIED] * effort.over + [_TOO_MANY_AT_ONCE] * bool(helpless)


def _applicant(job: Job, body: Mapping[str, object]) -> Applicant:
    return Applicant(
        job_id=job.job_id,
        vo=job.vo,
        owner=job.owner,
        owner_group=job.owner_group,
        job_name=job.job_name,
        job_type=job.job_type,
        job_group=job.job_group,
        priority=job.priority,
        submit_pool=job.submit_pool,
        description=body,
    )


def _unsubmitted(foreseen: Foreseen) -> Applicant:
    said = foreseen.description
    return Applicant(
        job_id=None,
        vo=foreseen.whose.vo,
        owner=foreseen.whose.owner,
        owner_group=foreseen.whose.owner_group,
        job_name=said.job_name,
        job_type=said.job_type,
        job_group=said.job_group,
        priority=said.priority,
        submit_pool=foreseen.requirement_class.submit_pool,
        description=description.body(said),
    )


def _demand(
    conn: Connection, config: Configuration, job: Job, body: Mapping[str, object], now: datetime
) -> Demand:
    """What matching looks at; before the job is in a task queue, what its description says."""
    foreseen = _foreseen(config, job, body, now)
    stored = None if job.task_queue_id is None else job_classes.of_task_queue(conn, job.task_queue_id)
    if foreseen is None:
        return Demand(asked=stored or RequirementClass(vo=job.vo, cpu_time=0))
    demand = _of(foreseen)
    return demand if stored is None else replace(demand, asked=stored)


def _foreseen(config: Configuration, job: Job, body: Mapping[str, object], now: datetime) -> Foreseen | None:
    """The description read with the options of today; None: these do not allow it any more."""
    try:
        read = description.parse(body, operations(config, job.vo))
    except InvalidInput:
        return None
    whose = Ownership(vo=job.vo, owner=job.owner, owner_group=job.owner_group)
    return foresight.of_description(config, whose, read, now=now)


def _of(foreseen: Foreseen) -> Demand:
    asked = foreseen.requirement_class
    named: dict[str, Any] = {
        field: frozenset(name for name in getattr(asked, field) if name.lower() != _ANY)
        for field in ("sites", "banned_sites", "grid_ces", "platforms")
    }
    return Demand(asked=replace(asked, **named), requirements=foreseen.description.requirements)
