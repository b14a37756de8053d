"""Explanations of jobs (submitted or not) and of queues."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from itertools import starmap
from random import Random
from typing import Final

from sqlalchemy import Connection

from cs_config.cache import Cache, derived
from cs_config.options.operations import options_for
from cs_config.tree import parameters
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.explain import (
    alternatives,
    blockers,
    closed_places,
    eligible_queues,
    explanation,
    headline,
    job_conditions,
    pilot_supply,
    queue_report,
    queue_set,
    unseen_hardware,
    waiting_reason,
    work_budget,
)
from matcher.explain.blockers import HoldingText, JobSituation, list_blockers
from matcher.explain.eligible_queues import RankedQueue
from matcher.explain.explanation import SuggestedChange, explain
from matcher.explain.job_conditions import JobAds, JobDemand
from matcher.explain.queue_report import ExcludedWork, QueueSuggestion
from matcher.explain.queue_set import QueueSet
from matcher.explain.work_budget import WorkBudget
from matcher.forecast import end_forecast, start_forecast
from matcher.forecast.start_forecast import StartForecast
from matcher.limits import advertised_values, job_groups
from matcher.limits.job_groups import JobView
from optimizers.description import description
from optimizers.description.document import is_like_document
from optimizers.submit import checking
from optimizers.submit.checking import CheckedJobs, DryRun
from optimizers.submit.editing import EditedJobs
from optimizers.submit.submission import Accepted, AcceptedClass, identify
from optimizers.submit.submitter import Ownership
from pilotage.service.auth import visibility
from pilotage.service.auth.callers import Caller
from pilotage.service.models.explain import (
    ChangeAnswer,
    EndAnswer,
    ForwardingAnswer,
    GroupQuery,
    JobExplanation,
    QueueExplanation,
    StartAnswer,
)
from pilotage.service.models.jobs import JobFilter
from pilotage.service.services import Services
from requirements import canonical, versions
from requirements.bitset import list_positions
from requirements.canonical import Requirements
from requirements.classad.expression import Expression
from requirements.diracx import specification
from requirements.errors import InvalidInput, format_count, shorten
from requirements.job_fields import JOB_GROUP
from requirements.record import Record
from requirements.requirement_class import RequirementClass
from requirements.states import JobStatus
from requirements.values import LOSING_ZEROS, advise_quotes, fold
from taskqueue.db import database
from taskqueue.jobs import descriptions
from taskqueue.jobs import jobs as stored_jobs
from taskqueue.jobs.jobs import Job
from taskqueue.past_forecasts import StartInterval
from taskqueue.pools import listing as pools_listing
from taskqueue.pools import mapping
from taskqueue.task_queues import listing
from taskqueue.task_queues.listing import WaitingClass

_NOT_ALL_TRIED = "its Requirements are long: not every change of them was tried, another may help more"
_TOO_MANY_AT_ONCE = f"changes of more than {explanation.TOGETHER} requirements at once; none of fewer helps"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuestion:
    """A job, submitted or not, with what its explanation starts from."""

    applicant: JobView
    demand: JobDemand
    rank: Expression | None
    job: Job | None = None  #: None: not submitted
    trouble: str | None = None  #: why the optimizers would not let it wait


def ask_about_job(conn: Connection, config: Configuration, job: Job, *, now: datetime) -> JobQuestion:
    """Read a submitted job.

    Its demand is the one used in matching: its task queue's and its pool's. Before it has these, the demand
    is that of its description with the current options.
    """
    body = descriptions.read_description(conn, job.job_id).body
    stored = None if job.task_queue_id is None else listing.read_requirement_class(conn, job.task_queue_id)
    try:
        read = description.parse_description(body, options_for(config, job.vo), is_accepted=True)
    except InvalidInput:
        rank, demand = None, JobDemand(asked=RequirementClass(vo=job.vo, cpu_time=0))
    else:
        whose = Ownership(vo=job.vo, owner=job.owner, owner_group=job.owner_group)
        demand = _demand(checking.dry_run_description(config, whose, read, now=now))
        rank = read.rank
    if stored is not None:
        requirements = _read_requirements(conn, stored.submit_pool) or demand.requirements
        demand = JobDemand(asked=stored, requirements=requirements)
    applicant = JobView(
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
        cores=demand.asked.processors_min,
    )
    return JobQuestion(applicant=applicant, demand=_with_job(config, demand, applicant), rank=rank, job=job)


def _read_requirements(conn: Connection, pool_id: str | None) -> Requirements | None:
    """The requirements of a pool; None: no pool, or it was removed, because no job waits for it any more."""
    originals = mapping.read_originals(conn, [pool_id]) if pool_id else {}
    return canonical.from_json(originals[pool_id]) if pool_id and pool_id in originals else None


def ask_about_dry_run(config: Configuration, foreseen: DryRun) -> JobQuestion:
    """The same for a description that was not submitted."""
    read, whose = foreseen.description, foreseen.whose
    applicant = JobView(
        job_id=None,
        **asdict(whose),
        job_name=read.job_name,
        job_type=read.job_type,
        job_group=read.job_group,
        priority=read.priority,
        submit_pool=foreseen.requirement_class.submit_pool,
        description=description.stored_body(read),
        cores=foreseen.requirement_class.processors_min,
    )
    demand = _with_job(config, _demand(foreseen), applicant)
    return JobQuestion(applicant=applicant, demand=demand, rank=read.rank, trouble=foreseen.trouble)


def rank_queues(
    conn: Connection, config: Configuration, question: JobQuestion, random: Random, *, now: datetime
) -> list[RankedQueue]:
    """The queues that the job may run in, ordered by its `Rank`."""
    vo = question.demand.asked.vo
    whole = queue_set.all_queues(config, vo)
    addresses = [whole.queues[number].address for number in list_positions(whole.eligible(question.demand))]
    ads = advertised_values.read_ads(conn, config, addresses, vo, now)
    return eligible_queues.rank_queues(
        ads.items(), question.rank, job_groups.job_ad(question.applicant, config), random
    )


def explain_job(
    conn: Connection, config: Configuration, question: JobQuestion, *, forwarding: bool = False, now: datetime
) -> JobExplanation:
    """Explain why a job runs or does not; with `forwarding` also where each requirement is decided."""
    job, demand, vo = question.job, question.demand, question.demand.asked.vo
    whole = queue_set.all_queues(config, vo)
    found = explain(whole, vo, demand)
    situation = JobSituation(
        job=job,
        job_view=question.applicant,
        demand=demand,
        survey=whole,
        eligible=whole.eligible(demand),
        config=config,
        now=now,
    )
    effort = WorkBudget()
    closed = blockers.closed_queues(conn, config, question.applicant, demand.asked, whole, now)
    better = explanation.suggest_changes(whole, vo, demand, effort, closed=closed)
    helpless = found.candidate_queues and not found.eligible_queues and not better
    splits = eligible_queues.split_decisions(config, whole, vo, demand) if forwarding else None
    obstacles = [
        *([HoldingText(question.trouble)] if question.trouble else []),
        *list_blockers(conn, situation),
    ]
    open_queues = (situation.eligible & ~closed).bit_count()
    first = headline.summarize(
        job.status if job else None,
        eligible=found.eligible_queues,
        open_=open_queues,
        candidates=found.candidate_queues,
        obstacles=obstacles,
    )
    return JobExplanation(
        job_id=job.job_id if job else None,
        status=job.status if job else None,
        headline=first.text,
        is_held=first.is_held,
        eligible_queues=found.eligible_queues,
        open_queues=open_queues,
        candidate_queues=found.candidate_queues,
        sites=_list_sites(config, situation),
        reasons=found.exclusions,
        changes=[_describe_change(each, demand) for each in better],
        left_out=[_NOT_ALL_TRIED] * effort.over + [_TOO_MANY_AT_ONCE] * bool(helpless),
        now=obstacles,
        start=_forecast_asked(conn, config, question, now) if situation.eligible else None,
        forwarding=None if splits is None else [ForwardingAnswer.model_validate(each) for each in splits],
    )


def _forecast_asked(
    conn: Connection, config: Configuration, question: JobQuestion, now: datetime
) -> StartAnswer | None:
    """The forecast of a job, submitted or not; None: it does not, or would not, wait."""
    if question.job is None:
        if question.trouble:
            return None
        found = start_forecast.forecast_start_of_new(
            conn, config, question.demand, question.applicant, now=now
        )
        return _describe_start(found, now)
    is_waiting = question.job.status is JobStatus.WAITING
    return forecast_start(conn, config, question.job, now=now) if is_waiting else None


def forecast_start(conn: Connection, config: Configuration, job: Job, *, now: datetime) -> StartAnswer:
    """Forecast the start of a job."""
    if job.status is not JobStatus.WAITING or job.task_queue_id is None:
        found = start_forecast.refuse(f"it is {job.status}")
    else:
        found = start_forecast.forecast_start(
            conn, config, job_id=job.job_id, task_queue_id=job.task_queue_id, now=now
        )
    return _describe_start(found, now)


def forecast_end(parts: Services, caller: Caller, group: GroupQuery) -> EndAnswer:
    """Forecast when those jobs of a group are done that the caller may list."""
    given = {"vo": group.vo and [group.vo], "owner": group.owner}
    wanted = JobFilter.model_validate({name: value for name, value in given.items() if value})
    now = parts.clock()
    which = visibility.visible_jobs(caller, wanted, now=now).where(JOB_GROUP, {group.job_group})
    with database.reading(parts.engine) as conn:
        found = end_forecast.forecast_end(conn, parts.live.current, which, now=now)
    earliest, latest = _find_times(found.end, now)
    return EndAnswer(
        waiting=found.waiting,
        last_start=None if found.start is None else _describe_start(found.start, now),
        earliest=earliest,
        latest=latest,
        run_time=found.run_time,
        done=found.done,
        text=found.text,
    )


def _describe_start(found: StartForecast, now: datetime) -> StartAnswer:
    earliest, latest = _find_times(found.interval, now)
    return StartAnswer(
        earliest=earliest,
        latest=latest,
        held=found.record.held,
        of=found.record.of,
        text=found.text,
    )


def _find_times(interval: StartInterval | None, now: datetime) -> tuple[datetime | None, datetime | None]:
    """The begin and the end of an interval; None: there is none."""
    ends = (interval.least, interval.most) if interval else (None, None)
    earliest, latest = (None if each is None else now + timedelta(seconds=each) for each in ends)
    return earliest, latest


def _describe_change(change: SuggestedChange, demand: JobDemand) -> ChangeAnswer:
    values = {} if change.demand is None else alternatives.list_values(demand, change.demand)
    return ChangeAnswer.model_validate(change).model_copy(update={"set": values})


def _list_sites(config: Configuration, situation: JobSituation) -> list[str] | None:
    """The sites of the eligible queues, where `NarrowSites` is on."""
    if not options_for(config, situation.demand.asked.vo).job_scheduling.narrow_sites:
        return None
    addresses = situation.survey.addresses(situation.eligible)
    return sorted({each.site for each in addresses})


def _with_job(config: Configuration, demand: JobDemand, applicant: JobView) -> JobDemand:
    """Add the job's attributes if the admission policy of a queue needs them."""
    return replace(demand, job=job_groups.job_ad(applicant, config)) if config.has_admission else demand


def _demand(foreseen: DryRun) -> JobDemand:
    return JobDemand.from_stated(foreseen.requirement_class, foreseen.description.requirements)


#: Warnings of one kind in an answer.
_MOST_WARNINGS = 3
#: Classes of one submission that are looked at for queues.
_MOST_CLASSES = 20
#: Different new descriptions of changed jobs that are looked at.
MOST_FORESEEN: Final = 100


#: Demands of which it is known whether a queue is eligible, about 300 bytes each.
_MOST_DEMANDS = 1000


@derived
def _served_demands(_: Configuration) -> Cache[str, bool]:
    """Whether some queue is eligible, by demand."""
    return Cache(_MOST_DEMANDS)


def _measure_advice(key: tuple[str, int, str], text: str) -> int:
    demand, closed, off = key
    return 500 + len(demand) + closed.bit_length() // 8 + len(off) + len(text)


@derived
def _advice(_: Configuration) -> Cache[tuple[str, int, str], str]:
    """Why no queue is eligible, and the smallest change that would help.

    By demand, closed queues, and where queues that fit are switched off.
    """
    return Cache(1000, measure=_measure_advice, most=1 << 20)


#: Seconds for which the versions of waiting pools stay known.
_KEPT = 60
#: Pools of a VO whose expressions are searched for versions.
_MOST_EXPRESSIONS = 1000


def warn_of_jobs(parts: Services, accepted: Accepted) -> list[str]:
    """Warnings of the jobs of a submission, which are stored."""
    return [
        *_warn_of_unquoted_versions(parts, accepted.asked),
        *_warn_of_records_like_documents(accepted.asked),
        *_warn_of_unknown_tags(parts, accepted.tags),
        *take_warnings(starmap(_warn_of_misplaced_file, accepted.misplaced)),
        *_warn_of_stuck_jobs(parts, accepted.classes[:_MOST_CLASSES]),
        *_warn_of_closed_places(
            parts, [each.asked for each in accepted.classes if each.asked.sites or each.asked.grid_ces]
        ),
        *_warn_of_unseen_hardware(parts, accepted.classes),
    ]


def take_warnings(texts: Iterable[str]) -> list[str]:
    """The first few different warnings; no more are computed, for there may be very many."""
    found: dict[str, None] = {}
    for text in texts:
        found[text] = None
        if len(found) == _MOST_WARNINGS:
            break
    return list(found)


def _warn_of_records_like_documents(asked: Sequence[tuple[str, Requirements]]) -> list[str]:
    """Warnings of `requirements` with names of a document alone: without a section they are none."""
    return take_warnings(
        f"Requirements: {', '.join(names)} without a section such as cpu: read as values that a queue has to"
        " state, not as a document of DiracX's match-making specification"
        for _, each in asked
        if isinstance(each, Record)
        and (names := [name for name, _ in each.values])
        and is_like_document(names)
    )


def _warn_of_misplaced_file(keyword: str, name: str) -> str:
    effect = "it is never sent back" if keyword == "OutputSandbox" else "pilots end such jobs as Failed"
    return f"{keyword}: {name!r:.200} is no name below the work directory of the job: {effect}"


def _warn_of_unknown_tags(parts: Services, expressions: Sequence[tuple[str, str]]) -> list[str]:
    """Warnings of tags with a reserved prefix and another word, which pilots hardly offer."""
    config = parts.live.current

    def warn() -> list[str]:
        wrong = (
            f"{tag}: unknown word of a reserved prefix{f', did you mean {meant}?' if meant else ''}"
            for vo, expression in expressions
            for tag, meant in specification.list_unknown_tags(
                expression, options_for(config, vo).job_description.known_tags
            )
        )
        return take_warnings(wrong)

    return parts.advisor.find("warn of unknown tags of submitted jobs", warn) if expressions else []


def _warn_of_unquoted_versions(parts: Services, asked: Sequence[tuple[str, Requirements]]) -> list[str]:
    """Warnings of real numbers where a version is meant, or may be: one with a last zero."""
    if not any(versions.may_have_reals(each) for _, each in asked):
        return []

    def warn() -> list[str]:
        found = dict.fromkeys((vo, real) for vo, each in asked for real in versions.find_reals(each))
        own = frozenset(name for _, each in asked for name in versions.compared_names(each))
        advised = ((name, _advise_on_version(parts, vo, name, real, own)) for vo, (name, real) in found)
        return take_warnings(f"Requirements/{name}: {advice}" for name, advice in advised if advice)

    return parts.advisor.find("warn of unquoted versions in submitted jobs", warn)


def _advise_on_version(
    parts: Services, vo: str, name: str, real: str | float, compared: frozenset[str]
) -> str | None:
    """What to write for a real number that is compared with a parameter; None: it is no version."""
    folded = fold(name)
    if parameters.is_like_version(folded) or folded in compared | _list_versions(parts, vo):
        advice = advise_quotes(real)
        return f'{advice}: "{real}"' if isinstance(real, str) else f"{advice}, with all their digits"
    if not isinstance(real, str) or not LOSING_ZEROS.fullmatch(real) or parameters.is_measure(folded):
        return None
    is_declared = options_for(parts.live.current, vo).job_description.declarations.get(name) is not None
    return None if is_declared else versions.advise_zeros(real)


def _list_versions(parts: Services, vo: str) -> frozenset[str]:
    """The folded names of parameters that waiting jobs of a VO compare as versions."""

    def read() -> frozenset[str]:
        with database.reading(parts.engine) as conn:
            texts = pools_listing.list_waiting_expressions(conn, vo, word="version", most=_MOST_EXPRESSIONS)
        return frozenset().union(*(versions.compared_names(canonical.from_json(each)) for each in texts))

    return parts.versions.get(vo, read, int(parts.clock().timestamp()) // _KEPT)


def _warn_of_closed_places(parts: Services, classes: Sequence[RequirementClass]) -> list[str]:
    """Warnings of sites and CEs that jobs name, and that take none of them now."""
    config = parts.live.current

    def warn() -> list[str]:
        with database.reading(parts.engine) as conn:
            texts = (
                text
                for asked in classes
                for text in closed_places.list_named(conn, config, asked, parts.clock())
            )
            return take_warnings(texts)

    return parts.advisor.find("warn of closed places of submitted jobs", warn) if classes else []


def _warn_of_unseen_hardware(parts: Services, classes: Sequence[AcceptedClass]) -> list[str]:
    """Warnings of hardware that no pilot of an eligible site had lately, where the VO wants them."""
    config = parts.live.current
    demands = [
        JobDemand(asked=each.asked, requirements=each.requirements)
        for each in classes
        if options_for(config, each.asked.vo).job_scheduling.unseen_hardware_days
    ]

    def warn() -> list[str]:
        with database.reading(parts.engine) as conn:
            return take_warnings(unseen_hardware.list_warnings(conn, config, demands, parts.clock()))

    return parts.advisor.find("warn of hardware that no pilot had", warn) if demands else []


def _warn_of_stuck_jobs(parts: Services, classes: Sequence[AcceptedClass]) -> list[str]:
    """Warnings of stored jobs that no queue is eligible for.

    Of demands that are known to have a queue nothing is read; most submissions demand what others did.
    """
    config = parts.live.current

    def describe(found: AcceptedClass) -> str:
        def read(conn: Connection) -> JobQuestion:
            return ask_about_job(conn, config, stored_jobs.get_job(conn, found.first_job), now=parts.clock())

        demand = JobDemand(asked=found.asked, requirements=found.requirements)
        return _find_stuck(parts, config, demand, read)

    def warn() -> list[str]:
        return take_warnings(
            f"{_name_jobs(each.first_job, each.jobs)}: {why}" for each in classes if (why := describe(each))
        )

    if not config.has_admission and all(_is_served(config, each) for each in classes):
        return []
    return parts.advisor.find("warn of submitted jobs without an eligible queue", warn)


def _is_served(config: Configuration, found: AcceptedClass) -> bool:
    return _served_demands(config).find(found.identity) is True


def _name_jobs(first: int, number: int, *, is_least: bool = False) -> str:
    if number == 1:
        return f"job {first}"
    others = f"{number - 1:,} or more others" if is_least else format_count(number - 1, "other")
    return f"job {first} and {others}"


def warn_of_changed_jobs(parts: Services, changed: Sequence[EditedJobs]) -> list[str]:
    """Warnings of jobs that no queue is eligible for with other values, or that the optimizers would hold."""
    config, now = parts.live.current, parts.clock()

    def describe(checked: CheckedJobs) -> Iterator[str]:
        submitted = checked.submitted
        foreseen = checking.dry_run_description(config, submitted.whose, submitted.members[0].whole, now=now)
        question = ask_about_dry_run(config, foreseen)
        if question.trouble:
            yield question.trouble
        if why := _find_stuck(parts, config, question.demand, lambda _: question):
            yield why

    def warn() -> list[str]:
        jobs: defaultdict[str, int] = defaultdict(int)
        first: dict[str, int] = {}
        for each in changed:
            for text in describe(each.checked):
                first.setdefault(text, each.first_job)
                jobs[text] += each.jobs
        is_cut = len(changed) >= MOST_FORESEEN
        return take_warnings(
            f"{_name_jobs(first[text], number, is_least=is_cut)}: with these values {text}"
            for text, number in jobs.items()
        )

    return parts.advisor.find("warn of changed jobs without an eligible queue", warn) if changed else []


def _find_stuck(
    parts: Services,
    config: Configuration,
    demand: JobDemand,
    read: Callable[[Connection], JobQuestion],
) -> str:
    """Why no queue is eligible, and what would help; empty: some queue is.

    Kept by demand, unless queues have conditions on jobs themselves; what would help depends on the queues
    that are closed now, too. `read` reads a job that demands it.
    """
    whole = queue_set.all_queues(config, demand.asked.vo)
    identity = identify(demand.asked, demand.requirements)
    is_kept = not config.has_admission
    if is_kept and _served_demands(config).get(identity, lambda: whole.eligible(demand) != 0):
        return ""
    with database.reading(parts.engine) as conn:
        question = read(conn)
        asked = question.demand.asked
        closed = blockers.closed_queues(conn, config, question.applicant, asked, whole, parts.clock())
        off_queues = closed_places.find_switched_off(whole, question.demand)
        off = closed_places.describe_switched_off(conn, config, whole, asked.vo, off_queues)

    def describe() -> str:
        return _describe_stuck(whole, question.demand, closed, off)

    return _advice(config).get((identity, closed, off), describe) if is_kept else describe()


def _describe_stuck(whole: QueueSet, demand: JobDemand, closed: int, off: str) -> str:
    if whole.eligible(demand):
        return ""
    why = waiting_reason.describe_stuck(whole, demand, off)
    for first in explanation.suggest_changes(whole, demand.asked.vo, demand, closed=closed)[:1]:
        change = shorten(first.text, most=waiting_reason.MOST_TOLD)
        return f"{why}; what would help: {change} ({format_count(first.gains, 'queue')})"
    return why


def classes(parts: Services, conn: Connection, vos: Collection[str] | None) -> Sequence[WaitingClass]:
    """The classes with waiting jobs of these VOs (None: all); cached for a while if there are very many."""
    question = None if vos is None else frozenset(vos)
    return parts.waiting.get(question, lambda: listing.list_waiting(conn, vos), now=parts.clock())


def explain_queue(parts: Services, caller: Caller, address: QueueAddress) -> QueueExplanation:
    """Report the waiting jobs that a queue may run, what excludes the rest, and which changes would help."""
    config = parts.live.current
    vos = visibility.vos_at(caller, address.site)
    with parts.replica.reading() as conn:
        waiting = classes(parts, conn, vos)
        now = list(blockers.list_closures_at_queue(conn, config, address, parts.clock(), vos=vos))
        now += blockers.count_recent_pilots(conn, address, {each.asked.vo for each in waiting}, parts.clock())
        for vo in sorted({each.asked.vo for each in waiting}):
            if config.usable(address, vo):
                now += pilot_supply.list_obstacles(
                    conn, vo, [address.site], lambda queue: queue == str(address), parts.clock()
                )
        split = work_budget.choose_classes(waiting)
        jobs = _read_job_ads(conn, config, [address], split.chosen)
    found = queue_report.report_queue(config, address, split.chosen, jobs)
    return QueueExplanation(
        queue=address,
        waiting=queue_report.sum_work(waiting),
        left_out=queue_report.sum_work(split.left),
        serves=found.served,
        reasons=[_hide_job(each, caller) for each in found.excluded],
        changes=found.offers,
        now=now,
    )


def _hide_job(excluded: ExcludedWork, caller: Caller) -> ExcludedWork:
    """Without the id of a job that the caller may not read about."""
    if caller.may_read(excluded.example.vo):
        return excluded
    return replace(excluded, example=replace(excluded.example, job_id=None))


def suggest_offers(
    parts: Services, caller: Caller, site: str, queues: Sequence[QueueAddress]
) -> tuple[list[tuple[QueueAddress, QueueSuggestion]], int]:
    """Changes that would bring more jobs to some queues of a site, and the number of classes left out."""
    config = parts.live.current
    with parts.replica.reading() as conn:
        waiting = classes(parts, conn, visibility.vos_at(caller, site))
        split = work_budget.choose_classes(waiting, queues=len(queues))
        jobs = _read_job_ads(conn, config, queues, split.chosen)
    found = queue_report.suggest_offers(config, queues, split.chosen, jobs)
    return [(queue, each) for queue in queues for each in found.get(queue, ())], len(split.left)


def _read_job_ads(
    conn: Connection, config: Configuration, queues: Sequence[QueueAddress], waiting: Sequence[WaitingClass]
) -> JobAds:
    vos = {each.asked.vo for each in waiting}
    needed = any(config.admission(queue, vo) for queue in queues for vo in vos)
    return job_conditions.read_job_ads(conn, config, waiting, needed=needed)
