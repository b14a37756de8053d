"""Where each part of a job's requirements is decided: queue, batch system or matcher."""

from collections import defaultdict
from dataclasses import dataclass

from cs_config.classes.queue_classes import QueueClass, find_class
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.explain.job_conditions import JobDemand
from matcher.explain.queue_set import QueueSet
from requirements.nodes import flags
from requirements.nodes.flags import Forwarding


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSplit:
    """Eligible queues with the same split of decisions."""

    queues: int
    example: QueueAddress
    forwarding: Forwarding


def split_decisions(
    config: Configuration, survey: QueueSet, vo: str, demand: JobDemand
) -> tuple[DecisionSplit, ...]:
    """How the requirements are decided at the queues that are eligible for the demand.

    Equal splits of several queue classes are joined; the one with most queues comes first.
    """
    members: defaultdict[Forwarding, list[QueueAddress]] = defaultdict(list)
    for here, addresses in _group_by_class(config, survey, vo, survey.eligible(demand)):
        if (found := _forwarding(survey, demand, here)) is not None:
            members[found] += addresses
    ordered = sorted(members.items(), key=lambda each: (-len(each[1]), min(each[1])))
    return tuple(
        DecisionSplit(queues=len(addresses), example=min(addresses), forwarding=found)
        for found, addresses in ordered
    )


def _group_by_class(
    config: Configuration, survey: QueueSet, vo: str, queues: int
) -> list[tuple[QueueClass, list[QueueAddress]]]:
    found: dict[str, tuple[QueueClass, list[QueueAddress]]] = {}
    for queue, bit in zip(survey.queues, f"{queues:b}"[::-1], strict=False):
        here = find_class(config, vo, queue.address) if bit == "1" else None
        if here is not None:
            found.setdefault(here.digest, (here, []))[1].append(queue.address)
    return list(found.values())


def _forwarding(survey: QueueSet, demand: JobDemand, here: QueueClass) -> Forwarding | None:
    if demand.requirements is None:
        return None
    return flags.forwarding(
        demand.requirements, here.values, survey.declarations, here.nodes, here.forwarding
    )
