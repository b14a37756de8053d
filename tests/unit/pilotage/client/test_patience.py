"""Requests that wait out a failover: as long as the service states, and not where it refuses."""

from collections.abc import Callable, Iterator

import pytest

from pilotage.client import submission
from pilotage.client.api import ApiError, ServiceAway, ServiceClient, wait_out
from pilotage.client.errors import WrongUsage
from pilotage.client.submission import PlannedJobs, Repetition


def _away(seconds: float | None) -> ApiError:
    return ApiError("no database", status=503, code="unavailable", details={}, retry_after=seconds)


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def _answers(*answers: object) -> Callable[[], object]:
    left: Iterator[object] = iter(answers)

    def answer() -> object:
        if isinstance(found := next(left), Exception):
            raise found
        return found

    return answer


def _wait(request: Callable[[], object], clock: Clock, warnings: list[str]) -> object:
    return wait_out(request, patience=30, warn=warnings.append, clock=lambda: clock.now, sleep=clock.sleep)


def test_a_service_that_is_away_is_waited_for_as_long_as_it_states() -> None:
    clock, warnings = Clock(), list[str]()
    request = _answers(_away(5), ServiceAway("no answer"), _away(None), "done")
    assert _wait(request, clock, warnings) == "done"
    assert clock.slept == [5, 2, 2]
    assert warnings == ["no database; trying again for 30 s"]


def test_the_last_error_is_raised_when_patience_is_over() -> None:
    clock = Clock()
    with pytest.raises(ApiError, match="no database"):
        _wait(_answers(*[_away(8)] * 9), clock, [])
    assert clock.slept == [8, 8, 8]


@pytest.mark.parametrize(("status", "code"), [(400, "invalid_request"), (429, "quota_exceeded")])
def test_what_is_refused_is_not_tried_again(status: int, code: str) -> None:
    clock = Clock()
    refusal = ApiError("no", status=status, code=code, details={}, retry_after=3)
    with pytest.raises(ApiError, match="no"):
        _wait(_answers(refusal, "done"), clock, [])
    assert clock.slept == []


class Failing(ServiceClient):
    """A service whose database is away."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9", "x")
        self.keys: list[str] = []

    def submit(self, *, idempotency_key: str, **_: object) -> list[int]:  # type: ignore[override]
        self.keys.append(idempotency_key)
        if len(self.keys) == 2:
            raise _away(None)
        return [1]


def test_each_request_has_its_key_and_the_error_states_the_key_of_all() -> None:
    request = PlannedJobs(parts=[("a", 1)], is_text=True, files=(), vo=None, jobs=1)
    service = Failing()
    repetition = Repetition(patience=0, key="mine")
    sent = submission.send_requests(service, [request] * 3, warn=lambda _: None, repetition=repetition)
    with pytest.raises(ApiError, match="with the idempotency key mine") as broken:
        list(sent)
    assert service.keys == ["mine", "mine/1"]
    assert broken.value.details["idempotency_key"] == "mine"


def test_who_breaks_a_submission_off_gets_its_key() -> None:
    class Hanging(Failing):
        def submit(self, **_: object) -> list[int]:  # type: ignore[override]
            raise KeyboardInterrupt

    request = PlannedJobs(parts=[("a", 1)], is_text=True, files=(), vo=None, jobs=1)
    repetition = Repetition(key="mine")
    with pytest.raises(KeyboardInterrupt) as broken:
        list(submission.send_requests(Hanging(), [request], warn=lambda _: None, repetition=repetition))
    assert "with the idempotency key mine" in broken.value.__notes__[0]


@pytest.mark.parametrize("key", ["", "€", "two\nlines", "with blank", "x" * 201])
def test_a_key_that_a_request_cannot_have_is_refused_before_any_is_sent(key: str) -> None:
    with pytest.raises(WrongUsage, match="allowed are 1 to 200 visible characters of ASCII"):
        Repetition(key=key)
