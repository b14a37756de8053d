"""The pools of batch queues for a caller: as a page, or all of them, streamed.

An answer for a thousand queues may have millions of pools. Clients of 1.0 read all of them at once; so what
is in memory is a batch of queues, and the JSON of one queue.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from fastapi.responses import StreamingResponse
from pydantic_core import to_json

from cs_config.options import bounds
from cs_config.tree.address import QueueAddress
from matcher.pilot_groups import PilotGroup
from pilotage.service.auth.callers import Caller
from pilotage.service.models.matching import PilotGroupAnswer, QueuePoolsAnswer, QueuePoolsPage, UnknownQueue
from pilotage.service.services import Services

#: Queues that are read at once: first, and at most; each time twice as many.
_FEW = 10
_MANY = 320


@dataclass(frozen=True, slots=True, kw_only=True)
class _QueuePools:
    """A queue of a request with its pools."""

    position: int  #: among the queues of the request
    name: str  #: as requested
    pools: Sequence[str]  #: sorted
    groups: Sequence[PilotGroup] = ()

    def cut(self, after: str, most: int) -> "_QueuePools":
        """At most so many of its pools, from behind this one (empty: from the first on)."""
        kept = [each for each in self.pools if each > after][:most]
        if len(kept) == len(self.pools):
            return self
        shown = frozenset(kept)
        groups = [replace(each, pools=tuple(filter(shown.__contains__, each.pools))) for each in self.groups]
        return replace(self, pools=kept, groups=[each for each in groups if each.pools])

    @property
    def flags(self) -> list[PilotGroupAnswer]:
        """The groups as JSON has them."""
        return [PilotGroupAnswer.model_validate(each) for each in self.groups]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePools:
    """A request for the pools of queues that the caller may see."""

    parts: Services
    caller: Caller
    names: Sequence[str]  #: all that were requested, each once
    known: Mapping[str, QueueAddress]
    unknown: Sequence[UnknownQueue]
    by_flags: bool

    def answer(self, query: QueuePoolsPage) -> QueuePoolsAnswer | StreamingResponse:
        """The wanted page; without a limit all pools, in one piece if there are not many."""
        page, cursor = self._read_page(query.limit or bounds.QUEUE_POOLS, *query.cursor)
        if query.limit is not None:
            page.next = cursor
        elif cursor is not None:
            return StreamingResponse(self._encode(), media_type="application/json")
        return page

    def _read_page(self, most: int, position: int, after: str) -> tuple[QueuePoolsAnswer, str | None]:
        """The page from a queue and a pool on, and the cursor of the next one; None: it is the last."""
        answer = QueuePoolsAnswer(pools={}, unknown=[] if position or after else list(self.unknown))
        if self.by_flags:
            answer.flags = {}
        left = most
        for each in self._read(position):
            found = each.cut(after if each.position == position else "", left)
            if found.pools or not each.pools:
                answer.pools[each.name] = list(found.pools)
                if answer.flags is not None:
                    answer.flags[each.name] = found.flags
            left -= len(found.pools)
            if not left:
                return answer, f"{each.position}:{found.pools[-1]}"
        return answer, None

    def _read(self, position: int = 0) -> Iterator[_QueuePools]:
        """The queues from a position on, each with all its pools."""
        begin, size = position, _FEW
        while begin < len(self.names):
            batch = [
                (number, name, self.known[name])
                for number, name in enumerate(self.names[begin : begin + size], begin)
                if name in self.known
            ]
            begin, size = begin + size, min(2 * size, _MANY)
            yield from self._read_batch(batch)

    def _read_batch(self, batch: Sequence[tuple[int, str, QueueAddress]]) -> Iterator[_QueuePools]:
        matcher = self.parts.matcher
        by_vos = list(self._split_by_vos({address for _, _, address in batch}))
        if self.by_flags:
            # The pools are those of the groups, so that both are of one moment.
            groups = dict(chain(*(matcher.get_pilot_groups(*each).items() for each in by_vos)))
            for number, name, address in batch:
                pools = sorted(chain(*(each.pools for each in groups[address])))
                yield _QueuePools(position=number, name=name, pools=pools, groups=groups[address])
        else:
            found = dict(chain(*(matcher.get_submit_pools(*each).items() for each in by_vos)))
            for number, name, address in batch:
                yield _QueuePools(position=number, name=name, pools=found[address])

    def _split_by_vos(
        self, queues: Collection[QueueAddress]
    ) -> Iterator[tuple[frozenset[str], list[QueueAddress]]]:
        """The queues by the VOs whose pools the caller may see there: at its own sites those of all VOs."""
        own = [each for each in queues if self.caller.looks_after(each.site)]
        if own:
            yield self.parts.live.current.vos, own
        if others := [each for each in queues if not self.caller.looks_after(each.site)]:
            yield frozenset().union(*(one.vos for one in self.caller.each)), others

    def _encode(self) -> Iterator[bytes]:
        """The JSON of the whole answer."""
        yield b'{"pools":{'
        yield from _separate((each.name, to_json(each.pools)) for each in self._read())
        yield b'},"unknown":' + to_json([each.model_dump() for each in self.unknown])
        if self.by_flags:
            yield b',"flags":{'
            yield from _separate((each.name, to_json(each.flags)) for each in self._read())
            yield b"}"
        yield b"}"


def _separate(items: Iterator[tuple[str, bytes]]) -> Iterator[bytes]:
    """The members of a JSON object."""
    for number, (name, value) in enumerate(items):
        yield b"%b%b:%b" % (b"," if number else b"", json.dumps(name).encode(), value)
