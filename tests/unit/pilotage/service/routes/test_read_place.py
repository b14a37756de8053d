"""What is stated is read once for all requests of a node that differ in the wall time left only."""

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from cs_config import validate
from matcher.index import place_pools
from matcher.request import match_request
from pilotage.service.models.matching import JobRequest
from pilotage.service.routes import matcher as route
from pilotage.service.routes.matcher import RequestedJobs
from requirements.errors import InvalidResource
from requirements.resource import StatedResource

CONFIG = validate.parse("Resources: {Sites: {A.B.ch: {CEs: {ce: {Queues: {long: {}}}}}}}")
NODE: Mapping[str, object] = {
    "site": "a.b.ch",
    "GridCE": "CE",
    "Queue": "long",
    "system": {"name": "Linux"},
    "wall_time": 3600,
    "cpu_power_db12": 23.5,
    "cpu": {
        "num_nodes": 1,
        "num_cores": 8,
        "ram_mb": 16000,
        "architecture": {"name": "x86_64", "features": ["avx2", "sse4_2"]},
    },
    "gpu": {"count": 0},
    "io": {"scratch_mb": 5000},
    "tags": ["cvmfs:lhcb"],
    "Colour": "red",
}
STRONGER: Mapping[str, object] = {**NODE, "cpu_power_db12": 10**5}


def _read(stated: Mapping[str, object]) -> StatedResource:
    asked = RequestedJobs.from_body(JobRequest.model_validate(stated))
    return route._read_place(asked, CONFIG, is_cached=len(asked.stated) <= route._CACHED_LENGTH)[0]


def _read_anew(stated: Mapping[str, object]) -> StatedResource:
    return place_pools.respell_place(match_request.read_resource(stated), CONFIG)


def _find_result(
    read: Callable[[Mapping[str, object]], StatedResource], stated: Mapping[str, object]
) -> StatedResource | str:
    try:
        return read(stated)
    except InvalidResource as error:
        return str(error)


@given(
    times=st.lists(
        st.integers(0, 10**12) | st.floats(0, 10**12, allow_nan=False) | st.none() | st.just(-1), max_size=4
    ),
    beside=st.sampled_from([{}, {"CPUTime": 5}, {"walltime": 60}, {"WallTimes": 60}, {"cputime": 3600 * 23}]),
    node=st.sampled_from([NODE, STRONGER]),
)
def test_a_known_node_is_read_as_a_new_one(
    times: list[object], beside: Mapping[str, object], node: Mapping[str, object]
) -> None:
    for time in (3600, *times):
        stated = {**node, **beside, "wall_time": time}
        assert _find_result(_read, stated) == _find_result(_read_anew, stated)


def test_a_node_without_its_time_is_refused_as_before() -> None:
    _read(NODE)
    with pytest.raises(InvalidResource, match="wall_time"):
        _read({name: value for name, value in NODE.items() if name != "wall_time"})


def test_other_times_of_a_node_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    node = {**NODE, "Colour": "blue"}
    _read(node)
    monkeypatch.setattr(match_request, "read_resource", None)
    assert _read({**node, "wall_time": 60}).resource.wall_time == 60


def test_long_documents_are_read_each_time() -> None:
    before = len(route._places.items())
    for number in range(3):
        long = {**NODE, "tags": [f"{number}:{each}" for each in range(2000)]}
        assert _read(long) == _read_anew(long)
        assert len(to_json(long)) > route._CACHED_LENGTH
    assert len(route._places.items()) == before
