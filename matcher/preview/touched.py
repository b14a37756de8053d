"""Which queues a change may make another for a VO; the others need not be looked at."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from cs_config.address import QueueAddress
from cs_config.operations import DEFAULTS
from cs_config.proposals import Proposal
from requirements.values import fold

_SITES: Final = ("Resources", "Sites")
_VOS: Final = "VOs"
#: Options that requirements are compared by.
_COMPARED_BY: Final = frozenset({"jobdescription", "pools"})

_Scope = tuple[str, ...]


class Touched:
    """The queues of both versions by what changes."""

    def __init__(self, proposal: Proposal) -> None:
        self._differences = proposal.differences
        self._all = frozenset(proposal.before.levels) | frozenset(proposal.after.levels)
        self._within = _by_scope(self._all)

    def by(self, vo: str) -> frozenset[QueueAddress]:
        """The queues that may be another for a VO, in lower case."""
        return frozenset().union(*(self.of(each.names, vo) for each in self._differences))

    def of(self, names: tuple[str, ...], vo: str) -> frozenset[QueueAddress]:
        """The queues that what stands at a path may make another for a VO."""
        if names[0] == "Operations":
            return self._of_operations(names, vo)
        if names[:2] != _SITES[: len(names)]:
            return self._all if names[:2] == ("Resources", "Computing") else frozenset()
        scope, below = _split(names[2:])
        if below[:1] == (_VOS,) and len(below) > 1 and fold(below[1]) != vo:
            return frozenset()
        return self._within.get(scope, frozenset())

    def _of_operations(self, names: tuple[str, ...], vo: str) -> frozenset[QueueAddress]:
        for_vo = len(names) < 2 or names[1] == DEFAULTS or fold(names[1]) == vo
        compares = len(names) < 3 or fold(names[2]) in _COMPARED_BY
        return self._all if for_vo and compares else frozenset()


def _split(names: tuple[str, ...]) -> tuple[_Scope, tuple[str, ...]]:
    """The site, CE and queue below `Resources/Sites` that a path leads to, and what follows."""
    scope = names[:1]
    for between in ("CEs", "Queues"):
        if names[2 * len(scope) - 1 : 2 * len(scope)] != (between,):
            break
        found = names[2 * len(scope) : 2 * len(scope) + 1]
        if not found:
            return scope, ()
        scope += found
    return scope, names[2 * len(scope) - 1 :]


def _by_scope(queues: Iterable[QueueAddress]) -> Mapping[_Scope, frozenset[QueueAddress]]:
    found: defaultdict[_Scope, set[QueueAddress]] = defaultdict(set)
    for each in queues:
        names = (each.site, each.ce, each.queue)
        for length in range(4):
            found[names[:length]].add(each)
    return {scope: frozenset(members) for scope, members in found.items()}
