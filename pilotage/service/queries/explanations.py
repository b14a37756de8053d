"""Explanations of jobs (submitted or not) and of queues."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from random import Random
from typing import Any

from sqlalchemy import Connection

from cs_config.options.operations import options_for
from cs_config.tree import admission_cache, glue
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.explain import blockers, decision_split, queue_report, queue_set, ranking, suggestions
from matcher.explain.blockers import JobSituation, list_blockers
from matcher.explain.explanation import Explanation, explain
from matcher.explain.job_conditions import JobDemand
from matcher.explain.ranking import RankedQueue
from matcher.explain.rewrites import ExplanationBudget
from matcher.explain.suggestions import SuggestedChange
from matcher.limits import job_groups
from matcher.limits.job_groups import JobView
from optimizers.description import description
from optimizers.submit import dry_run
from optimizers.submit.dry_run import DryRun
from optimizers.submit.submitter import Ownership
from pilotage.service.auth import visibility
from pilotage.service.auth.callers import Caller
from pilotage.service.models.explain import (
    ChangeAnswer,
    ExcludedAnswer,
    ForwardingAnswer,
    JobExplanation,
    OfferAnswer,
    QueueExplanation,
    ReasonAnswer,
    WorkAnswer,
)
from pilotage.service.services import Services
from requirements.bitset import list_positions
from requirements.classad.expression import Expression
from requirements.errors import InvalidInput
from requirements.values import Value
from taskqueue.db import database
from taskqueue.jobs import descriptions
from taskqueue.jobs.jobs import Job
from taskqueue.task_queues import listing
from taskqueue.task_queues.listing import WaitingClass
from taskqueue.task_queues.requirement_class import RequirementClass

#: DIRAC's name for "no restriction".
_ANY = "any"
_NOT_ALL_TRIED = "its Requirements are long: not every change of them was tried, another may help more"
_TOO_MANY_AT_ONCE = f"changes of more than {suggestions.TOGETHER} requirements at once; none of fewer helps"


def explain_job(
    conn: Connection, config: Configuration, job: Job, *, forwarding: bool = False, now: datetime
) -> JobExplanation:
    """Explain why a job runs or does not; with `forwarding` also where each requirement is decided."""
    body = descriptions.read_description(conn, job.job_id).body
    applicant = _applicant(job, body)
    demand = _explain_at_queues(config, _demand(conn, config, job, body, now), applicant)
    found = _explanation(conn, config, demand, applicant, job, now)
    return _with_forwarding(found, config, demand) if forwarding else found


def explain_dry_run(
    conn: Connection, config: Configuration, foreseen: DryRun, *, forwarding: bool = False, now: datetime
) -> JobExplanation:
    """Explain whether a description that was not submitted would find queues."""
    applicant = _unsubmitted(foreseen)
    demand = _explain_at_queues(config, _explain(foreseen), applicant)
    found = _explanation(conn, config, demand, applicant, None, now)
    if foreseen.trouble:
        found.now.insert(0, foreseen.trouble)
    return _with_forwarding(found, config, demand) if forwarding else found


def ranked_queues(
    conn: Connection, config: Configuration, job: Job, *, random: Random, now: datetime
) -> list[RankedQueue]:
    """The queues that a job may run in, ordered by its `Rank`."""
    body = descriptions.read_description(conn, job.job_id).body
    foreseen = _foreseen(config, job, body, now)
    rank = None if foreseen is None else foreseen.description.rank
    return _ranked(config, _demand(conn, config, job, body, now), _applicant(job, body), rank, random)


def ranked_queues_of_foreseen(
    config: Configuration, foreseen: DryRun, *, random: Random
) -> list[RankedQueue]:
    """The same for a description that was not submitted."""
    return _ranked(config, _explain(foreseen), _unsubmitted(foreseen), foreseen.description.rank, random)


def _ranked(
    config: Configuration, demand: JobDemand, applicant: JobView, rank: Expression | None, random: Random
) -> list[RankedQueue]:
    vo = demand.asked.vo
    whole = queue_set.all_queues(config, vo)
    eligible = whole.eligible(_explain_at_queues(config, demand, applicant))
    addresses = (whole.queues[number].address for number in list_positions(eligible))
    ads = ((each, glue.build_ad(config.values(each, vo), each)) for each in addresses)
    return ranking.rank_queues(ads, rank, job_groups.job_ad(applicant), random)


def _explain_at_queues(config: Configuration, demand: JobDemand, applicant: JobView) -> JobDemand:
    """Add the job's attributes if the admission policy of a queue needs them."""
    return (
        replace(demand, job=job_groups.job_ad(applicant)) if admission_cache.is_configured(config) else demand
    )


def _with_forwarding(found: JobExplanation, config: Configuration, demand: JobDemand) -> JobExplanation:
    vo = demand.asked.vo
    splits = decision_split.split_decisions(config, queue_set.all_queues(config, vo), vo, demand)
    return found.model_copy(update={"forwarding": [ForwardingAnswer.from_split(each) for each in splits]})


def _explanation(
    conn: Connection,
    config: Configuration,
    demand: JobDemand,
    applicant: JobView,
    job: Job | None,
    now: datetime,
) -> JobExplanation:
    vo = demand.asked.vo
    whole = queue_set.all_queues(config, vo)
    found = explain(whole, vo, demand)
    situation = JobSituation(
        job=job,
        applicant=applicant,
        demand=demand,
        survey=whole,
        eligible=whole.eligible(demand),
        config=config,
        now=now,
    )
    effort = ExplanationBudget()
    closed = blockers.closed_queues(conn, config, applicant, whole, now)
    better = suggestions.suggest_changes(whole, vo, demand, effort, closed=closed)
    return JobExplanation(
        job_id=job.job_id if job else None,
        status=job.status if job else None,
        eligible_queues=found.eligible_queues,
        candidate_queues=found.candidate_queues,
        reasons=[ReasonAnswer.from_exclusion(each) for each in found.exclusions],
        changes=[ChangeAnswer.from_suggestion(each) for each in better],
        left_out=_count_left_out(found, better, effort),
        now=list_blockers(conn, situation),
    )


def _count_left_out(
    found: Explanation, better: Sequence[SuggestedChange], effort: ExplanationBudget
) -> list[str]:
    """Explain which changes were not tried."""
    helpless = found.candidate_queues and not found.eligible_queues and not better
    return [_NOT_ALL_TRIED] * effort.over + [_TOO_MANY_AT_ONCE] * bool(helpless)


def _applicant(job: Job, body: Mapping[str, object]) -> JobView:
    return JobView(
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


def _unsubmitted(foreseen: DryRun) -> JobView:
    read = foreseen.description
    return JobView(
        job_id=None,
        vo=foreseen.whose.vo,
        owner=foreseen.whose.owner,
        owner_group=foreseen.whose.owner_group,
        job_name=read.job_name,
        job_type=read.job_type,
        job_group=read.job_group,
        priority=read.priority,
        submit_pool=foreseen.requirement_class.submit_pool,
        description=description.stored_body(read),
    )


def _demand(
    conn: Connection, config: Configuration, job: Job, body: Mapping[str, object], now: datetime
) -> JobDemand:
    """The demand used in matching; before the job is in a task queue, that of its description."""
    foreseen = _foreseen(config, job, body, now)
    stored = None if job.task_queue_id is None else listing.read_requirement_class(conn, job.task_queue_id)
    if foreseen is None:
        return JobDemand(asked=stored or RequirementClass(vo=job.vo, cpu_time=0))
    demand = _explain(foreseen)
    return demand if stored is None else replace(demand, asked=stored)


def _foreseen(config: Configuration, job: Job, body: Mapping[str, object], now: datetime) -> DryRun | None:
    """Parse the description with the current options; None: they do not allow it any more."""
    try:
        read = description.parse_description(body, options_for(config, job.vo))
    except InvalidInput:
        return None
    whose = Ownership(vo=job.vo, owner=job.owner, owner_group=job.owner_group)
    return dry_run.dry_run_description(config, whose, read, now=now)


def _explain(foreseen: DryRun) -> JobDemand:
    asked = foreseen.requirement_class
    named: dict[str, Any] = {
        field: frozenset(name for name in getattr(asked, field) if name.lower() != _ANY)
        for field in ("sites", "banned_sites", "grid_ces", "platforms")
    }
    return JobDemand(asked=replace(asked, **named), requirements=foreseen.description.requirements)


def classes(parts: Services, conn: Connection, vos: Collection[str] | None) -> Sequence[WaitingClass]:
    """The classes with waiting jobs of these VOs (None: all); cached for a while if there are very many."""
    question = None if vos is None else frozenset(vos)
    return parts.waiting.get(question, lambda: listing.list_waiting(conn, vos), now=parts.clock())


def explain_queue(parts: Services, caller: Caller, address: QueueAddress) -> QueueExplanation:
    """Report the waiting jobs that a queue may run, what excludes the rest, and which changes would help."""
    config = parts.live.current
    vos = visibility.vos_at(caller, address.site)
    with database.reading(parts.engine) as conn:
        waiting = classes(parts, conn, vos)
        now = list(blockers.list_closures_at_queue(conn, config, address, parts.clock(), vos=vos))
        now += blockers.count_recent_pilots(conn, address, {each.asked.vo for each in waiting}, parts.clock())
        jobs = _jobs(conn, config, [address], waiting)
    found = queue_report.report_queue(config, address, waiting, jobs)
    return QueueExplanation(
        queue=str(address),
        waiting={vo: WorkAnswer.from_work(work) for vo, work in found.waiting.items()},
        serves={vo: WorkAnswer.from_work(work) for vo, work in found.served.items()},
        reasons=[
            ExcludedAnswer.from_excluded(each, readable=caller.may_read(each.vo)) for each in found.excluded
        ],
        changes=[OfferAnswer.from_suggestion(each) for each in found.offers],
        now=now,
    )


def suggest_offers(
    parts: Services, caller: Caller, site: str, queues: Sequence[QueueAddress]
) -> list[tuple[QueueAddress, OfferAnswer]]:
    """Changes that would bring more jobs to some queues of a site."""
    config = parts.live.current
    with database.reading(parts.engine) as conn:
        waiting = classes(parts, conn, visibility.vos_at(caller, site))
        jobs = _jobs(conn, config, queues, waiting)
    found = queue_report.suggest_offers(config, queues, waiting, jobs)
    return [(queue, OfferAnswer.from_suggestion(each)) for queue in queues for each in found.get(queue, ())]


def _jobs(
    conn: Connection,
    config: Configuration,
    queues: Sequence[QueueAddress],
    waiting: Sequence[WaitingClass],
) -> Mapping[int, Mapping[str, Value]]:
    """One job per class, if the admission policy of a queue needs it."""
    vos = {each.asked.vo for each in waiting}
    needs_jobs = any(admission_cache.read_admission(config, queue, vo) for queue in queues for vo in vos)
    return (
        {job.job_id: job_groups.job_ad(job) for job in listing.list_first_jobs(conn, waiting)}
        if needs_jobs
        else {}
    )
