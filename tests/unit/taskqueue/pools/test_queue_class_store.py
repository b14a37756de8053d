"""Slots of queue classes."""

from taskqueue.pools.queue_class_store import number_classes


def test_slots_stay_and_the_lowest_free_ones_are_given() -> None:
    assert number_classes({"b": 2, "a": 0}, ["a", "d", "c"]) == {"b": 2, "a": 0, "c": 1, "d": 3}
    assert number_classes({}, []) == {}
