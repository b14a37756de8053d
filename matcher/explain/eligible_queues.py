"""The eligible queues of a job: in the order to serve them, and by where its requirements are decided.

The job's `Rank` is evaluated over the queue's ad; without one, the queue's own `Rank` over itself and the
job. The highest comes first, a value that is no number (undefined, an error) last; equal ranks are shuffled.
Source: gLite's and HTCondor's matchmaking.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Annotated

from pydantic import Field

from cs_config.classes.queue_classes import find_class
from cs_config.tree import admission
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.explain.job_conditions import JobDemand
from matcher.explain.queue_set import QueueSet
from requirements.classad import evaluation
from requirements.classad.expression import Expression
from requirements.nodes import flags
from requirements.nodes.flags import Forwarding
from requirements.values import Value, fold


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedQueue:
    """A queue with its rank."""

    queue: QueueAddress
    rank: Annotated[
        float | None, Field(description="By the job's `Rank`, else by the queue's; null: not a number.")
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
    found = [RankedQueue(queue=queue, rank=_rank(ad, rank, job)) for queue, ad in queues]
    random.shuffle(found)
    return sorted(found, key=lambda each: -math.inf if each.rank is None else each.rank, reverse=True)


def _rank(ad: Mapping[str, Value], rank: Expression | None, job: Mapping[str, Value]) -> float | None:
    if rank is not None:
        return evaluation.number(rank.text, ad)
    own = {fold(name): value for name, value in ad.items()}
    stated = own.get(admission.RANK)
    value = None if stated is None else admission.read_expression(stated, "Rank").value(own, job)
    return evaluation.as_rank(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSplit:
    """Eligible queues with the same split of decisions between queue, batch system and matcher."""

    queues: int
    example: QueueAddress
    forwarding: Forwarding


def split_decisions(
    config: Configuration, survey: QueueSet, vo: str, demand: JobDemand
) -> tuple[DecisionSplit, ...]:
    """Where the requirements are decided at the eligible queues of a demand; most queues first."""
    if demand.requirements is None:
        return ()
    by_class: dict[str, Forwarding | None] = {}
    members: defaultdict[Forwarding, list[QueueAddress]] = defaultdict(list)
    for queue in survey.members(survey.eligible(demand)):
        if (here := find_class(config, vo, queue.address)) is None:
            continue
        if here.digest not in by_class:
            by_class[here.digest] = flags.forwarding(
                demand.requirements, here.values, survey.declarations, here.nodes, here.forwarding
            )
        if (found := by_class[here.digest]) is not None:
            members[found].append(queue.address)
    ordered = sorted(members.items(), key=lambda each: (-len(each[1]), each[1][0]))
    return tuple(
        DecisionSplit(queues=len(addresses), example=addresses[0], forwarding=forwarding)
        for forwarding, addresses in ordered
    )
