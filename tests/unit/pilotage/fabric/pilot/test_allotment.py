"""Payloads never get more of a slot than there is."""

from hypothesis import given
from hypothesis import strategies as st

from pilotage.fabric.pilot import allotment
from pilotage.fabric.pilot.allotment import Allotment, JobNeed, SlotRoom

SLOT = Allotment(8, 16_000, ("0", "1"))

needs = st.builds(
    JobNeed,
    processors=st.integers(1, 10),
    ram_mb=st.none() | st.integers(0, 20_000),
    gpus=st.integers(0, 3),
    whole_node=st.booleans(),
)


@given(st.lists(st.lists(needs, max_size=4), max_size=6), st.randoms(use_true_random=False))
def test_what_is_taken_and_what_is_left_are_the_slot(rounds, chance):
    room, taken = SlotRoom(SLOT), []
    for asked in rounds:
        taken += room.take({str(number): each for number, each in enumerate(asked)}).values()
        chance.shuffle(taken)
        for _ in range(len(taken) // 2):
            room.give_back(taken.pop())
        everything = [room.free, *taken]
        assert sum(each.processors for each in everything) == 8
        assert sum(each.ram_mb for each in everything) == 16_000
        assert sorted(gpu for each in everything for gpu in each.gpus) == ["0", "1"]
        assert room.is_empty is (not taken)


def test_memory_that_nobody_asked_for_goes_with_the_processors() -> None:
    shares = SlotRoom(SLOT).take({"a": JobNeed(), "b": JobNeed(processors=3), "c": JobNeed(ram_mb=2000)})
    assert shares["c"].ram_mb == 2000
    assert (shares["a"].ram_mb, shares["b"].ram_mb) == (2000, 6000)


def test_a_whole_node_is_all_of_it() -> None:
    room = SlotRoom(SLOT)
    assert room.take({"a": JobNeed(whole_node=True)})["a"] == Allotment(
        8, 16_000, ("0", "1"), whole_node=True
    )
    assert room.is_full


def test_without_memory_nothing_more_fits() -> None:
    room = SlotRoom(SLOT)
    room.take({"a": JobNeed(ram_mb=16_000)})
    assert room.free.processors == 7
    assert room.is_full
    unknown = SlotRoom(Allotment(8))
    unknown.take({"a": JobNeed(ram_mb=16_000)})
    assert not unknown.is_full


def test_what_the_service_allots_counts_before_what_the_job_asks() -> None:
    asked = {"NumberOfProcessors": 2, "wholenode": True}
    assert allotment.job_need(asked, processors=4, ram_mb=100, gpus=1) == JobNeed(4, 100, 1, whole_node=True)
    assert allotment.job_need(asked, processors=None, ram_mb=None, gpus=None) == JobNeed(2, whole_node=True)
    assert (
        allotment.job_need({"NumberOfProcessors": "x"}, processors=None, ram_mb=None, gpus=None) == JobNeed()
    )
