"""Shares in force, and which of two jobs comes first."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from math import fsum

from pydantic import BaseModel, Field
from sqlalchemy import Connection

from agents.effective_shares import CountedUsage, EffectiveShares
from cs_config.options.operations import options_for
from cs_config.options.options import Measure
from cs_config.tree.configuration import Configuration
from matcher.explain import blockers, closed_places, precedence, queue_set, stuck_classes
from matcher.explain.precedence import Contender, DecidingRule, OpenQueues, Precedence, WeightStep
from pilotage.service.auth import visibility
from pilotage.service.auth.callers import Caller
from pilotage.service.models import AnswerModel
from pilotage.service.queries import explanations
from pilotage.service.services import Services
from requirements.errors import InvalidRequest, Problem
from requirements.states import FINAL, HELD, JobStatus
from taskqueue.jobs import jobs
from taskqueue.jobs.jobs import Job
from taskqueue.task_queues import priorities, task_queues
from taskqueue.task_queues.priorities import WeightedTaskQueue
from taskqueue.task_queues.shares import ShareHolder, ShareSplit

_HOUR = 3600.0


class UsageAnswer(BaseModel):
    """Use that corrects a share."""

    amount: float = Field(description="Core hours of jobs, or jobs; with its decay.")
    measure: str = Field(description="WallTime: core hours; Jobs: jobs.")
    time_span: float = Field(description="Seconds until now that count.")
    half_life: float | None = Field(description="Seconds after which use counts half; null: no decay.")


class HolderAnswer(BaseModel):
    """The share of a group, or of an owner in it, that has waiting jobs."""

    owner_group: str
    owner: str | None = Field(description="Null: the group as a whole.")
    is_own: bool = Field(description="Whether it is the caller's own.")
    waiting: int = Field(description="Waiting jobs.")
    stuck: int = Field(
        description="Of these, jobs that no queue is eligible for: they are never drawn, though they take a "
        "part of the shares of their owner and group while they wait."
    )
    configured: float = Field(
        description="`JobShare` of the group; of an owner the part among those who have waiting jobs."
    )
    used: list[UsageAnswer] = Field(description="Use by which shares are corrected; empty: they are not.")
    share: float = Field(description="The share in force, corrected by use.")
    part: float = Field(
        description="Of the VO's matches by pilots that can run everything but stuck jobs, from 0 to 1."
    )
    place: int = Field(description="By `share`, among the groups, or among all owners of the VO; from 1.")


class SharesAnswer(BaseModel):
    """The shares of a VO, groups first, the largest first."""

    vo: str
    is_corrected: bool = Field(description="Whether use corrects them (`EnableSharesCorrection`).")
    shares: list[HolderAnswer]


class StepAnswer(AnswerModel):
    """A share that is left after a step from groups to weights, of both jobs."""

    what: str
    first: float
    second: float


class PrecedenceAnswer(BaseModel):
    """Which of two jobs comes first, and why."""

    first: int = Field(description="The job that was said to come first.")
    second: int
    headline: str = Field(description="The answer in one sentence.")
    decided_by: DecidingRule
    chance: float | None = Field(
        description="That `first` comes before `second` for a pilot that can run both; 1 or 0: always or "
        "never; null: they do not compete, or are of two VOs, which take turns."
    )
    queues: list[int] = Field(description="Numbers of eligible queues: of `first`, `second` and both.")
    weights: list[float] = Field(description="Weights of their task queues, as matchers have them.")
    steps: list[StepAnswer] = Field(
        description="How the weights come about, from the shares of groups; empty: other rules decide."
    )


def list_shares(parts: Services, caller: Caller, vo: str) -> SharesAnswer:
    """The shares of a VO whose data the caller may read; owners only where it may see their names."""
    config, now = parts.live.current, parts.clock()
    effective = EffectiveShares(config=config, vo=vo, history=parts.usage)
    with parts.replica.reading() as conn:
        waiting = priorities.list_weighted(conn, vo, parts.families, priorities.count_jobs(conn, vo))
        split = effective.split(conn, [each.demand for each in waiting], now=now)
        usage = effective.list_usage(conn, now=now)
        stuck = stuck_classes.find_task_queues(conn, config, vo)
    stuck_work = [each for each in waiting if each.demand.task_queue_id in stuck]
    jobs_of, stuck_of = _count_jobs(waiting), _count_jobs(stuck_work)
    parts_of = _compute_parts(split, [each for each in waiting if each.demand.task_queue_id not in stuck])
    rows = [
        HolderAnswer(
            owner_group=who.owner_group,
            owner=who.owner,
            is_own=who.owner is not None and who.owner == caller.user,
            waiting=jobs_of[who],
            stuck=stuck_of[who],
            configured=configured,
            used=list(_list_usage(usage, who)),
            share=share,
            part=parts_of.get(who, 0.0),
            place=place,
        )
        for who, configured, share, place in (*_rank_groups(split), *_rank_owners(split))
        if who.owner is None or visibility.may_see_names_of(caller, vo=vo, owner=who.owner, site="")
    ]
    is_corrected = bool(options_for(config, vo).job_scheduling.corrections)
    return SharesAnswer(vo=vo, is_corrected=is_corrected, shares=rows)


_Ranked = tuple[ShareHolder, float, float, int]


def _rank_groups(split: ShareSplit) -> Iterator[_Ranked]:
    yield from _rank(split.stated, split.of_groups)


def _rank_owners(split: ShareSplit) -> Iterator[_Ranked]:
    for who, *values in _rank(split.even, split.of_holders):
        if who.owner is not None:
            yield who, *values  # type: ignore[misc]  # of the types of _Ranked


def _rank(configured: Mapping[ShareHolder, float], shares: Mapping[ShareHolder, float]) -> Iterator[_Ranked]:
    ordered = sorted(shares, key=lambda who: (-shares[who], who.owner_group, who.owner or ""))
    for place, who in enumerate(ordered, start=1):
        yield who, configured[who], shares[who], place


def _count_jobs(waiting: Sequence[WeightedTaskQueue]) -> Counter[ShareHolder]:
    """Waiting jobs of each group and owner."""
    found: Counter[ShareHolder] = Counter()
    for each in waiting:
        demand = each.demand
        found[ShareHolder(demand.vo, demand.owner_group)] += each.jobs
        found[ShareHolder(demand.vo, demand.owner_group, demand.owner)] += each.jobs
    return found


def _compute_parts(split: ShareSplit, drawn: Sequence[WeightedTaskQueue]) -> Mapping[ShareHolder, float]:
    """The parts of all draws of groups and owners whose task queues can be drawn; a family has one weight."""
    families: dict[tuple[ShareHolder, Hashable], float] = {}
    for each in drawn:
        demand = each.demand
        owner = ShareHolder(demand.vo, demand.owner_group, demand.owner)
        families[owner, demand.family] = split.weights[demand.task_queue_id]
    weights: defaultdict[ShareHolder, float] = defaultdict(float)
    for (owner, _), weight in families.items():
        for who in (owner, replace(owner, owner=None)):
            weights[who] += weight
    total = fsum(families.values())
    return {who: weight / total for who, weight in weights.items()}


def _list_usage(usage: Sequence[CountedUsage], who: ShareHolder) -> Iterator[UsageAnswer]:
    """The use of a holder that its share is corrected by: of a group among groups, else among its owners."""
    level = None if who.owner is None else who.owner_group
    for each in usage:
        if each.correction.group == level:
            unit = _HOUR if each.correction.measure is Measure.WALL_TIME else 1.0
            yield UsageAnswer(
                amount=each.used.get(who, 0.0) / unit,
                measure=each.correction.measure,
                time_span=each.part.span,
                half_life=each.part.half_life,
            )


def compare_jobs(parts: Services, caller: Caller, first_id: int, second_id: int) -> PrecedenceAnswer:
    """Which of two jobs comes first; `JobNotFound` unless the caller may read the data of their VOs."""
    if first_id == second_id:
        message = f"{second_id} is the first job, too: give two different jobs"
        raise InvalidRequest([Problem(path="second", message=message)])
    config, now = parts.live.current, parts.clock()
    with parts.replica.reading(first_id, second_id) as conn:
        pair = [
            visibility.require_readable(caller, jobs.get_job(conn, each)) for each in (first_id, second_id)
        ]
        contenders = _read_contenders(conn, pair)
        if len(contenders) < len(pair):
            return _answer(pair, [], Precedence(DecidingRule.STATUS, None), _describe_status(pair))
        one, other = contenders
        open_queues = [_find_queues(conn, config, each, now) for each in pair]
        tiers = options_for(config, pair[0].vo).job_scheduling.job_priorities
        found = precedence.find_obstacle(*open_queues) or precedence.decide(one, other, tiers)
        steps = _list_steps(conn, parts, one, other, now) if found.rule is DecidingRule.WEIGHT else []
    sets = [each.eligible for each in open_queues]
    return _answer(
        pair,
        contenders,
        found,
        _name_matched(pair) + precedence.describe(one, other, found, tiers=tiers, steps=steps),
        queues=[each.bit_count() for each in (*sets, sets[0] & sets[1])],
        steps=[StepAnswer.model_validate(each) for each in steps],
    )


def _answer(
    pair: Sequence[Job],
    contenders: Sequence[Contender],
    found: Precedence,
    headline: str,
    *,
    queues: Sequence[int] = (),
    steps: Sequence[StepAnswer] = (),
) -> PrecedenceAnswer:
    return PrecedenceAnswer(
        first=pair[0].job_id,
        second=pair[1].job_id,
        headline=headline,
        decided_by=found.rule,
        chance=found.chance,
        queues=list(queues),
        weights=[each.task_queue.priority for each in contenders],
        steps=list(steps),
    )


def _read_contenders(conn: Connection, pair: Sequence[Job]) -> list[Contender]:
    """The jobs with their task queues; those that have none, or ended, are left out."""
    found = task_queues.read_task_queues(conn, {each.task_queue_id for each in pair if each.task_queue_id})
    return [
        Contender(job_id=each.job_id, priority=each.priority, task_queue=task_queue)
        for each in pair
        if each.status not in FINAL and (task_queue := found.get(each.task_queue_id or 0)) is not None
    ]


def _find_queues(conn: Connection, config: Configuration, job: Job, now: datetime) -> OpenQueues:
    question = explanations.ask_about_job(conn, config, job, now=now)
    asked, whole = question.demand.asked, queue_set.all_queues(config, job.vo)
    closed = 0
    if job.status is JobStatus.WAITING:
        closed = blockers.closed_queues(conn, config, question.applicant, asked, whole, now)
    off = closed_places.find_switched_off(whole, question.demand)
    return OpenQueues(whole.eligible(question.demand), closed, off)


def _list_steps(
    conn: Connection, parts: Services, one: Contender, other: Contender, now: datetime
) -> Sequence[WeightStep]:
    vo = one.task_queue.vo
    waiting = priorities.list_weighted(conn, vo, parts.families, priorities.count_jobs(conn, vo))
    effective = EffectiveShares(config=parts.live.current, vo=vo, history=parts.usage)
    split = effective.split(conn, [each.demand for each in waiting], now=now)
    return precedence.list_steps(split, one.task_queue, other.task_queue)


def _describe_status(pair: Sequence[Job]) -> str:
    states = ", ".join(f"job {each.job_id} is {each.status}" for each in pair)
    return f"they do not compete: {states}; only jobs with a task queue do"


def _name_matched(pair: Sequence[Job]) -> str:
    """That jobs have been matched already, if they have."""
    matched = [f"job {each.job_id} is {each.status} at {each.site}" for each in pair if each.status in HELD]
    return f"{' and '.join(matched)} already; of jobs like them that wait: " if matched else ""
