"""The eligible queues of jobs: in the order to serve them, and by where their requirements are decided.

The job's `Rank` is evaluated over the queue's ad; without one, the queue's own `Rank` over itself and the
job. The highest comes first; what is not a number (undefined, an error) last; equal ranks are shuffled.
Source: gLite's and HTCondor's matchmaking.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from random import Random
from typing import Annotated

from pydantic import Field
from sqlalchemy import Connection

from cs_config.classes.queue_classes import QueueClass, find_class
from cs_config.tree import admission
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.class_flags import ClassFlags, has_needs
from matcher.explain.job_conditions import JobDemand
from matcher.explain.queue_set import QueueSet
from matcher.limits import advertised_values, job_groups
from requirements.classad import evaluation
from requirements.classad.expression import Expression
from requirements.nodes import forwarding
from requirements.nodes.forwarding import NO_REQUIREMENTS, Forwarding
from requirements.record import Declarations
from requirements.values import Value, fold, lookup
from taskqueue.task_queues import listing
from taskqueue.task_queues import task_queues as task_queue_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedQueue:
    """A queue with its rank."""

    queue: QueueAddress
    rank: Annotated[
        float | None, Field(description="Rank by the job's `Rank`, else by the queue's; null: not a number.")
    ]


def rank_queues(
    queues: Iterable[tuple[QueueAddress, Mapping[str, Value]]],
    rank: Expression | None,
    job: Mapping[str, Value],
    random: Random,
) -> list[RankedQueue]:
    """The queues, the highest rank first.

    `job` holds the job's attributes by folded name, for the queues' own `Rank`; `random` orders equal ranks.
    """
    found = [
        RankedQueue(
            queue=queue, rank=rank_queue(ad, job) if rank is None else evaluation.number(rank.text, ad)
        )
        for queue, ad in queues
    ]
    random.shuffle(found)
    return sorted(found, key=lambda each: -math.inf if each.rank is None else each.rank, reverse=True)


def rank_queue(ad: Mapping[str, Value], job: Mapping[str, Value]) -> float | None:
    """The rank of a queue by its own `Rank`, for a job without one."""
    own = {fold(name): value for name, value in ad.items()}
    stated = own.get(admission.RANK)
    value = None if stated is None else admission.read_expression(stated, "Rank").value(own, job)
    return evaluation.as_rank(value)


#: `Rank` expressions of jobs that are evaluated for one request of a director; the most frequent ones.
_MOST_RANKS = 1000


class DemandRanks:
    """The ranks of queues for task queues: by the `Rank` of the first job in each, else the queue's own."""

    def __init__(
        self, conn: Connection, config: Configuration, task_queues: Collection[int], now: datetime
    ) -> None:
        self._conn, self._config, self._now = conn, config, now
        firsts = task_queue_rows.list_first_jobs(conn, task_queues, 1)
        self._first_jobs = {task_queue: job_ids[0] for task_queue, job_ids in firsts.items()}
        by_job = listing.read_ranks(conn, list(self._first_jobs.values()))
        frequent = frozenset(text for text, _ in Counter(by_job.values()).most_common(_MOST_RANKS))
        self._texts = {
            task_queue: text
            for task_queue, job_id in self._first_jobs.items()
            if (text := by_job.get(job_id)) in frequent
        }
        self._ads: dict[tuple[QueueAddress, str], Mapping[str, Value]] = {}
        self._ranks: dict[tuple[QueueAddress, str, str], float | None] = {}

    def rank(self, address: QueueAddress, vo: str, task_queues: Collection[int]) -> list[float | None]:
        """The rank of a queue for each of these task queues of a VO, in their order."""
        place = address, vo
        if (ad := self._ads.get(place)) is None:
            found = advertised_values.read_ads(self._conn, self._config, [address], vo, self._now)
            ad = self._ads[place] = found[address]
        own = self._rank_by_queue(ad, [each for each in task_queues if each not in self._texts])
        return [
            self._rank_by_job(place, text) if (text := self._texts.get(each)) is not None else own.get(each)
            for each in task_queues
        ]

    def _rank_by_job(self, place: tuple[QueueAddress, str], text: str) -> float | None:
        key = *place, text
        if key not in self._ranks:
            self._ranks[key] = evaluation.number(text, self._ads[place])
        return self._ranks[key]

    def _rank_by_queue(
        self, ad: Mapping[str, Value], task_queues: Collection[int]
    ) -> dict[int, float | None]:
        """Rank by the queue's own `Rank`; jobs are read only for names in it that the queue does not have."""
        stated = lookup(ad, admission.RANK)
        if stated is None or not task_queues:
            return {}
        own = {fold(name): value for name, value in ad.items()}
        if not list(admission.read_expression(stated, "Rank").other_names(own)):
            return dict.fromkeys(task_queues, rank_queue(ad, {}))
        return {
            each: rank_queue(ad, self._job_ads.get(self._first_jobs.get(each, 0), {})) for each in task_queues
        }

    @cached_property
    def _job_ads(self) -> Mapping[int, Mapping[str, Value]]:
        rows = listing.read_jobs(self._conn, list(self._first_jobs.values()))
        return {job.job_id: job_groups.job_ad(job, self._config) for job in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSplit:
    """Eligible queues with the same split of decisions between queue, batch system and matcher."""

    queues: int
    example: QueueAddress
    forwarding: Forwarding


def split_decisions(
    config: Configuration, survey: QueueSet, vo: str, demand: JobDemand
) -> tuple[DecisionSplit, ...]:
    """Where the requirements are decided at the eligible queues of a demand; most queues first.

    With what batch systems are asked for the keywords of the job.
    """
    if demand.requirements is None and not has_needs(demand.asked):
        return ()
    by_class: dict[str, Forwarding | None] = {}
    members: defaultdict[Forwarding, list[QueueAddress]] = defaultdict(list)
    class_flags = ClassFlags(config)
    for queue in survey.members(survey.eligible(demand)):
        if (here := find_class(config, vo, queue.address)) is None:
            continue
        if here.digest not in by_class:
            by_class[here.digest] = _split(demand, here, survey.declarations)
        if (found := by_class[here.digest]) is not None:
            own = class_flags.find(queue.address, demand.asked)
            members[replace(found, flags=(*found.flags, *own))].append(queue.address)
    ordered = sorted(members.items(), key=lambda each: (-len(each[1]), each[1][0]))
    return tuple(
        DecisionSplit(queues=len(addresses), example=addresses[0], forwarding=forwarding)
        for forwarding, addresses in ordered
    )


def _split(demand: JobDemand, here: QueueClass, declarations: Declarations) -> Forwarding | None:
    """Where the requirements of a demand are decided at the queues of a class; None: not eligible."""
    if demand.requirements is None:
        return NO_REQUIREMENTS
    return forwarding.split_requirements(
        demand.requirements, here.values, declarations, here.nodes, here.forwarding
    )
