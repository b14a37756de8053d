"""Where pilots stand: the queue they are in, and what they may offer there.

It follows from what they say, their rights and the configuration, so it is found out once for all that say
the same.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from matcher.node_facts import Facts
from matcher.resource import Resource

#: What pilots say that is remembered; beyond that we start anew.
_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """A pilot in a queue."""

    address: QueueAddress
    resource: Resource  #: for the VOs that may use the queue now; there may be none
    facts: Facts  #: of its node


class Stands:
    """What is remembered of them, for one configuration; by the thread that claims.

    Other threads say nothing that is remembered: theirs may be another configuration.
    """

    def __init__(self) -> None:
        self._config: Configuration | None = None
        self._known: dict[Hashable, Stand] = {}

    def found(self, likeness: Hashable | None, config: Configuration) -> Stand | None:
        """Where one stands who says this; None: that has to be found out."""
        return self._known.get(likeness) if self._config is config and likeness is not None else None

    def note(self, likeness: Hashable | None, stand: Stand, config: Configuration) -> None:
        """It was found out."""
        if likeness is None:
            return
        if self._config is not config or len(self._known) >= _REMEMBERED:
            self._config, self._known = config, {}
        self._known[likeness] = stand
