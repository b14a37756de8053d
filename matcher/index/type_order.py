"""The order of a VO's job types (`cs_config.options.job_tiers`), as selections of its task queues."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from cs_config.options import job_tiers
from cs_config.options.job_tiers import JobTiers
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from matcher import rules
from taskqueue.task_queues.task_queues import TaskQueue


@dataclass(frozen=True, slots=True)
class TypeSelection:
    """The task queues of one VO with jobs of some types, which share one lottery."""

    vo: str
    types: frozenset[str]  #: folded
    is_inverted: bool = False  #: all other types, and jobs without one

    def includes(self, task_queue: TaskQueue) -> bool:
        """Whether a task queue is among them."""
        has_one = not self.types.isdisjoint(rules.fold_names(task_queue.requirement_class.job_types))
        return task_queue.vo == self.vo and has_one != self.is_inverted


def find_tier(config: Configuration, task_queue: TaskQueue) -> int | None:
    """The number of a task queue's tier, from 1; None: its VO does not order its job types."""
    tiers = options_for(config, task_queue.vo).job_scheduling.job_priorities
    return job_tiers.find_tier(tiers, task_queue.requirement_class.job_types) if tiers else None


def draw_selections(vo: str, tiers: JobTiers, random: Random) -> Iterator[TypeSelection]:
    """All task queues of a VO, those of each type together, in the order of its tiers and their weights.

    Types that are in no tier come last, together.
    """
    listed: frozenset[str] = frozenset()
    for tier in tiers:
        for job_type in tier.draw_types(random):
            yield TypeSelection(vo, frozenset({job_type}))
        listed |= tier.types
    yield TypeSelection(vo, listed, is_inverted=True)
