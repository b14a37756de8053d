"""How many slots came lately where the jobs of a class may run: how much choice they have."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from sqlalchemy import Connection

from cs_config.tree.configuration import Configuration
from matcher.explain import job_conditions, queue_set
from requirements.bitset import list_positions, mask_from
from requirements.values import fold
from taskqueue import day_record
from taskqueue.day_record import Series
from taskqueue.task_queues import listing

#: How far back slots count; of earlier ones it is not certain that the like come again.
SPAN: Final = timedelta(hours=6)

#: Site, CE and queue, folded.
_Place: TypeAlias = tuple[str, str, str]


def count_slots(conn: Connection, config: Configuration, vo: str, *, now: datetime) -> Mapping[str, int]:
    """Requests that got jobs at queues where each class may run, by the digests of a VO's waiting classes.

    Requests without an answer do not count: had they fitted, a waiting job would have been the answer.
    """
    matched = _count_matched(conn, vo, now - SPAN)
    waiting = listing.list_waiting(conn, {vo})
    ads = job_conditions.read_job_ads(conn, config, waiting, needed=config.has_admission)
    whole = queue_set.all_queues(config, vo)
    # Of pilots that state no queue: for all queues of their site.
    of_sites = [
        (there, number) for site, there in whole.sites.items() if (number := matched[fold(site), "", ""])
    ]
    slots = {
        position: number
        for position, each in enumerate(whole.queues)
        if (number := matched[fold(each.address.site), fold(each.address.ce), fold(each.address.queue)])
    }
    served = mask_from(slots)
    of_set: dict[int, int] = {}
    found: dict[str, int] = {}
    for each in waiting:
        queues = whole.fulfilling(job_conditions.waiting_conditions(each, ads))
        if queues not in of_set:
            at_queues = sum(slots[position] for position in list_positions(queues & served))
            of_set[queues] = at_queues + sum(number for there, number in of_sites if queues & there)
        found[each.asked.digest] = of_set[queues]
    return found


def _count_matched(conn: Connection, vo: str, since: datetime) -> Counter[_Place]:
    found: Counter[_Place] = Counter()
    for subject, minutes in day_record.read_since(conn, Series.ANSWERS, since).items():
        site, ce, queue, vos, answer = subject
        if answer == day_record.MATCHED and vo in vos.split(","):
            found[fold(site), fold(ce), fold(queue)] += sum(minutes.values())
    return found
