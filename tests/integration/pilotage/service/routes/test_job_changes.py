"""Changes of jobs behind a cursor, and as server-sent events."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, update

from pilotage.client.api import ServiceClient
from pilotage.client.waiting import follow_changes, follow_statuses
from pilotage.service import job_events
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.http_errors import TooManyStreams
from pilotage.service.job_events import JobEvents
from pilotage.service.models.jobs import EventQuery
from taskqueue.db import database
from taskqueue.db.clock import utc_now
from taskqueue.schema.tables import installation
from tests.support import wait
from tests.support.databases import BOTH
from tests.support.factories import stored_rows
from tests.support.service import CONFIG, Service, running

pytestmark = BOTH

JOB = {"Executable": "/bin/true", "JobGroup": "scan"}


def _submit(client: httpx.Client, count: int = 1) -> list[int]:
    return client.post("/api/v1/jobs", json={"jobs": [JOB] * count}).raise_for_status().json()["job_ids"]


def _changes(client: httpx.Client, **query: object) -> dict[str, Any]:
    return client.get("/api/v1/jobs/changes", params=query).raise_for_status().json()


def _read_all(client: httpx.Client, after: str, **query: object) -> tuple[list[tuple[int, str]], str]:
    found, more = [], True
    while more:
        page = _changes(client, after=after, **query)
        found += [(each["job_id"], each["to"]) for each in page["changes"]]
        after, more = page["next"], page["more"]
    return found, after


def _wait_until_readable(service: Service) -> None:
    """Wait until the feed has all that is committed: a transaction of the service itself may be under way."""
    feed = service.parts.job_events._log
    present = feed.read_present(seconds=300)
    assert present is not None
    wait.until(lambda: feed.read_end() >= present)


def test_a_cursor_brings_each_change_once_and_in_order(service: Service) -> None:
    ada = service.user()
    _submit(ada)
    first = _changes(ada)
    assert first["changes"] == []
    a, b = _submit(ada, 2)
    ada.post(f"/api/v1/jobs/{a}/kill").raise_for_status()
    _wait_until_readable(service)
    found, after = _read_all(ada, first["next"], limit=2)
    assert sorted(found[:4]) == sorted((each, to) for each in (a, b) for to in ("Received", "Waiting"))
    assert found[4:] == [(a, "Killed")]
    assert _read_all(ada, after) == ([], after)
    assert _read_all(ada, first["next"], status="Killed")[0] == [(a, "Killed")]
    assert _read_all(ada, first["next"], ids=b, status="Waiting")[0] == [(b, "Waiting")]
    assert _read_all(ada, first["next"], job_group="other")[0] == []
    assert _read_all(service.user("bob"), first["next"])[0] == []
    assert len(_read_all(service.operator(), first["next"])[0]) == 5
    [killed] = _changes(ada, after=first["next"], status="Killed")["changes"]
    assert (killed["from"], killed["vo"], killed["owner"]) == ("Waiting", "cms", "ada")


def test_a_cursor_that_means_nothing_is_refused(service: Service) -> None:
    ada = service.user()
    answer = ada.get("/api/v1/jobs/changes?after=yesterday")
    assert answer.status_code == 400
    assert "'yesterday' is not a cursor" in answer.text
    after = _changes(ada)["next"]
    with database.writing(service.engine) as conn:
        conn.execute(update(installation).values(incarnation=installation.c.incarnation + 1))
    answer = ada.get("/api/v1/jobs/changes", params={"after": after})
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "cursor_expired")


@contextmanager
def _stream(client: httpx.Client, **query: object) -> Iterator[Iterator[tuple[str, dict[str, Any] | None]]]:
    """The events of a stream, with their ids; it has begun."""
    with client.stream("GET", "/api/v1/jobs/events", params=query) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        events = _parse(response.iter_lines())
        next(events)
        yield events


def _parse(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        fields[name] = value
        if not line:
            yield fields["id"], json.loads(fields["data"]) if "data" in fields else None
            fields = {}


def _next(events: Iterator[tuple[str, dict[str, Any] | None]], count: int) -> list[tuple[int, str, str]]:
    """That many changes: job, new status, cursor."""
    changes = ((each, cursor) for cursor, each in events if each is not None)
    return [(each["job_id"], each["to"], cursor) for each, cursor in islice(changes, count)]


def test_events_are_sent_as_they_happen_and_a_stream_continues_behind_the_last(service: Service) -> None:
    ada, bob = service.user(), service.user("bob")
    with _stream(ada) as events:
        _submit(bob)
        [job_id] = _submit(ada)
        received, waiting = _next(events, 2)
    assert [received[:2], waiting[:2]] == [(job_id, "Received"), (job_id, "Waiting")]
    ada.post(f"/api/v1/jobs/{job_id}/kill").raise_for_status()
    with _stream(ada, after=received[2]) as events:
        assert [each[:2] for each in _next(events, 2)] == [(job_id, "Waiting"), (job_id, "Killed")]
    headers = {"Last-Event-ID": waiting[2]}
    with ada.stream("GET", "/api/v1/jobs/events?ids=1,2,3&after=0-0", headers=headers) as response:
        [(_, to, _)] = _next(_parse(response.iter_lines()), 1)
    assert to == "Killed"


def test_a_stream_shows_what_other_processes_do(engine: Engine, tmp_path: Path) -> None:
    with (
        running(engine, tmp_path, CONFIG) as one,
        running(engine, tmp_path, CONFIG) as other,
        _stream(one.user()) as events,
    ):
        for _ in range(3):
            [job_id] = _submit(other.user())
            assert [each[:2] for each in _next(events, 2)] == [(job_id, "Received"), (job_id, "Waiting")]


def test_streams_are_bounded_end_in_time_and_give_their_places_back(service: Service) -> None:
    ada = service.user()
    for _ in range(2):
        with _stream(ada, seconds=0.2) as events:
            assert _next(events, 1) == [], "it ends by itself"
    most = service.parts.limits.streams_of_caller
    service.parts.job_events._streams["user:cms::ada"] += most
    subject = next(iter(service.parts.job_events._streams))
    answer = ada.get("/api/v1/jobs/events")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "30"), subject
    assert answer.json()["error"]["message"] == (
        "you have 20 streams of events open: poll GET /api/v1/jobs/changes, or try again in 30 s"
    )
    with _stream(service.user("bob"), seconds=0.2):
        pass
    service.parts.job_events._streams.clear()
    assert ada.get("/api/v1/jobs/events?seconds=0").status_code == 400


def test_streams_that_are_opened_at_once_are_bounded_too(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, start_of = service.parts.job_events, JobEvents.start_of
    refused = threading.Semaphore(0)

    def start_when_the_others_are_refused(self: JobEvents, after: str | None) -> Any:
        assert refused.acquire(timeout=300)
        return start_of(self, after)

    monkeypatch.setattr(events, "_most_of_caller", 3)

    def open_one(_: int) -> int:
        status = service.user().get("/api/v1/jobs/events?seconds=1").status_code
        if status == 429:
            refused.release()
        return status

    with monkeypatch.context() as held_up, ThreadPoolExecutor(6) as threads:
        held_up.setattr(JobEvents, "start_of", start_when_the_others_are_refused)
        assert sorted(threads.map(open_one, range(6))) == [200, 200, 200, 429, 429, 429]
    assert service.user().get("/api/v1/jobs/events?after=nonsense").status_code == 400
    _wait_until_none(events)


def test_the_streams_of_some_vos_leave_room_for_those_of_others(engine: Engine) -> None:
    def of_vo(vo: str, user: int) -> Caller:
        return Caller(role=Role.USER, subject=f"user:{vo}::{user}", vos=frozenset({vo}), user=str(user))

    async def open_many() -> dict[str, int]:
        events = JobEvents(engine, most=64, most_of_caller=2, longest=1)
        taken: dict[str, int] = {}
        kept = []
        for vo in ("cms", "dune", "lhcb"):
            for user in range(100):
                with suppress(TooManyStreams):
                    kept.append(await events.open_stream(of_vo(vo, user), EventQuery(), None, now=utc_now()))
            taken[vo] = len(kept) - sum(taken.values())
        kept.clear()
        assert not events._of_vos
        return taken

    assert asyncio.run(open_many()) == {"cms": 32, "dune": 16, "lhcb": 8}


def test_a_stream_that_never_begins_gives_its_place_back(engine: Engine) -> None:
    async def open_in_vain() -> JobEvents:
        events = JobEvents(engine, most=1, most_of_caller=1, longest=1)
        ada = Caller(role=Role.USER, subject="ada", vos=frozenset({"cms"}), user="ada")
        for _ in range(3):
            await events.open_stream(ada, EventQuery(), None, now=utc_now())
        return events

    assert not asyncio.run(open_in_vain())._streams


def _wait_until_none(events: JobEvents) -> None:
    wait.until(lambda: not events._streams)


def test_a_stream_of_many_changes_leaves_none_out(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they are more than what is kept in memory or read at once."""
    monkeypatch.setattr(job_events, "_ROWS", 7)
    monkeypatch.setattr(job_events, "_KEPT", 10)
    ada = service.user()
    start = _changes(ada)["next"]
    with _stream(ada, after=start) as events:
        job_ids = [job_id for _ in range(5) for job_id in _submit(ada, 20)]
        found = _next(events, 200)
    assert sorted(each[0] for each in found) == sorted(2 * job_ids)
    assert [each[2] for each in found] == sorted((each[2] for each in found), key=lambda id_: int(id_[2:]))


def test_waiting_for_jobs_needs_a_list_of_them_then_events_and_a_list_of_the_ended(service: Service) -> None:
    ada = service.user()
    a, b = _submit(ada, 2)
    with ServiceClient(service.url, service.token("user", vo="cms", user="ada")) as client:
        listed = 0

        def count(*args: Any, **options: Any) -> Any:
            nonlocal listed
            listed += 1
            return ServiceClient.jobs(client, *args, **options)

        client.jobs = count  # type: ignore[method-assign]
        steps = follow_statuses(client, [a, b])
        assert dict(next(steps)) == {a: "Waiting", b: "Waiting"}
        ada.post("/api/v1/jobs/kill", json={"ids": [a, b]}).raise_for_status()
        *_, last = steps
        assert (dict(last), listed) == ({a: "Killed", b: "Killed"}, 2)
        changes = follow_changes(client, {"status": "Received"})
        _submit(ada)
        assert next(changes)["to"] == "Received"
        changes.close()  # type: ignore[attr-defined]


def test_a_change_that_is_committed_late_is_in_the_feed(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    with running(engine, tmp_path, CONFIG) as service:
        root = service.operator()
        after = _changes(root)["next"]
        with database.writing(engine) as late:
            early = stored_rows.job_ids(late, utc_now(), 1)
            [job_id] = _submit(service.user())
            assert _read_all(root, after) == ([], after), "later ones wait for it"
            monkeypatch.setattr(job_events, "_PRESENT", 0.1)
            for address in ("changes", "events?seconds=1"):
                refused = root.get(f"/api/v1/jobs/{address}")
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy"), (
                    "not an old one"
                )
        assert _read_all(root, _changes(root)["next"])[0] == []
        _wait_until_readable(service)
        found, _ = _read_all(root, after)
        assert [each for each, _ in found] == [*early, job_id, job_id]
