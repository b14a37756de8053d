"""What is derived from a configuration is computed once, and a cache holds results of one generation."""

from collections.abc import Callable, Iterator

from cs_config import validate
from cs_config.cache import Cache, derived
from cs_config.tree.configuration import Configuration

CONFIG, OTHER = (validate.parse("Resources: {}") for _ in range(2))
computed: list[str] = []


@derived
def _compute(config: Configuration, vo: str) -> str | None:
    computed.append(f"{vo} of {config.version}")
    return None


def test_a_result_is_computed_once_for_a_configuration_even_if_it_is_none() -> None:
    for config in (CONFIG, CONFIG, OTHER):
        assert _compute(config, "lhcb") is None
    assert _compute(CONFIG, "LHCb") is None
    assert computed == ["lhcb of 0", "lhcb of 0"]


def _counting() -> Callable[[], int]:
    numbers: Iterator[int] = iter(range(100))
    return lambda: next(numbers)


def test_a_new_generation_empties_the_cache() -> None:
    cache: Cache[str, int] = Cache(10)
    count = _counting()
    assert [cache.get("a", count, 1), cache.get("a", count, 1), cache.get("a", count, 2)] == [0, 0, 1]
    assert cache.find("a", 1) is None
    assert cache.items() == [("a", 1)]


def test_a_full_cache_loses_the_eighth_that_was_stored_first() -> None:
    cache: Cache[int, int] = Cache(16)
    for each in range(17):
        cache.store(each, each)
    assert [key for key, _ in cache.items()] == list(range(2, 17))
    cache.store(2, -2)
    assert cache.find(2) == -2
    assert len(cache.items()) == 15
    cache.clear()
    assert cache.find(2) is None


def test_a_cache_of_so_many_bytes_loses_what_was_stored_first_until_a_result_has_room() -> None:
    cache = Cache[int, str](100, measure=lambda _, value: len(value), most=80)
    for each in range(20):
        cache.store(each, "x" * (each % 3 + 8))
        assert sum(len(value) for _, value in cache.items()) <= 80
    assert cache.find(19) == "x" * 9
    assert cache.find(0) is None
    cache.store(20, "x" * 11)  # more than an eighth
    assert cache.find(20) is None
    cache.store(19, "y" * 9)
    assert (cache.find(19), cache.find(18)) == ("y" * 9, "x" * 8)
    cache.store(1, "z" * 9, "other generation")
    assert cache.items() == [(1, "z" * 9)]
