"""Long evaluations of several threads are made one at a time, in the order in which they came."""

import threading
import time

import pytest

from requirements.classad import evaluation, turns

_LONG_TEXT = " || ".join(f"stringListSum(N) == {number}" for number in range(1, 9))
_RESOURCE = {"N": "1," * 2000}
_PATIENCE = 300.0


def _wait_for_waiting(number: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while len(turns._TURNS._waiting) < number and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(turns._TURNS._waiting) == number


def test_a_long_evaluation_waits_for_another_one_and_a_short_one_does_not() -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(evaluation.is_true(_LONG_TEXT, _RESOURCE)))
    with turns.take(turns.LONG + 1):
        thread.start()
        _wait_for_waiting(1)
        assert evaluation.is_true("stringListSum(N) == 3", {"N": "1,2"}), "by these values it is short"
        assert evaluation.is_true("FreeCPUs > 2", {"FreeCPUs": 3})
        assert not found
    thread.join(_PATIENCE)
    assert found == [False]
    assert not evaluation.is_true(_LONG_TEXT, {"N": "1," * 9}), "the turn was given back"


def test_a_value_that_takes_long_to_read_waits_too() -> None:
    resource = {"Tags": tuple(f"VO-cms-software-{number:04}" for number in range(5000))}
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(evaluation.is_true('member("x", Tags)', resource)))
    with turns.take(turns.LONG + 1):
        thread.start()
        _wait_for_waiting(1)
    thread.join(_PATIENCE)
    assert found == [False]


def test_who_waits_longest_is_next_also_before_who_has_just_been() -> None:
    order: list[int] = []

    def evaluate(number: int) -> None:
        for _ in range(2):
            with turns.take(turns.LONG + 1):
                order.append(number)
                if len(order) <= 3:  # those who come again stand behind all others
                    _wait_for_waiting(2)

    threads = [threading.Thread(target=evaluate, args=(number,)) for number in range(3)]
    with turns.take(turns.LONG + 1):
        for number, each in enumerate(threads):
            each.start()
            _wait_for_waiting(number + 1)
    for each in threads:
        each.join(_PATIENCE)
    assert sorted(order[:3]) == [0, 1, 2]
    assert order == [0, 1, 2, 0, 1, 2]


def test_a_turn_is_given_back_by_who_fails() -> None:
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), turns.take(turns.LONG + 1):
            raise ZeroDivisionError
    assert not turns._TURNS._is_taken
