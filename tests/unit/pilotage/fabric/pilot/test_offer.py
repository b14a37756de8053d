from typing import Any

import pytest

from matcher.request import match_request
from pilotage.fabric.pilot import offer
from pilotage.fabric.pilot.offer import Offer
from pilotage.fabric.pilot.settings import JobFilters, QueuePlace, Slot, SlotLimits

PLACE = QueuePlace("LCG.CERN.ch", "ce01", "long")


def made(
    parameters: dict[str, Any] | None = None,
    slot: Slot = Slot(),  # noqa: B008
    wishes: JobFilters = JobFilters(),  # noqa: B008
) -> Offer:
    return offer.make_offer(PLACE, slot, wishes, parameters or {})


def test_an_offer_says_where_it_is() -> None:
    said = made().at(0)

    assert (said["Site"], said["GridCE"], said["Queue"]) == ("LCG.CERN.ch", "ce01", "long")


def test_the_parameters_of_the_queue_are_offered() -> None:
    parameters = {"CPUTime": 1000, "MaxRAM": 2000, "NumberOfProcessors": 8, "Tag": ["GPU"], "platform": "x86"}

    said = made(parameters).at(0)

    assert said["CPUTime"] == 1000
    assert said["MaxRAM"] == 2000
    assert said["NumberOfProcessors"] == 8
    assert said["Tag"] == ["GPU"]
    assert said["Platform"] == "x86"


def test_what_was_told_wins_over_the_parameters_of_the_queue() -> None:
    slot = Slot(cpu_time=50, max_ram=100, processors=2, platform="arm", tags=("Mine",))

    said = made({"CPUTime": 1000, "MaxRAM": 2000, "NumberOfProcessors": 8, "Tag": "GPU"}, slot).at(0)

    assert (said["CPUTime"], said["MaxRAM"], said["NumberOfProcessors"]) == (50, 100, 2)
    assert said["Platform"] == "arm"
    assert said["Tag"] == ["Mine", "GPU"]


def test_the_tags_that_a_queue_requires_of_jobs_are_offered_too() -> None:
    said = made({"Tag": ["Fast"], "RequiredTag": ["GPU"]}, Slot(required_tags=("Mine",))).at(0)

    assert (said["Tag"], said["RequiredTag"]) == (["Fast", "Mine", "GPU"], ["Mine", "GPU"])
    assert match_request.read_resource(said).resource.required_tags == {"gpu", "mine"}


@pytest.mark.parametrize("nonsense", ["many", None, True, [1], -5, 0, float("nan"), float("inf")])
def test_a_parameter_that_is_no_number_counts_as_not_set(nonsense: object) -> None:
    assert made({"NumberOfProcessors": nonsense}).at(0)["NumberOfProcessors"] == 1


def test_nothing_is_said_of_what_nobody_knows() -> None:
    said = made().at(0)

    assert set(said) == {"Site", "GridCE", "Queue", "CPUTime", "NumberOfProcessors", "MaxRAM", "NodeFacts"}
    assert said["CPUTime"] == 259_200


def test_the_cpu_time_shrinks_in_steps_as_the_slot_ends() -> None:
    made_offer = made({"maxWallClockTime": 7200})

    said = [made_offer.at(elapsed)["CPUTime"] for elapsed in (0, 299, 300, 301, 7000, 9000)]
    assert said == [7200, 7200, 6900, 6600, 0, 0]


def test_no_job_begins_shortly_before_the_end_of_the_slot() -> None:
    assert made({"maxWallClockTime": 7200}).is_over(299)
    assert not made({"maxWallClockTime": 7200}).is_over(301)
    assert not made({"maxWallClockTime": 100}).is_over(30)
    assert not made().is_over(0)


def test_the_cpu_time_stays_where_the_slot_has_no_end() -> None:
    assert made(slot=Slot(cpu_time=100)).at(1e6)["CPUTime"] == 100


def test_a_slot_that_outlasts_the_limit_of_a_job_offers_the_limit() -> None:
    slot = Slot(cpu_time=100, lifetime=100_000)

    assert made(slot=slot).at(50_000)["CPUTime"] == 100


def test_wishes_are_passed_on() -> None:
    wishes = JobFilters(
        vo="cms", pools=("a", "b"), owner_groups=("cms_prod",), job_types=("Test",), reference="17"
    )

    said = made(wishes=wishes).at(0)

    assert said["VO"] == "cms"
    assert said["SubmitPool"] == ["a", "b"]
    assert said["OwnerGroup"] == ["cms_prod"]
    assert said["JobType"] == ["Test"]
    assert said["PilotReference"] == "17"


def test_seconds_left_never_get_negative() -> None:
    assert made(slot=Slot(lifetime=10)).seconds_left(20) == 0
    assert made().seconds_left(20) is None


def test_free_disk_is_offered_but_granted_only_if_somebody_states_it() -> None:
    free = Slot(free_disk=50_000, whole_node=True)
    assert (made({}, free).scratch, made({}, free).granted_scratch) == (50_000, None)
    assert made({"MaxScratch": 4000}, free).granted_scratch == 4000
    granted = Slot(free_disk=50_000, limits=SlotLimits(scratch=3000))
    assert made({"MaxScratch": 4000}, granted).granted_scratch == made({}, granted).granted_scratch == 3000
