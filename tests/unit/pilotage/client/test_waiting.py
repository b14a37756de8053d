"""Waiting for jobs and following them, with a service that answers as the test prescribes."""

from collections.abc import Iterator
from typing import Any

import pytest

from pilotage.client import waiting
from pilotage.client.api import ApiError

AWAY = ApiError("the database is away", status=503, code="unavailable", details={})


class Answers:
    """A client of a service whose answers are prescribed; an error is raised."""

    def __init__(self, *, lists: Any = (), events: Any = (), changes: Any = ()) -> None:
        self._lists, self._events, self._changes = map(iter, (lists, events, changes))

    def jobs(self, *_: Any, **_options: Any) -> dict[str, Any]:
        return {"jobs": [{"job_id": 1, "status": next(self._lists)}]}

    def events(self, *_: Any, **_options: Any) -> Iterator[tuple[str, Any]]:
        yield from (("1-0", None) if to is None else ("1-1", {"job_id": 1, "to": to}) for to in self._next())

    def _next(self) -> Any:
        found = next(self._events)
        if isinstance(found, Exception):
            raise found
        return found

    def changes(self, *_: Any, **_options: Any) -> dict[str, Any]:
        found = next(self._changes)
        if isinstance(found, Exception):
            raise found
        return {"changes": found, "next": "1-9"}


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_PAUSES", (0.0, 0.0))


def test_a_final_status_of_an_event_is_believed_once_it_is_in_the_list() -> None:
    client = Answers(
        lists=["Waiting", "Waiting", "Running", "Done"],
        events=[[None, "Failed"], [None, "Done"]],
    )
    *_, last = waiting.follow_statuses(client, [1])  # type: ignore[arg-type]
    assert dict(last) == {1: "Done"}
    assert list(client._lists) == []


def test_following_goes_on_while_neither_events_nor_pages_can_be_had() -> None:
    client = Answers(changes=[[], AWAY, [{"job_id": 1}]], events=[AWAY, AWAY])
    changes = waiting.follow_changes(client, {})  # type: ignore[arg-type]
    assert next(changes) == {"job_id": 1}
