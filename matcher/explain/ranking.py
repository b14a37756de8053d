"""The eligible queues of a job in the order in which a director should serve them.

The job's `Rank` is evaluated over the queue's ad; without one, the queue's own `Rank` over itself and the
job. The highest comes first, a value that is no number (undefined, an error) last; equal ranks are shuffled.
Source: gLite's and HTCondor's matchmaking.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random

from cs_config.tree import admission
from cs_config.tree.address import QueueAddress
from requirements.classad import evaluation
from requirements.classad.expression import Expression
from requirements.values import Value, fold


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedQueue:
    """A queue with its rank."""

    queue: QueueAddress
    rank: float | None  #: None: not a number


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
