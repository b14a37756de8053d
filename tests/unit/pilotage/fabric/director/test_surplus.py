"""Which waiting pilots are too many, and for how long before they are withdrawn."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from pilotage.fabric.batch.batch_system import Evidence
from pilotage.fabric.director import demand, recorded_pilots, surplus
from pilotage.fabric.director.demand import DemandedWork, DemandSituation, QueueRoom
from pilotage.fabric.director.recorded_pilots import DirectorPilot, PilotSlot, Status
from pilotage.fabric.director.surplus import SurplusMemory, SurplusPilot
from pilotage.fabric.director.targets import TargetGroup
from tests.support.factories.director_pilots import NOW, pilot

QUEUE = "LCG.A.org/ce1/short"
ANY = TargetGroup(vo="cms", queues=(QUEUE,))
EL9 = TargetGroup(vo="cms", queues=(QUEUE,), flags=("--constraint=el9",))
SLOT = PilotSlot(cores=1, lifetime=86_400)
SOON = timedelta(minutes=15)


def waiting(number: int, minutes: float) -> DirectorPilot:
    return replace(pilot(f"north.any.{number}", queue=QUEUE), created_at=NOW - timedelta(minutes=minutes))


def work(jobs: int, *groups: TargetGroup, part: float = 1.0) -> DemandedWork:
    return DemandedWork(jobs=jobs, groups=dict.fromkeys(groups, part))


def stamps(found: list[SurplusPilot]) -> list[str]:
    return [each.pilot.stamp for each in found]


def test_waiting_pilots_of_a_group_without_jobs_serve_no_job() -> None:
    pilots = {
        EL9: [waiting(number, 5) for number in range(4)],
        ANY: [waiting(number, 5) for number in (7, 8)],
    }
    found = surplus.list_surplus(pilots, [waiting(9, 5)], [work(20, ANY)], (), SOON, NOW)

    assert stamps(found) == [f"north.any.{number}" for number in (0, 1, 2, 3, 9)]
    assert surplus.describe(found) == [
        f"1 waiting pilot of {QUEUE} serves no job",
        f"4 waiting pilots of {QUEUE} (--constraint=el9) serve no job",
    ]


def test_one_leaves_where_all_avoid_a_node_that_a_new_pilot_may_take() -> None:
    place, pilots = ("cms", QUEUE), [waiting(1, 9), waiting(2, 7), waiting(3, 8)]
    of_all: dict[str, Sequence[str]] = {each.stamp: ("n1", "n2") for each in pilots}

    def leaving(avoided: dict[str, Sequence[str]], *kept_from: str) -> list[SurplusPilot]:
        return surplus.list_for_nodes({place: pilots}, avoided, {place: kept_from})

    found = leaving(of_all, "n2")
    assert stamps(found) == ["north.any.2"], "the youngest"
    assert surplus.describe(found) == [f"1 waiting pilot of {QUEUE} avoids a node that may be tried again"]
    assert stamps(leaving(of_all)) == ["north.any.2"]
    assert leaving(of_all, "n1", "n2") == [], "new ones avoid them, too"
    assert leaving(of_all | {"north.any.1": ("n2",)}, "n2") == [], "one waits that may run there"
    assert leaving({"north.any.1": ("n1",), "north.any.2": ("n1",)}) == [], "of one nothing is known"
    assert surplus.list_for_nodes({}, of_all, {}) == []


def test_the_youngest_of_too_many_go_and_those_that_run_stay() -> None:
    pilots = [waiting(1, 9), waiting(2, 7), waiting(3, 8), replace(waiting(4, 1), status=Status.RUNNING)]

    found = surplus.list_surplus({ANY: pilots}, [], [work(2, ANY)], (), SOON, NOW)

    assert stamps(found) == ["north.any.2"]


def test_pilots_that_were_sent_beside_late_ones_are_not_too_many() -> None:
    """Four jobs, four pilots that have waited for an hour: where cores are free, four more were sent."""
    late, prompt = (
        [waiting(number, 60) for number in range(4)],
        [waiting(number, 1) for number in range(5, 9)],
    )

    assert surplus.list_unneeded([*late, *prompt], 4, SOON, NOW) == []
    assert surplus.list_unneeded([*late, *prompt], 3, SOON, NOW) == late[3:] + prompt[3:]
    assert surplus.list_unneeded([*late, *prompt], 0, SOON, NOW) == [*late, *prompt]


@given(
    jobs=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 8)), min_size=1, max_size=4),
    ages=st.lists(st.floats(0.1, 600), max_size=30),
    room=st.integers(0, 60),
    is_full=st.booleans(),
)
def test_what_the_plan_has_just_sent_is_never_too_many(
    jobs: list[tuple[int, int]], ages: list[float], room: int, *, is_full: bool
) -> None:
    """No pilot is withdrawn and sent again in turns, whatever waits and however long."""
    works = [work(number, ANY, part=1 / in_slot) for number, in_slot in jobs]
    wanted = surplus.count_wanted(works)[ANY]
    there = [waiting(number, age) for number, age in enumerate(ages)]
    there = [each for each in there if each not in surplus.list_unneeded(there, wanted, SOON, NOW)]
    prompt, late = recorded_pilots.count_slots(there, replace(SLOT, is_full=is_full), NOW)
    rooms = {("cms", QUEUE): QueueRoom(pilots=room, free=0 if is_full else None)}
    situation = DemandSituation(work=works, rooms=rooms, there={ANY: prompt}, late={ANY: late})
    new = demand.decide_pilots(situation, random.Random(0)).new.get(ANY, 0)
    sent = [waiting(100 + number, 0) for number in range(new)]

    assert surplus.list_unneeded([*there, *sent], wanted, SOON, NOW) == []


def test_wanted_are_the_slots_that_all_jobs_of_a_group_fill() -> None:
    found = surplus.count_wanted([work(5, ANY, EL9, part=1 / 2), work(1, ANY)])

    assert found == {ANY: math.ceil(5 / 2) + 1, EL9: 3}


def test_the_youngest_of_the_largest_group_makes_room_for_a_group_without_a_place() -> None:
    pilots = {EL9: [waiting(1, 9), waiting(2, 5), waiting(3, 7)], ANY: [waiting(4, 9)]}
    other = TargetGroup(vo="dune", queues=(QUEUE,))

    found = surplus.list_for_room({QUEUE: [other]}, pilots, [], NOW)

    assert stamps(found) == ["north.any.2"]
    assert surplus.describe(found) == [
        f"1 waiting pilot of {QUEUE} (--constraint=el9) makes room for jobs of others"
    ]
    assert stamps(surplus.list_for_room({QUEUE: [other, other]}, pilots, [], NOW)) == [
        "north.any.2",
        "north.any.3",
    ]


def test_where_surplus_pilots_leave_a_place_no_other_pilot_makes_room() -> None:
    pilots = {EL9: [waiting(1, 9), waiting(2, 5)]}
    full = {QUEUE: [TargetGroup(vo="dune", queues=(QUEUE,))]}
    leaving = surplus.list_surplus(pilots, [], [work(1, EL9)], full, SOON, NOW)

    assert len(leaving) == 1
    assert surplus.list_for_room(full, pilots, leaving, NOW) == []


def test_pilots_that_may_still_start_and_the_only_one_of_a_group_keep_their_places() -> None:
    pair, one = [waiting(1, 1), waiting(2, 1)], [waiting(1, 600)]
    for own, is_kept in ((pair, True), ([waiting(1, 3), waiting(2, 1)], False), (one, True)):
        assert (surplus.choose_for_room({EL9: own}, NOW) is None) is is_kept


def test_groups_without_a_place_come_before_those_that_have_one() -> None:
    limits = surplus.limit_by_places([ANY], {EL9: [waiting(1, 5)]}, lambda _: 3)

    assert limits == {EL9: 2}
    assert surplus.limit_by_places([ANY], {EL9: []}, lambda _: 3) == {}
    assert surplus.limit_by_places([EL9], {EL9: [waiting(1, 5)]}, lambda _: 3) == {}


def test_a_pilot_is_withdrawn_after_it_was_too_many_for_a_while_without_a_break() -> None:
    ticks = [0.0]
    memory = SurplusMemory(evidence=Evidence(listings=3, seconds=120), clock=lambda: ticks[0])
    one = SurplusPilot(pilot=waiting(1, 5), where=QUEUE, why=("serves no job", "serve no job"))

    def look(*found: SurplusPilot, seconds: float = 60) -> int:
        ticks[0] += seconds
        return len(memory.list_proven(found))

    assert [look(one) for _ in range(3)] == [0, 0, 1]
    assert [look(), look(one), look(one), look(one)] == [0, 0, 0, 1], "it served a job in between"
    memory.list_proven([])
    assert [look(one, seconds=5) for _ in range(9)] == [0] * 9, "short cycles"


def test_where_nobody_waits_for_its_place_a_pilot_stays_while_a_ban_may_end() -> None:
    ticks = [0.0]
    memory = SurplusMemory(evidence=Evidence(listings=3, seconds=120), clock=lambda: ticks[0])
    pilots = {EL9: [waiting(1, 5)]}

    def look(*full: str) -> int:
        ticks[0] += 60
        found = surplus.list_surplus(pilots, [], [], full, SOON, NOW)
        return len(memory.list_proven(found))

    assert [look() for _ in range(15)] == [0] * 15
    assert look() == 1
    memory.list_proven([])
    assert [look(QUEUE) for _ in range(3)] == [0, 0, 1]
