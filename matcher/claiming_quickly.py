"""Requests for one job at places where nothing is counted: one statement for all that have come in."""

import logging
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.exc import DBAPIError

from matcher.claiming import Look, Wish
from matcher.doubts import Doubts
from matcher.filling import Filling
from taskqueue import claims, database, quick_claims
from taskqueue.claims import Want
from taskqueue.quick_claims import Ask, Outcome
from taskqueue.single_statements import SingleStatements
from taskqueue.task_queues import TaskQueue

log = logging.getLogger(__name__)

#: Task queues that are tried for each; who found nothing then goes step by step.
_TRIES = 4


def claim(
    server: SingleStatements, wishes: Sequence[Wish], doubts: Doubts, *, now: datetime
) -> dict[int, Look]:
    """What they got, by their place in the list; who is left out has to go step by step.

    Each statement is a transaction: what one request got stays, whatever becomes of the others.

    Raises:
        OperationalError, InterfaceError: The database is away; `doubts` has what may have been claimed.
    """
    found: dict[int, Look] = {}
    left: Sequence[int] = range(len(wishes))
    for _ in range(_TRIES):
        asks = {
            number: ask(wishes[number], drawn) for number in left if (drawn := wishes[number].drawn.next())
        }
        if not asks:
            break
        try:
            outcomes = _try(server, wishes, asks, doubts, now)
        except Exception as error:  # whatever it is, what is claimed has to be delivered
            if not found:
                raise
            log.warning("claims of one statement fail, those that are left go step by step: %s", error)
            break
        for number, outcome in outcomes.items():
            if outcome.claimed is not None:
                found[number] = Look(claimed=(outcome.claimed,), emptied=in_vain(wishes[number].drawn.tried))
        left = [number for number, each in outcomes.items() if each.claimed is None and not each.repeated]
        for number in asks.keys() - outcomes.keys() | {n for n, each in outcomes.items() if each.repeated}:
            wishes[number].drawn.start_over()
    return found


def in_vain(asked: Sequence[TaskQueue]) -> frozenset[int]:
    """All but the last, which had a job: whoever settles it looks whether the others are empty."""
    return frozenset(each.task_queue_id for each in asked[:-1])


def ask(wish: Wish, task_queue: TaskQueue) -> Ask:
    """A job of a task queue, for a wish."""
    filling = Filling(wish.resource)
    filling.take(task_queue.requirement_class, 1)
    [allotment] = filling.allotments()
    return Ask(
        want=Want(
            task_queue_id=task_queue.task_queue_id,
            count=1,
            place=wish.place,
            has_pool=task_queue.requirement_class.submit_pool is not None,
        ),
        holder=wish.holder,
        lease=claims.new_lease(),
        allotment=allotment,
        request_id=wish.request.request_id,
    )


def _try(
    server: SingleStatements, wishes: Sequence[Wish], asks: dict[int, Ask], doubts: Doubts, now: datetime
) -> dict[int, Outcome]:
    """One statement; nobody got anything if the database refuses it, and each is to go step by step."""
    maybe = [(wishes[number].request, (ask.lease,)) for number, ask in asks.items()]
    try:
        with doubts.about(maybe):
            outcomes = quick_claims.claim(server, list(asks.values()), now=now)
    except DBAPIError as error:
        if database.is_away(error):
            raise
        return {}
    return dict(zip(asks, outcomes, strict=True))
