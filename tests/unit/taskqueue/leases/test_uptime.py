"""Silence counts only while the service was up."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from taskqueue.leases import uptime
from taskqueue.leases.uptime import Interval, Uptime

BEGIN = datetime(2026, 3, 28, 12, 0, tzinfo=UTC)
LONG = 60


def at(second: int) -> datetime:
    return BEGIN + timedelta(seconds=second)


def up(*spans: tuple[int, int]) -> Uptime:
    return Uptime(Interval(since=at(since), until=at(until)) for since, until in spans)


def test_a_service_that_is_up_all_the_time_is_as_a_clock() -> None:
    assert up((0, 100)).go_back(at(100), seconds=30) == at(70)


def test_time_in_which_nobody_was_up_does_not_count() -> None:
    assert up((0, 20), (50, 60)).go_back(at(60), seconds=15) == at(15)


def test_two_processes_at_once_are_up_once() -> None:
    assert up((0, 30), (10, 40), (5, 8)).go_back(at(40), seconds=40) == at(0)


def test_since_the_last_record_nothing_counts() -> None:
    assert up((0, 30)).go_back(at(99), seconds=10) == at(20)


def test_what_is_recorded_later_than_now_does_not_count() -> None:
    assert up((0, 30), (40, 50)).go_back(at(20), seconds=10) == at(10)


def test_where_nothing_was_recorded_nobody_is_silent() -> None:
    assert up().go_back(at(99), seconds=1) == uptime.NEVER
    assert up((0, 9)).go_back(at(99), seconds=10) == uptime.NEVER


def seconds_of(found: Uptime, since: int, until: int) -> set[int]:
    """Seconds that begin in its parts between two times."""
    return {
        second
        for part in found.clip(at(since), at(until))
        for second in range(LONG)
        if part.since <= at(second) < part.until
    }


_SPANS = st.lists(
    st.tuples(st.integers(0, LONG), st.integers(0, LONG)).map(lambda two: (min(two), max(two))), max_size=6
)


@given(spans=_SPANS, now=st.integers(0, LONG), heard=st.integers(0, LONG), seconds=st.integers(1, LONG))
def test_who_was_heard_of_before_was_silent_for_so_long_and_nobody_else(
    spans: Sequence[tuple[int, int]], now: int, heard: int, seconds: int
) -> None:
    silence = sum(any(since <= each < until for since, until in spans) for each in range(heard, now))
    found = up(*spans).go_back(at(now), seconds=seconds)
    assert (at(heard) <= found) == (silence >= seconds)


@given(spans=_SPANS, others=_SPANS, since=st.integers(0, LONG), until=st.integers(0, LONG))
def test_its_part_within_other_times_has_the_seconds_of_both(
    spans: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]], since: int, until: int
) -> None:
    both = up(*spans).restrict(Interval(since=at(begin), until=at(end)) for begin, end in others)
    wanted = {
        second
        for second in range(since, until)
        if all(any(begin <= second < end for begin, end in each) for each in (spans, others))
    }
    assert seconds_of(both, since, until) == wanted
