"""What a director reports of its queues."""

from dataclasses import replace
from datetime import timedelta

from pilotage.fabric.batch.batch_system import JobResources
from pilotage.fabric.director import queue_states
from pilotage.fabric.director.bad_nodes import BadNodes
from pilotage.fabric.director.demand import QueueLimits, QueueRoom
from pilotage.fabric.director.matcher_client import VoDemand
from pilotage.fabric.director.recorded_pilots import Status
from pilotage.fabric.director.targets import QueuePause, TargetGroup
from tests.support.factories.director_pilots import NOW, pilot

IDLE, BUSY, PAUSED = (f"LCG.A.org/ce1/{name}" for name in ("a_idle", "busy", "paused"))


def vo_demand(*queues: str) -> VoDemand:
    limits = dict.fromkeys(queues, QueueLimits())
    slots = {("", queue): JobResources() for queue in queues}
    return VoDemand(vo="cms", work=(), pools={}, limits=limits, slots=slots)


def pause(minutes: int) -> QueuePause:
    return QueuePause(until=NOW + timedelta(minutes=minutes), reason=f"pause of {minutes}")


def test_each_queue_of_a_vo_is_reported_with_the_pilots_of_this_vo_paused_ones_first() -> None:
    own = [pilot("north.any.1", queue=BUSY), pilot("north.any.2", queue=BUSY, status=Status.RUNNING)]
    others = [replace(pilot("north.any.3", queue=BUSY), vo="dune")]
    new = {
        TargetGroup(vo="cms", queues=(BUSY,)): 2,
        TargetGroup(vo="cms", queues=(BUSY,), flags=("--constraint=el9",)): 1,
        TargetGroup(vo="dune", queues=(BUSY,)): 5,
    }

    found = queue_states.list_states(
        vo_demand(IDLE, BUSY, PAUSED),
        {BUSY: [*own, *others]},
        {("cms", BUSY): QueueRoom(pilots=4)},
        new,
        {("cms", PAUSED): pause(2), ("dune", IDLE): pause(2)},
        {("cms", BUSY): BadNodes(lately=("n1",), due=("n2",))},
    )

    assert [each.to_report() for each in found] == [
        {"queue": PAUSED, "paused_until": "2026-03-01T12:02:00+00:00", "reason": "pause of 2"},
        {"queue": BUSY, "waiting": 1, "running": 1, "wanted": 3, "room": 4, "bad_nodes": ["n1", "n2"]},
        {"queue": IDLE},
    ]


def test_a_report_has_no_more_queues_than_the_service_takes() -> None:
    many = [f"LCG.A.org/ce1/{number}" for number in range(1500)]

    assert len(queue_states.list_states(vo_demand(*many), {}, {}, {}, {}, {})) == 1000


def test_of_several_pauses_of_a_queue_the_longest_counts() -> None:
    found = queue_states.longest_pauses(
        [("cms", (IDLE, BUSY), pause(2)), ("cms", (BUSY,), pause(9)), ("cms", (BUSY,), pause(4))]
    )

    assert found == {("cms", IDLE): pause(2), ("cms", BUSY): pause(9)}
