"""Advice is missing where it cannot be computed, and the next one is computed all the same."""

import threading
from queue import SimpleQueue
from typing import Any

import pytest

from pilotage.service import advice
from pilotage.service.advice import Advisor


def test_advice_that_hangs_costs_its_own_answer_only() -> None:
    advisor, may_end = Advisor(seconds=0.05), threading.Event()
    assert advisor.find("a", lambda: may_end.wait() and []) == []
    advisor._seconds = 300.0
    assert advisor.find("b", lambda: ["lower Memory"]) == ["lower Memory"]
    may_end.set()


def test_advice_that_was_delivered_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its thread stands still then."""
    may_end = threading.Event()

    class Slow(SimpleQueue[Any]):
        def put(self, item: Any, *rest: Any) -> None:
            super().put(item, *rest)
            may_end.wait(300)

    monkeypatch.setattr(advice, "SimpleQueue", Slow)
    advisor = Advisor(seconds=300.0)
    assert advisor.find("a", lambda: ["lower Memory"]) == ["lower Memory"]
    assert advisor.find("b", lambda: ["raise CPUTime"]) == ["raise CPUTime"]
    may_end.set()


def test_without_a_thread_there_is_no_advice_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    advisor = Advisor(seconds=300.0)

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", fail)
        assert advisor.find("a", lambda: ["x"]) == []
    assert advisor.find("b", lambda: ["lower Memory"]) == ["lower Memory"]


def test_what_fails_is_no_advice() -> None:
    assert Advisor().find("a", lambda: [str(1 // 0)]) == []
