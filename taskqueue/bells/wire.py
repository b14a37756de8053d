"""The way that a ring takes from one process to the others."""

from collections.abc import Callable
from threading import Event
from typing import Protocol

#: Is told the topics that were rung for.
Heard = Callable[[frozenset[str]], None]


class WireDownError(Exception):
    """Nothing gets through at the moment; whoever follows polls meanwhile."""


class Wire(Protocol):
    """What carries rings; one that is lost on its way does no harm."""

    def send(self, topics: frozenset[str]) -> None:
        """Tell all who listen now, this process among them.

        Raises:
            WireDownError: It did not get through.
        """

    def listen(self, heard: Heard, stop: Event) -> None:
        """Listen until told to stop; every topic is heard once at the beginning, for what was missed.

        Raises:
            WireDownError: The connection was lost, or never came about.
        """
