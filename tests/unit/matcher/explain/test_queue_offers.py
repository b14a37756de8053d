"""What explanations believe that a pilot will offer is what it offers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config.tree.parameters import is_known
from matcher import conditions
from matcher.conditions import CONDITIONS
from matcher.request import match_request, queue_offer
from pilotage.fabric.pilot import offer
from pilotage.fabric.pilot.settings import JobFilters, QueuePlace, Slot
from requirements.requirement_class import RequirementClass
from requirements.values import Value, fold

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
        "GPUArchitecture": st.sampled_from(["sm_75", "sm_89", "fast"]),
        "GPUMemory": st.integers(0, 10**5) | st.just("16 GB"),
        "CPUPowerDB12": st.floats(0, 100),
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
    assert set(queue_offer.READ) - of_offers == {"jobtype"}  # of gateways only, which state it themselves


def test_each_parameter_that_offers_are_computed_from_is_one_of_the_system() -> None:
    assert [name for name in queue_offer.READ if not is_known(name)] == []


def test_the_gpus_that_a_queue_states_narrow_it_to_jobs_for_them() -> None:
    asked = RequirementClass(
        vo="lhcb",
        cpu_time=0,
        gpus=1,
        gpu_vendor="nvidia",
        gpu_architecture="sm_89",
        gpu_memory_mb=16_000,
        gpu_runtime="12.2",
    )

    def serves(**stated: Value) -> bool:
        return conditions.fits(asked, queue_offer.build_resource({"GPUs": 2, **stated}))

    assert serves(), "its nodes decide"
    assert serves(GPUVendor="nvidia", GPUArchitecture="sm_90", GPUMemory=80_000)
    assert not serves(GPUArchitecture="sm_75")
    assert not serves(GPUMemory=15_000)
    assert not serves(GPUVendor="amd")
    assert serves(GPURuntime=12.2)
    assert not serves(GPURuntime=11.8), "YAML reads a version without quotes as a number"
    assert serves(GPUArchitecture="fast", GPUMemory="16 GB"), "values of another meaning state nothing"


def test_a_closed_offer_has_nothing_that_only_nodes_decide() -> None:
    asked = RequirementClass(vo="lhcb", cpu_time=0, architecture="x86_64", cpu_level="x86-64-v3")
    offered = queue_offer.build_resource({"Architecture": "x86_64"})
    assert conditions.refusals(asked, offered, ()) == ()
    assert conditions.refusals(asked, queue_offer.close(offered), ()) == ("cpu_features",)
    assert {each.name for each in conditions.CONDITIONS} >= queue_offer.LEFT_TO_NODES
