"""What explanations believe that a pilot will offer is what it offers."""

from hypothesis import given
from hypothesis import strategies as st

from matcher.request import match_request, queue_offer
from pilotage.fabric.pilot import offer
from pilotage.fabric.pilot.settings import JobFilters, QueuePlace, Slot

parameters = st.fixed_dictionaries(
    {"MaxRAM": st.integers(1, 100_000)},
    optional={
        "CPUTime": st.integers(300, 10**6),
        "maxWallClockTime": st.integers(300, 10**6),
        "CPUNormalizationFactor": st.floats(0, 100) | st.integers(0, 10**7) | st.just("fast"),
        "NumberOfProcessors": st.integers(0, 64),
        "GPUs": st.integers(0, 8),
        "NumberOfGPUs": st.integers(0, 8),
        "Platform": st.sampled_from(["el9", ("el8", "el9")]),
        "Tag": st.sampled_from(["gpu", ("gpu", "Fast")]),
        "WholeNode": st.booleans(),
        "Country": st.just("CH"),
    },
)


@given(parameters)
def test_a_queue_offers_what_its_pilot_will(values):
    place = QueuePlace(site="A.B.ch", ce="ce", queue="q")
    told = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    said = offer.make_offer(place, Slot(), JobFilters(), told).at(0)
    pilots = match_request.read_resource(
        {key: value for key, value in said.items() if key not in ("Site", "GridCE", "Queue")}
    )
    assert queue_offer.build_resource(values) == pilots.resource
    assert pilots.resource.gpus == (values.get("GPUs") or values.get("NumberOfGPUs", 0))
