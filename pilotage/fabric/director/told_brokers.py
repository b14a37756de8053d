"""What a director's file says of brokers: batch systems that pick the queue of a pilot themselves."""

from collections.abc import Collection, Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from pilotage.fabric.director.outlets import Broker
from pilotage.fabric.director.posts import BROKER
from pilotage.fabric.director.slots import Address, Slot
from requirements.problem import Problem
from requirements.values import fold

BrokerName = Annotated[str, Field(pattern=f"^{BROKER.pattern}$")]
BatchQueue = Annotated[str, Field(pattern=r"^[^\s,]+$", max_length=200)]


class ToldBroker(Slot):
    """A broker with the queues of the tree where its pilots may land."""

    system: str
    queues: dict[Address, BatchQueue] = Field(min_length=1)  #: with what each is called there
    entry: BatchQueue | None = None  #: takes all pilots; none: a list of those that would do
    vos: tuple[str, ...] = ()  #: that it is for; none: all of the director

    @model_validator(mode="after")
    def _tells_queues_apart(self) -> Self:
        if len(set(self.queues.values())) < len(self.queues):
            raise ValueError("queues: two have the same batch queue, so a pilot could not tell where it is")
        return self

    def broker(self, name: str) -> Broker:
        """As the director uses it."""
        return Broker(
            name=name,
            system=self.system,
            queues=self.queues,
            entry=self.entry,
            resources=self.resources,
            flags=self.flags,
            vos=frozenset(map(fold, self.vos)),
        )


def contradictions(
    brokers: Mapping[str, ToldBroker], *, takes_list: Mapping[str, bool], vos: Collection[str], file: str
) -> list[Problem]:
    """What is right by itself, and not together with the rest of the file.

    Args:
        brokers: By name.
        takes_list: By batch system whether a job can be given to one of several of its queues.
        vos: Of the director.
        file: Its name.
    """
    wrong = []
    for name, broker in sorted(brokers.items()):
        if broker.system not in takes_list:
            message = f"there is no system {broker.system}, only {', '.join(sorted(takes_list))}"
            wrong.append(Problem(path=f"brokers/{name}/system", message=message, file=file))
        elif broker.entry is None and not takes_list[broker.system]:
            message = f"{broker.system} takes no list of queues; say which one takes all pilots"
            wrong.append(Problem(path=f"brokers/{name}/entry", message=message, file=file))
        wrong += [
            Problem(path=f"brokers/{name}/vos", message=f"{vo} is not in vos", file=file)
            for vo in sorted(set(map(fold, broker.vos)).difference(map(fold, vos)))
        ]
    return wrong
