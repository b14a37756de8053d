"""Which queue classes have what requirements ask, remembered as long as the configuration stays."""

from collections import OrderedDict
from threading import Lock
from typing import Final

from cs_config.configuration import Configuration
from cs_config.eligible_classes import EligibleClass, eligible_classes
from requirements.canonical import Requirements

#: Answers that are kept; one is a few hundred bytes.
_MOST_KEPT: Final = 20_000


class Eligibility:
    """The answers for one version of the configuration; safe in several threads."""

    def __init__(self, config: Configuration) -> None:
        self.config = config
        self._known: OrderedDict[str, tuple[EligibleClass, ...]] = OrderedDict()
        self._lock = Lock()

    def of(self, pool_id: str, requirements: Requirements, vo: str) -> tuple[EligibleClass, ...]:
        """The eligible queue classes of a pool.

        Args:
            pool_id: The identity of `requirements` and `vo`, under which the answer is remembered.
            requirements: What is asked.
            vo: Whose effective parameters count.
        """
        with self._lock:
            if pool_id in self._known:
                self._known.move_to_end(pool_id)
                return self._known[pool_id]
        found = eligible_classes(self.config, vo, requirements)
        with self._lock:
            self._known[pool_id] = found
            if len(self._known) > _MOST_KEPT:
                self._known.popitem(last=False)
        return found


_latest: list[Eligibility] = []


def of_configuration(config: Configuration) -> Eligibility:
    """The answers for this configuration, shared by all batches of the process while it is current."""
    for known in _latest:
        if known.config is config:
            return known
    made = Eligibility(config)
    _latest[:] = [made]
    return made
