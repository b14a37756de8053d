"""Which queue classes have what requirements ask: for sure, or only at some of their nodes."""

from dataclasses import dataclass

from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from cs_config.operations import operations
from cs_config.queue_classes import QueueClass, queue_classes
from requirements import evaluator
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


def eligible_classes(config: Configuration, vo: str, requirements: Requirements) -> tuple[EligibleClass, ...]:
    """The queue classes that the VO may use now where some node may fulfil the requirements."""
    declarations = operations(config, vo).job_description.declarations
    standings = (
        (each, evaluator.standing(requirements, each.values, declarations, each.nodes))
        for each in queue_classes(config, vo)
    )
    return tuple(
        EligibleClass(queue_class=each, undecided=standing.residue is not None)
        for each, standing in standings
        if standing.eligible
    )
