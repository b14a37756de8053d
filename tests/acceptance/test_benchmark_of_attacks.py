"""The benchmark of attacks on another VO, with few jobs and for moments."""

from benchmarks import hostile


def test_the_other_vo_gets_its_jobs_beside_what_is_never_read() -> None:
    [measured] = hostile.measure(["answers are not read"], seconds=0.5, waiting=4_000, turns=1)
    assert measured.flaws == []
    assert measured.targets.keys() == {"hostile", "hostile longest"}
    assert measured.targets["hostile longest"] > 0
