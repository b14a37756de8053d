"""Which nodes new pilots are kept from."""

from dataclasses import replace
from datetime import timedelta

from pilotage.fabric.director.bad_nodes import BadNodes, find_bad_nodes
from pilotage.fabric.director.recorded_pilots import DirectorPilot, Status
from tests.support.factories.director_pilots import NOW, pilot


def ended(stamp: str, minutes: float, *, status: Status = Status.ABORTED, jobs: int = 0) -> DirectorPilot:
    at = NOW - timedelta(minutes=minutes)
    one = pilot(stamp, queue="LCG.A.org/ce1/short", status=status)
    return replace(one, created_at=at, updated_at=at, jobs=jobs, ended_jobs=jobs)


def test_a_node_is_bad_as_long_as_the_last_pilot_there_broke() -> None:
    nodes = {"a": "n1", "b": "n1", "c": "n2", "d": "n2", "e": "n3", "f": "n4"}
    pilots = [
        ended("a", 9, status=Status.DONE, jobs=3),
        ended("b", 2),
        ended("c", 9),
        ended("d", 2, status=Status.DONE, jobs=1),
        ended("e", 30),
        ended("f", 61),
        ended("of no known node", 1),
    ]

    found = find_bad_nodes(pilots, nodes, NOW)

    assert found == BadNodes(lately=("n1",), due=("n3",))


def test_one_of_several_pilots_may_try_a_node_where_none_broke_for_minutes() -> None:
    bad = BadNodes(lately=("n1",), due=("n3", "n2"))

    assert [bad.avoided_by(number) for number in range(3)] == [("n1",), *[("n1", "n3", "n2")] * 2]
    assert BadNodes().avoided_by(0) == ()


def test_a_pilot_that_ended_without_a_job_shows_nothing_about_its_node() -> None:
    empty = ended("b", 2, status=Status.DONE)

    assert find_bad_nodes([ended("a", 3), empty], {"a": "n1", "b": "n1"}, NOW).lately == ("n1",)
    assert find_bad_nodes([empty], {"b": "n1"}, NOW) == BadNodes()
    refused = replace(ended("c", 1, status=Status.FAILED), empty_reason="node_excluded")
    assert find_bad_nodes([refused], {"c": "n1"}, NOW).lately == ("n1",)


def test_a_submission_names_no_more_nodes_than_fit() -> None:
    pilots = [ended(f"p{number}", number / 2) for number in range(100)]
    nodes = {f"p{number}": f"n{number}" for number in range(100)}

    found = find_bad_nodes(pilots, nodes, NOW)

    assert len(found.avoided_by(1)) == 50
    assert found.avoided_by(1)[0] == "n0", "the latest first"
