"""Jobs and pilots at queues that a change takes away."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sqlalchemy import Connection

from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from cs_config.proposals import Proposal
from taskqueue import presence


@dataclass(frozen=True, slots=True, kw_only=True)
class Going:
    """A VO's work at a queue that it may not use any more."""

    queue: QueueAddress
    vo: str
    why: str  #: for a person
    jobs: int  #: in the hands of pilots
    pilots: int  #: submitted and not ended


def of(conn: Connection, proposal: Proposal, *, vos: Collection[str] | None) -> Iterator[Going]:
    """The work of these VOs (None: of all) at queues that go, by queue and VO."""
    there = presence.by_queue(conn)
    for (vo, queue), present in sorted(there.items()):
        if vos is not None and vo not in vos:
            continue
        why = _why(proposal, queue, vo)
        if why is not None:
            yield Going(queue=queue, vo=vo, why=why, jobs=present.jobs, pilots=present.pilots)


def _why(proposal: Proposal, queue: QueueAddress, vo: str) -> str | None:
    """What takes the queue away from the VO; None: nothing that was not so before."""
    if not _usable(proposal.before, queue, vo) or _usable(proposal.after, queue, vo):
        return None
    if not proposal.after.knows(queue):
        return "the queue is removed"
    return f"it is not for {vo}" if proposal.after.enabled(queue, vo) else "it is switched off"


def _usable(config: Configuration, queue: QueueAddress, vo: str) -> bool:
    return config.knows(queue) and config.usable(queue, vo)
