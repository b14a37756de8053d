from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config.tree.address import QueueAddress
from matcher.explain import eligible_queues
from requirements.classad.expression import parse_expression
from requirements.values import Value

NONE: Mapping[str, Value] = {}


def queue(name: str) -> QueueAddress:
    return QueueAddress(site="S", ce="C", queue=name)


def order(ads: Mapping[str, Mapping[str, Value]], rank: str | None = None, seed: int = 1) -> str:
    asked = None if rank is None else parse_expression(rank)
    queues = [(queue(name), ad) for name, ad in ads.items()]
    return "".join(
        each.queue.queue for each in eligible_queues.rank_queues(queues, asked, {"cputime": 10}, Random(seed))
    )


@pytest.mark.parametrize(
    ("rank", "seen"),
    [
        ("other.SI00", "cab"),
        ("-other.SI00", "bac"),
        ("other.SI00 > 150 ? 1.5 : 0.5 + other.SI00", "abc"),
    ],
)
def test_the_highest_comes_first(rank: str, seen: str) -> None:
    assert order({"a": {"SI00": 100}, "b": {"SI00": 50}, "c": {"si00": 200}}, rank) == seen


def test_what_is_no_number_comes_last() -> None:
    ads: dict[str, Mapping[str, Value]] = {"a": {}, "b": {"X": -1000}, "c": {"X": 1e300}}
    assert order(ads, "other.X * 1.0") == "cba"
    assert order({"a": {"X": True}, "b": {"X": -5}}, "other.X") == "ba"
    assert order({"a": {"X": "text"}, "b": {"X": -5}}, "other.X + 1") == "ba"


def test_a_queue_ranks_itself_where_the_job_does_not() -> None:
    ads: dict[str, Mapping[str, Value]] = {
        "a": {"Rank": 15},
        "b": {"Rank": "other.CPUTime * Factor", "Factor": 2},
        "c": {"rank": "CPUTime"},
        "d": {},
    }
    assert order(ads) == "bacd"
    assert order(ads, "Factor =?= undefined ? 1 : 0")[-1] == "b"


def test_equal_ones_are_in_random_order() -> None:
    seen = Counter(order({"a": NONE, "b": NONE, "c": {"X": 1}}, "other.X", seed) for seed in range(100))
    assert seen.keys() == {"cab", "cba"}
    assert min(seen.values()) > 20


@given(
    st.dictionaries(
        st.text("abcdef", min_size=1, max_size=3), st.one_of(st.none(), st.floats(), st.integers(-9, 9))
    )
)
def test_every_queue_is_there_once_and_ranks_never_rise(given_ranks: dict[str, float | None]) -> None:
    finite = {
        name: rank if rank is not None and abs(rank) < 1e15 else None for name, rank in given_ranks.items()
    }
    queues = [(queue(name), {} if rank is None else {"X": rank}) for name, rank in finite.items()]
    found = eligible_queues.rank_queues(queues, parse_expression("other.X"), {}, Random(0))
    assert sorted(each.queue.queue for each in found) == sorted(finite)
    told = [each.rank for each in found]
    known = [rank for rank in told if rank is not None]
    assert told == [*sorted(known, reverse=True), *[None] * (len(told) - len(known))]
