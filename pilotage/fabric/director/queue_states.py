"""States of queues in the reports of a director: with them the service explains why no pilots come."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pilotage.fabric.director import recorded_pilots
from pilotage.fabric.director.bad_nodes import BadNodes
from pilotage.fabric.director.demand import Place, QueueRoom
from pilotage.fabric.director.matcher_client import VoDemand
from pilotage.fabric.director.recorded_pilots import DirectorPilot
from pilotage.fabric.director.targets import QueuePause, TargetGroup

#: Queues in one report, as the service takes them.
_MOST_QUEUES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedQueue:
    """State of a queue for the pilots of one VO."""

    queue: str  #: `Site/CE/Queue`
    waiting: int = 0
    running: int = 0
    wanted: int = 0  #: new pilots by decision; those that a broker may send elsewhere count at none
    room: int = 0  #: pilots that may be added
    pause: QueuePause | None = None
    bad_nodes: Sequence[str] = ()  #: that new pilots are kept from, by their names in the batch system

    def to_report(self) -> dict[str, object]:
        """The state as the service takes it, without what is nothing."""
        numbers = {
            "waiting": self.waiting,
            "running": self.running,
            "wanted": self.wanted,
            "room": self.room,
        }
        found: dict[str, object] = {"queue": self.queue} | {name: n for name, n in numbers.items() if n}
        if self.pause is not None:
            found |= {"paused_until": self.pause.until.isoformat(), "reason": self.pause.reason}
        return found | ({"bad_nodes": list(self.bad_nodes)} if self.bad_nodes else {})


def list_states(
    of_vo: VoDemand,
    pilots: Mapping[str, Sequence[DirectorPilot]],
    rooms: Mapping[Place, QueueRoom],
    new: Mapping[TargetGroup, int],
    pauses: Mapping[Place, QueuePause],
    bad_nodes: Mapping[Place, BadNodes],
) -> list[ReportedQueue]:
    """The queues that a VO may use, paused ones first, then those with pilots (`pilots`, by queue)."""
    wanted = {(group.vo, group.queues): 0 for group in new}
    for group, number in new.items():
        wanted[group.vo, group.queues] += number
    found = []
    for queue in of_vo.limits:
        own = [each for each in pilots.get(queue, ()) if each.vo == of_vo.vo]
        waiting = sum(recorded_pilots.is_waiting(each) for each in own)
        room = rooms.get((of_vo.vo, queue))
        found.append(
            ReportedQueue(
                queue=queue,
                waiting=waiting,
                running=len(own) - waiting,
                wanted=wanted.get((of_vo.vo, (queue,)), 0),
                room=room.pilots if room else 0,
                pause=pauses.get((of_vo.vo, queue)),
                bad_nodes=bad_nodes.get((of_vo.vo, queue), BadNodes()).avoided_by(1),
            )
        )
    return sorted(found, key=_by_importance)[:_MOST_QUEUES]


def longest_pauses(found: Iterable[tuple[str, Sequence[str], QueuePause]]) -> Mapping[Place, QueuePause]:
    """Of pauses with their VOs and queues the one of each queue that lasts longest."""
    longest: dict[Place, QueuePause] = {}
    for vo, queues, pause in found:
        for queue in queues:
            known = longest.get((vo, queue), pause)
            longest[vo, queue] = max(known, pause, key=lambda each: each.until)
    return longest


def _by_importance(state: ReportedQueue) -> tuple[bool, bool, str]:
    return state.pause is None, not (state.waiting + state.running + state.wanted), state.queue
