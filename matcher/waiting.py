"""What waits, in memory: the task queues that have jobs, and the index over their classes.

Loaded once, then kept up with the feed of changes. It may be a little behind: then a claim finds nothing,
or a job that has just come is found a moment later.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from random import Random

from sqlalchemy import Connection

from matcher import rules
from matcher.index import ClassIndex
from matcher.lottery import Weighed
from matcher.resource import Resource
from matcher.urn import Urn
from taskqueue import changes, priorities, task_queues
from taskqueue.task_queues import TaskQueue

#: Resources whose task queues are remembered; beyond that we start anew.
_REMEMBERED = 256
#: So many classes are looked at one by one.
_FEW = 64


class Waiting:
    """The task queues that have jobs."""

    def __init__(self) -> None:
        self._index = ClassIndex()
        self._urn = Urn()
        self._by_id: dict[int, TaskQueue] = {}
        self._of_class: defaultdict[int, dict[int, TaskQueue]] = defaultdict(dict)
        self._remembered: dict[tuple[Resource, frozenset[str]], Weighed] = {}
        self._aside: set[int] = set()
        self._position: changes.Position | None = None  # in the feed; None: nothing is loaded
        self.changed = 0  #: how often a task queue came or went

    def follow(self, conn: Connection) -> frozenset[str] | None:
        """Take up what has changed; the VOs whose mapping did. The first time, load everything.

        None: nobody can say what has changed; this and all else that is remembered of the database is void.
        """
        if self._position is None:
            position = changes.position(conn)
            for each in task_queues.occupied(conn):
                self._add(each)
            self._position = position
            return frozenset()
        read = changes.read(conn, self._position)
        if read is None:
            return None
        found, position = read
        ids = {int(change.key) for change in found if change.kind == changes.TASK_QUEUE} | self._aside
        if ids:
            self._look_again(conn, ids)
            self._aside.clear()
        if groups := {change.key for change in found if change.kind == changes.PRIORITY}:
            self._weigh_again(conn, groups)
        self._position = position  # not before: what could not be looked at has to come again
        return frozenset(change.key for change in found if change.kind == changes.MAPPING)

    @property
    def aside(self) -> frozenset[int]:
        """Those that are not tried until the next look at the feed, which asks whether they have jobs."""
        return frozenset(self._aside)

    def set_aside(self, task_queue_ids: Collection[int]) -> None:
        """Do not try these for now: they had no job that was free."""
        for each in task_queue_ids:
            if each in self._by_id:
                self._aside.add(each)
                self._discard(each)

    def candidates(self, resource: Resource, pools: frozenset[str]) -> Sequence[TaskQueue]:
        """The task queues that the resource may serve, where these pools may run; not to be changed."""
        return self._weighed(resource, pools).task_queues

    def _weighed(self, resource: Resource, pools: frozenset[str]) -> Weighed:
        found = self._remembered.get((resource, pools))
        if found is None:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            found = Weighed(list(self.in_classes(self.mask(resource, pools), resource)))
            self._remembered[resource, pools] = found
        return found

    def mask(self, resource: Resource, pools: frozenset[str]) -> int:
        """The requirement classes that fit, as the index has them; whose they are is not looked at."""
        return self._index.mask(resource, pools)

    def in_classes(self, mask: int, resource: Resource) -> Iterator[TaskQueue]:
        """The task queues of classes that the resource may serve."""
        for class_id in self._index.classes(mask):
            for each in list(self._of_class[class_id].values()) if class_id in self._of_class else ():
                if rules.owner_fits(each.requirement_class, each.owner, each.owner_group, resource):
                    yield each

    def draw(self, resource: Resource, pools: frozenset[str], random: Random) -> TaskQueue | None:
        """One of the task queues that the resource may serve, as the lottery has it; None: there is none."""
        mask = self._index.mask(resource, pools)
        if mask.bit_count() > _FEW:
            found = self._urn.draw(random, lambda each: self._fits(each, mask, resource))
            if found is not None:
                return found
        return self._weighed(resource, pools).draw(random)

    def _fits(self, each: TaskQueue, mask: int, resource: Resource) -> bool:
        return self._index.is_in(mask, each.class_id) and rules.owner_fits(
            each.requirement_class, each.owner, each.owner_group, resource
        )

    def _look_again(self, conn: Connection, ids: set[int]) -> None:
        occupied = {each.task_queue_id: each for each in task_queues.occupied_of(conn, ids)}
        for gone in ids - occupied.keys():
            self._discard(gone)
        for each in occupied.values():
            self._add(each)

    def _weigh_again(self, conn: Connection, groups: set[str]) -> None:
        for task_queue_id, weight in priorities.of_groups(conn, groups).items():
            known = self._by_id.get(task_queue_id)
            if known is not None and known.priority != weight:
                self._remembered.clear()
                self._urn.discard(known)
                known = replace(known, priority=weight)
                self._put(known)

    def _add(self, each: TaskQueue) -> None:
        if self._by_id.get(each.task_queue_id) == each:
            return
        self.changed += 1
        self._remembered.clear()
        if (known := self._by_id.get(each.task_queue_id)) is not None:
            self._urn.discard(known)
        self._put(each)
        self._index.add(each.class_id, each.requirement_class)

    def _put(self, each: TaskQueue) -> None:
        self._by_id[each.task_queue_id] = each
        self._of_class[each.class_id][each.task_queue_id] = each
        self._urn.add(each)

    def _discard(self, task_queue_id: int) -> None:
        known = self._by_id.pop(task_queue_id, None)
        if known is None:
            return
        self.changed += 1
        self._remembered.clear()
        self._urn.discard(known)
        siblings = self._of_class[known.class_id]
        del siblings[task_queue_id]
        if not siblings:
            del self._of_class[known.class_id]
            self._index.discard(known.class_id)
