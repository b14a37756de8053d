"""Which queue classes have what requirements ask, remembered as long as the configuration stays.

What is known of one version of the configuration is taken over by the next, where it still holds.
"""

from collections.abc import Mapping
from threading import Lock
from typing import Final

from cs_config.classes.class_index import EligibleClasses, QueueClassIndex, number_classes
from cs_config.classes.queue_classes import queue_classes
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from requirements.canonical import Requirements
from requirements.values import fold
from taskqueue.pools.queue_class_store import StoredClasses

#: Answers that are kept; one is up to two kilobytes.
_MOST_KEPT: Final = 10_000
#: Queue classes that are another; beyond that it is as much work to go by them as by all.
_MOST_DIFFERING: Final = 100


class Eligibility:
    """The answers for one version of the configuration; safe in several threads."""

    def __init__(self, config: Configuration, before: "Eligibility | None" = None) -> None:
        self.config = config
        self._indexes: dict[str, QueueClassIndex] = {}
        self._earlier: dict[str, QueueClassIndex] = {} if before is None else before.indexes()
        self._known_before: Mapping[str, StoredClasses] = {} if before is None else before.list_known()
        self._following: set[str] = set()  # VOs whose requirements ask the same of both versions
        self._answers: dict[str, EligibleClasses] = {}
        self._lock = Lock()

    def find(self, pool_id: str, requirements: Requirements, vo: str) -> EligibleClasses:
        """The eligible queue classes of a pool.

        Args:
            pool_id: The identity of `requirements` and `vo`, under which the answer is remembered.
            requirements: What is asked.
            vo: Whose effective parameters count.
        """
        with self._lock:
            found = self._answers.get(pool_id)
            if found is None:
                if len(self._answers) >= _MOST_KEPT:
                    self._answers.clear()
                index = self._index(fold(vo))
                sets = index.ask(index.question_of(pool_id, requirements))
                found = self._answers[pool_id] = EligibleClasses(index=index, sets=sets)
        return found

    def index(self, vo: str, slots: Mapping[str, int]) -> QueueClassIndex:
        """The queue classes of a VO, those with slots in these.

        Args:
            vo: Whose effective parameters count.
            slots: By digest, maybe also of classes that the VO has no more.
        """
        with self._lock:
            known = self._index(fold(vo), slots)
            if not known.slots.items() <= number_classes(slots, known.slots).items():
                known = self._indexes[fold(vo)] = self._made(fold(vo), slots, known)
            return known

    def indexes(self) -> dict[str, QueueClassIndex]:
        """What was made so far, by VO."""
        return dict(self._indexes)

    def find_earlier(self, vo: str) -> StoredClasses | None:
        """The queue classes of the VO in the version before, if this process had it."""
        return self._known_before.get(fold(vo))

    def differing(self, vo: str, version: tuple[int, int]) -> QueueClassIndex | None:
        """The queue classes that the VO had in a version and has no more, and those that it did not have.

        None: that is not known, or they are many, or something else is different about what is asked.

        Args:
            vo: Whose index has been asked for.
            version: With how many of its moments of expiry had passed.
        """
        before = self._known_before.get(fold(vo))
        if before is None or fold(vo) not in self._following:
            return None
        if version != (before.config_version, before.expiries):
            return None
        index = self._indexes[fold(vo)]
        old = {each.digest: each for each in before.classes}
        new = {each.digest: each for each in index.classes.values()}
        found = [{**old, **new}[digest] for digest in sorted(old.keys() ^ new.keys())]
        return QueueClassIndex(found, index.declarations) if len(found) <= _MOST_DIFFERING else None

    def list_known(self) -> Mapping[str, StoredClasses]:
        """The queue classes in this version of the VOs that were asked for."""
        return {
            vo: StoredClasses(
                config_version=self.config.version,
                expiries=self.config.expiries,
                classes=tuple(index.classes.values()),
            )
            for vo, index in self.indexes().items()
        }

    def _index(self, vo: str, slots: Mapping[str, int] | None = None) -> QueueClassIndex:
        if vo not in self._indexes:
            made = self._indexes[vo] = self._made(vo, slots, self._earlier.pop(vo, None))
            if made.follows:
                self._following.add(vo)
        return self._indexes[vo]

    def _made(
        self, vo: str, slots: Mapping[str, int] | None, before: QueueClassIndex | None
    ) -> QueueClassIndex:
        declarations = options_for(self.config, vo).job_description.declarations
        return QueueClassIndex(queue_classes(self.config, vo), declarations, slots, before)


_latest: list[Eligibility] = []


def eligibility_of(config: Configuration) -> Eligibility:
    """The answers for this configuration, shared by all batches of the process while it is current."""
    for known in _latest:
        if known.config is config:
            return known
    made = Eligibility(config, *_latest)
    _latest[:] = [made]
    return made
