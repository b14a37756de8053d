"""A flow of waiting jobs to pilots that can take them: as much as can flow, given what each may carry.

Room may be added bit by bit: what flows already is led around where that lets more through, and what has
reached the end once stays there. So pilots that exist are used before new ones are sent, and better queues
before worse ones. Source: Ford and Fulkerson; Edmonds and Karp.
"""

from collections import defaultdict, deque
from collections.abc import Hashable, Mapping
from itertools import pairwise

Node = Hashable
BEGIN: Node = "begin"
END: Node = "end"


class Flow:
    """A network whose arcs carry whole numbers, from `BEGIN` to `END`."""

    def __init__(self) -> None:
        self._free: dict[Node, dict[Node, int]] = defaultdict(dict)

    def allow(self, source: Node, target: Node, more: int) -> None:
        """Let an arc carry more; there is none in the other direction."""
        self._free[source][target] = self._free[source].get(target, 0) + more
        self._free[target].setdefault(source, 0)

    def through(self, source: Node, target: Node) -> int:
        """What an arc carries."""
        return self._free[target].get(source, 0)

    def fill(self) -> None:
        """Let through as much as can be."""
        while path := self._path():
            most = min(self._free[source][target] for source, target in path)
            for source, target in path:
                self._free[source][target] -= most
                self._free[target][source] += most

    def _path(self) -> list[tuple[Node, Node]]:
        """The arcs of a shortest way on which something can still be moved; empty: there is none."""
        before: dict[Node, Node] = {}
        queue = deque([BEGIN])
        while queue and END not in before:
            here = queue.popleft()
            for there, free in self._free[here].items():
                if free > 0 and there not in before and there != BEGIN:
                    before[there] = here
                    queue.append(there)
        return _arcs(before)


def _arcs(before: Mapping[Node, Node]) -> list[tuple[Node, Node]]:
    if END not in before:
        return []
    way = [END]
    while way[-1] != BEGIN:
        way.append(before[way[-1]])
    return list(pairwise(reversed(way)))
