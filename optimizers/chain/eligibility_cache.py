"""Cache of the queue classes that are eligible for requirements, for one version of the configuration.

A new version takes over the results of the one before that are still valid.
"""

from collections.abc import Mapping
from threading import Lock
from typing import Final

from cs_config.cache import Cache
from cs_config.classes.queue_class_index import EligibleClasses, QueueClassIndex, number_classes
from cs_config.classes.queue_classes import queue_classes
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from requirements.canonical import Requirements
from requirements.values import fold
from taskqueue.pools.queue_class_store import StoredClasses

#: Cached results; one takes up to two kilobytes.
_MOST_KEPT: Final = 10_000
#: Changed queue classes; beyond this number comparing with all classes costs no more.
_MOST_DIFFERING: Final = 100


class Eligibility:
    """Eligible queue classes under one version of the configuration; thread-safe."""

    def __init__(self, config: Configuration, before: "Eligibility | None" = None) -> None:
        self.config = config
        self._indexes: dict[str, QueueClassIndex] = {}
        self._earlier: dict[str, QueueClassIndex] = {} if before is None else before.indexes()
        self._known_before: Mapping[str, StoredClasses] = {} if before is None else before.list_known()
        self._following: set[str] = set()  # VOs whose requirements mean the same in both versions
        self._answers: Cache[str, EligibleClasses] = Cache(_MOST_KEPT)
        self._lock = Lock()

    def find(self, pool_id: str, requirements: Requirements, vo: str) -> EligibleClasses:
        """Return the queue classes of a VO that are eligible for a pool.

        `pool_id` is the identity of `requirements` and `vo`, and the key of the cache.
        """
        with self._lock:
            return self._answers.get(pool_id, lambda: self._ask(pool_id, requirements, fold(vo)))

    def _ask(self, pool_id: str, requirements: Requirements, vo: str) -> EligibleClasses:
        index = self._index(vo)
        return EligibleClasses(index=index, sets=index.resolve(index.question_of(pool_id, requirements)))

    def index(self, vo: str, slots: Mapping[str, int]) -> QueueClassIndex:
        """The index of a VO's queue classes with the given slots; also of classes that it no longer has."""
        with self._lock:
            known = self._index(fold(vo), slots)
            if not known.slots.items() <= number_classes(slots, known.slots).items():
                known = self._indexes[fold(vo)] = self._new_index(fold(vo), slots, known)
            return known

    def indexes(self) -> dict[str, QueueClassIndex]:
        """All indexes created so far, by VO."""
        return dict(self._indexes)

    def find_earlier(self, vo: str) -> StoredClasses | None:
        """Return the VO's queue classes in the previous version, if this process has had it."""
        return self._known_before.get(fold(vo))

    def differing(self, vo: str, version: tuple[int, int]) -> QueueClassIndex | None:
        """Index of the queue classes of a VO, whose index exists, that were added or removed since `version`.

        None if that is unknown, if there are too many, or if requirements may mean something else now.
        `version`: its number, and how many of its times of expiry had passed.
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
        """Return the queue classes in this version of each VO that has an index."""
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
            made = self._indexes[vo] = self._new_index(vo, slots, self._earlier.pop(vo, None))
            if made.follows:
                self._following.add(vo)
        return self._indexes[vo]

    def _new_index(
        self, vo: str, slots: Mapping[str, int] | None, before: QueueClassIndex | None
    ) -> QueueClassIndex:
        declarations = options_for(self.config, vo).job_description.declarations
        return QueueClassIndex(queue_classes(self.config, vo), declarations, slots, before)


_latest: list[Eligibility] = []


def eligibility_of(config: Configuration) -> Eligibility:
    """Return the cache of this configuration, shared by all batches of the process while it is current."""
    for known in _latest:
        if known.config is config:
            return known
    made = Eligibility(config, *_latest)
    _latest[:] = [made]
    return made
