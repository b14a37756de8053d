"""Which queue classes have what requirements ask: for sure, or only at some of their nodes."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from cs_config import queue_class_index
from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from cs_config.queue_class_index import EligibleSets, QueueClassIndex
from cs_config.queue_classes import QueueClass
from requirements.bits import bits
from requirements.canonical import Requirements


@dataclass(frozen=True, slots=True, kw_only=True)
class EligibleClass:
    """Queues that some job may run in."""

    queue_class: QueueClass
    undecided: bool  #: whether it depends on what the node has

    @property
    def queues(self) -> tuple[QueueAddress, ...]:
        """The queues of the class."""
        return self.queue_class.queues


@dataclass(frozen=True, slots=True, kw_only=True)
class EligibleClasses(Collection[EligibleClass]):
    """The queue classes that requirements fit; there may be thousands, so they are made when looked at."""

    index: QueueClassIndex
    sets: EligibleSets

    def __len__(self) -> int:
        return self.sets.eligible.bit_count()

    def __iter__(self) -> Iterator[EligibleClass]:
        for slot in bits(self.sets.eligible):
            yield EligibleClass(
                queue_class=self.index.classes[slot], undecided=bool(self.sets.undecided >> slot & 1)
            )

    def __contains__(self, each: object) -> bool:
        return any(each == other for other in self)


def eligible_classes(config: Configuration, vo: str, requirements: Requirements) -> EligibleClasses:
    """The queue classes that the VO may use now where some node may fulfil the requirements."""
    index = queue_class_index.of_vo(config, vo)
    return EligibleClasses(index=index, sets=index.ask(index.question(requirements)))
