"""When what is remembered may be told without a look."""

import pytest

from matcher.index.waiting import FeedFreshness
from tests.support.clocks import ManualClock


@pytest.fixture
def time() -> ManualClock:
    return ManualClock(100.0)


def test_it_is_not_good_before_the_first_look_has_ended(time: ManualClock) -> None:
    freshness = FeedFreshness(time)
    assert not freshness.is_good
    freshness.begin()
    assert not freshness.is_good


def test_a_look_is_good_for_a_second_from_its_beginning(time: ManualClock) -> None:
    freshness = FeedFreshness(time)
    begun = freshness.begin()
    time.now += 0.75
    freshness.end(begun)
    assert freshness.is_good
    time.now += 0.25
    assert not freshness.is_good


def test_a_ring_ends_it_until_the_next_look(time: ManualClock) -> None:
    freshness = FeedFreshness(time)
    freshness.end(freshness.begin())
    freshness.notify()
    assert not freshness.is_good
    freshness.end(freshness.begin())
    assert freshness.is_good


def test_a_ring_during_a_look_may_be_for_what_that_did_not_see(time: ManualClock) -> None:
    freshness = FeedFreshness(time)
    begun = freshness.begin()
    freshness.notify()
    freshness.end(begun)
    assert not freshness.is_good
