"""How long jobs would have run of which that is not known, by made records whose truth is known."""

from collections.abc import Iterable
from datetime import UTC, datetime
from random import Random
from statistics import fmean

import pytest

from pilotage.replay.recorded_day import JobKind, Stay
from pilotage.replay.simulation import RunTimes

BEGIN = datetime(2026, 3, 28, tzinfo=UTC)


def make(seconds: float | None, *, has_ended: bool = True, digest: str = "short", group: str = "mc") -> Stay:
    kind = JobKind("lhcb", "ada", group, digest, None, 1.0, "", "")
    return Stay(
        job_id=1, kind=kind, since=BEGIN, until=None, seconds=seconds, has_ended=has_ended and bool(seconds)
    )


class Fixed(Random):
    """Draws what it is given."""

    def __init__(self, drawn: Iterable[float]) -> None:
        super().__init__(0)
        self._drawn = iter(drawn)

    def random(self) -> float:
        return next(self._drawn)


def draw(stay: Stay, among: Iterable[Stay], *drawn: float) -> list[float]:
    """What comes of equally likely draws, the longest times first."""
    times, random = RunTimes([*among, stay]), Fixed(drawn)
    return [times.draw(stay, random) for _ in drawn]


FIVE = (0.1, 0.3, 0.5, 0.7, 0.9)


def test_a_job_that_has_ended_takes_as_long_as_it_did() -> None:
    assert draw(make(30.0), [make(10.0)], 0.5) == [30.0]


def test_one_that_runs_takes_longer_than_it_has_so_far() -> None:
    ended = [make(each) for each in (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0)]
    assert draw(make(25.0, has_ended=False), ended, *FIVE) == [70, 60, 50, 40, 30]


def test_one_that_never_ran_is_like_those_that_run_as_well() -> None:
    """Of ten four took 10 s; of those that took longer one is known, so each of the others counts for six."""
    others = [*[make(10.0)] * 4, *[make(20.0, has_ended=False)] * 5, make(90.0)]
    assert draw(make(None), others, 0.0, 0.59, 0.61, 0.99) == [90, 90, 10, 10]


def test_few_of_a_class_are_taken_from_its_group_and_few_of_that_from_the_vo() -> None:
    like = [make(each, digest="other") for each in (100.0, 200.0, 300.0, 400.0, 500.0)]
    running = make(25.0, has_ended=False)
    assert draw(running, [make(30.0), *like], *FIVE)[:1] == [500]
    others = [make(each.seconds, group="user") for each in like]
    assert draw(running, [make(30.0), *others], *FIVE)[:1] == [500]


def test_beyond_all_that_ended_it_takes_a_mean_longer() -> None:
    """One of four has ended, after 20 s, and the others are at it for 50 s: one end in 170 s."""
    running = make(50.0, has_ended=False)
    times = RunTimes([make(20.0), running, running, running])
    many = [times.draw(running, Random(seed)) for seed in range(2000)]
    assert min(many) > 50
    assert fmean(many) == pytest.approx(50 + 170, rel=0.1)


def test_without_any_that_ended_it_is_an_hour_more() -> None:
    running = make(50.0, has_ended=False)
    times = RunTimes([running])
    many = [times.draw(running, Random(seed)) for seed in range(2000)]
    assert fmean(many) == pytest.approx(50 + 3600, rel=0.1)


def test_a_record_that_ends_while_jobs_run_tells_their_mean() -> None:
    """Starts all along an hour, 20 min of run time in the mean; the ended ones took 13 in the mean."""
    truth, random = Random(5), Random(0)
    real = [truth.expovariate(1 / 1200) for _ in range(4000)]
    left = [truth.uniform(0, 3600) for _ in real]
    seen = [make(min(each, most), has_ended=each <= most) for each, most in zip(real, left, strict=True)]
    ended = [each.seconds for each in seen if each.has_ended and each.seconds is not None]
    assert fmean(ended) < 0.7 * fmean(real)
    times = RunTimes(seen)
    assert fmean(times.draw(each, random) for each in seen) == pytest.approx(fmean(real), rel=0.03)
