"""What explanations believe that a pilot will offer is what it offers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matcher.conditions import CONDITIONS
from matcher.request import match_request, queue_offer
from pilotage.fabric.pilot import offer
from pilotage.fabric.pilot.settings import JobFilters, QueuePlace, Slot
from requirements.values import fold

parameters = st.fixed_dictionaries(
    {"MaxRAMPerCore": st.integers(1, 10_000)},  # else a pilot offers what it finds on its node
    optional={
        "MaxRAM": st.integers(1, 100_000),
        "maxCPUTime": st.integers(0, 10**5),
        "SI00": st.floats(0, 10**4) | st.integers(0, 10**9) | st.just("fast"),
        "CPUTime": st.integers(300, 10**6),
        "maxWallClockTime": st.integers(300, 10**6),
        "CPUNormalizationFactor": st.floats(0, 100) | st.integers(0, 10**7) | st.just("fast"),
        "NumberOfProcessors": st.integers(0, 64),
        "GPUs": st.integers(0, 8),
        "NumberOfGPUs": st.integers(0, 8),
        "Platform": st.sampled_from(["el9", ("el8", "el9")]),
        "Tag": st.sampled_from(["gpu", ("gpu", "Fast")]),
        "WholeNode": st.booleans(),
        "MaxScratch": st.integers(0, 10**6),
        "Architecture": st.sampled_from(["x86_64", "aarch64"]),
        "Country": st.just("CH"),
    },
)


@given(parameters)
def test_a_queue_offers_what_its_pilot_will(values):
    place = QueuePlace(site="A.B.ch", ce="ce", queue="q")
    told = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    made = offer.make_offer(place, Slot(), JobFilters(), told)
    said = made.at(0)
    pilots = match_request.read_resource(
        {key: value for key, value in said.items() if key not in ("Site", "GridCE", "Queue")}
    )
    open_offer = queue_offer.leave_open(pilots.resource, is_normalised=made.measured_power is not None)
    assert queue_offer.build_resource(values) == open_offer
    assert pilots.resource.gpus == (values.get("GPUs") or values.get("NumberOfGPUs", 0))


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ({"maxCPUTime": 60, "SI00": 250}, 3600),
        ({"maxCPUTime": 10_080, "SI00": 3000}, 7_257_600),
        ({"maxCPUTime": 60}, 3600),
        ({"maxCPUTime": 60, "CPUNormalizationFactor": 2, "SI00": 3000}, 7200),
        ({"maxCPUTime": 60, "CPUTime": 100, "SI00": 3000}, 100),
        ({"maxCPUTime": 60, "maxWallClockTime": 600, "SI00": 500}, 1200),
        ({"maxWallClockTime": 600, "SI00": 500}, 600),
    ],
)
def test_minutes_of_the_batch_queue_limit_cpu_time(values: dict[str, int], seconds: int) -> None:
    assert queue_offer.build_resource(values).cpu_time == seconds


@pytest.mark.parametrize(
    ("values", "megabytes"),
    [
        ({"MaxRAMPerCore": 2000, "NumberOfProcessors": 8}, 16_000),
        ({"MaxRAMPerCore": 2000, "MaxRAM": 3000}, 3000),
    ],
)
def test_memory_of_each_core_makes_that_of_the_slot(values: dict[str, int], megabytes: int) -> None:
    assert queue_offer.build_resource(values).max_ram == megabytes


def test_offers_are_told_apart_by_each_parameter_that_a_condition_reads() -> None:
    of_offers = {fold(name) for row in CONDITIONS for name in row.parameters} - {"se"}  # a site's
    assert of_offers <= set(queue_offer.READ)
