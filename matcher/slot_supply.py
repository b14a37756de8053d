"""How many slots came lately where the jobs of a class may run: how much choice they have."""

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from sqlalchemy import Connection

from cs_config.tree.configuration import Configuration
from matcher.explain import job_conditions, queue_set
from requirements.bitset import list_positions, mask_from
from requirements.values import fold
from taskqueue import day_record
from taskqueue.day_record import Series
from taskqueue.task_queues.listing import WaitingClass

#: How far back slots count; of earlier ones it is not certain that the like come again.
SPAN: Final = timedelta(hours=6)

#: Site, CE and queue, folded.
_Place: TypeAlias = tuple[str, str, str]


class SlotSupply:
    """Requests that got jobs at queues where each class of a VO may run, for one configuration.

    They are read once; classes may be added, and are counted by the same. Requests without an answer do not
    count: had they fitted, a waiting job would have been the answer.
    """

    def __init__(self, conn: Connection, config: Configuration, vo: str, *, now: datetime) -> None:
        matched = _count_matched(conn, vo, now - SPAN)
        self._config = config
        self._queues = queue_set.all_queues(config, vo)
        # Of pilots that state no queue: for all queues of their site.
        self._of_sites = [
            (there, number)
            for site, there in self._queues.sites.items()
            if (number := matched[fold(site), "", ""])
        ]
        self._slots = {
            position: number
            for position, each in enumerate(self._queues.queues)
            if (number := matched[fold(each.address.site), fold(each.address.ce), fold(each.address.queue)])
        }
        self._served = mask_from(self._slots)
        self._of_set: dict[int, int] = {}
        self._of_classes: dict[str, int] = {}

    @property
    def of_classes(self) -> Mapping[str, int]:
        """The slots by digest of the classes that were added."""
        return self._of_classes

    def add(self, conn: Connection, waiting: Collection[WaitingClass]) -> None:
        """Count the slots for classes."""
        ads = job_conditions.read_job_ads(conn, self._config, waiting, needed=self._config.has_admission)
        for each in waiting:
            queues = self._queues.fulfilling(job_conditions.waiting_conditions(each, ads))
            if queues not in self._of_set:
                self._of_set[queues] = self._sum_slots(queues)
            self._of_classes[each.asked.digest] = self._of_set[queues]

    def _sum_slots(self, queues: int) -> int:
        at_queues = sum(self._slots[position] for position in list_positions(queues & self._served))
        return at_queues + sum(number for there, number in self._of_sites if queues & there)


def _count_matched(conn: Connection, vo: str, since: datetime) -> Counter[_Place]:
    found: Counter[_Place] = Counter()
    for subject, minutes in day_record.read_since(conn, Series.ANSWERS, since).items():
        site, ce, queue, vos, answer = subject
        if answer == day_record.MATCHED and vo in vos.split(","):
            found[fold(site), fold(ce), fold(queue)] += sum(minutes.values())
    return found
