"""When a job will start: one forecast, by HTTP, in commands and in the Python client."""

import json
import re
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update

from pilotage import Client
from taskqueue import day_record, past_forecasts
from taskqueue.day_record import Seen, Series
from taskqueue.db import database
from taskqueue.past_forecasts import NewForecast, StartInterval
from taskqueue.schema.tables import start_forecasts, task_queues
from tests.support.commands import Run, run, send_to
from tests.support.service import Service

__all__ = ["run"]

QUEUE = "LCG.A.org/ce1/long"
ASKED = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100, "JobType": "Test"}
REFUSED = "No forecast of its start: no pilot that fits came in the last hour."
HELD = re.compile(
    r"Starts probably between \d min and \d min from now \(97 % of the last 39 such forecasts held\)\."
)
#: What a command prints.
Print = Callable[..., str]


@pytest.fixture
def printed(service: Service, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Print:
    send_to(service, tmp_path / "nobody", monkeypatch, "user", vo="cms", user="ada")

    def run_well(*words: str) -> str:
        status, out, err = run("job", *words)
        assert status == 0, err
        return " ".join((out + err).split())

    return run_well


def record(service: Service, ids: list[int]) -> None:
    """Two jobs a minute started, and past forecasts of a minute each came true after 50 to 70 seconds."""
    service.pilot(QUEUE).post("/api/v1/matcher/requestJob", json=ASKED).raise_for_status()
    with database.writing(service.engine) as conn:
        now = service.parts.clock()
        [class_id] = conn.execute(select(task_queues.c.class_id)).scalars()
        for minutes in range(1, 11):
            at = now - timedelta(minutes=minutes)
            seen = Seen(series=Series.STARTS, subject=(str(class_id),), at=at, value=2)
            day_record.add_counts(conn, [seen])
        interval = StartInterval(least=30.0, most=69.5)
        made = [NewForecast(job_id=each, vo="cms", estimate=60.0, interval=interval) for each in ids[:39]]
        past_forecasts.store(conn, made, now=now)
        for number, job_id in enumerate(ids[:39]):
            waited = 50 + 20 * number / 38
            conn.execute(
                update(start_forecasts).where(start_forecasts.c.job_id == job_id).values(waited=waited)
            )


def test_the_forecast_of_a_job_is_told_everywhere(service: Service, printed: Print) -> None:
    ids = service.submit(*[{"Executable": "true"}] * 40)
    assert REFUSED in printed("show", str(ids[9]))
    assert REFUSED in printed("explain", str(ids[9]))
    record(service, ids)
    answer = service.user().get(f"/api/v1/jobs/{ids[9]}/start").json()
    earliest, latest = (datetime.fromisoformat(answer[name]) for name in ("earliest", "latest"))
    # Its place, 10, at two a minute or, in a minute that has just begun, a little less; by past ratios.
    assert timedelta(seconds=80) < latest - earliest < timedelta(seconds=110)
    assert (answer["held"], answer["of"]) == (38, 39)
    assert HELD.fullmatch(answer["text"])
    assert HELD.search(printed("show", str(ids[9])))
    assert HELD.search(printed("explain", str(ids[9])))
    assert HELD.fullmatch(json.loads(printed("show", str(ids[9]), "--json"))["start"]["text"])
    client = Client(service.url, token=service.token("user", vo="cms", user="ada"))
    assert HELD.fullmatch(client.forecast_start(ids[9])["text"])
    assert (client.explain(ids[9]).start or {})["held"] == 38


def test_a_submission_on_a_terminal_tells_when_its_last_job_starts(
    service: Service, printed: Print, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jdl = tmp_path / "job.jdl"
    jdl.write_text('Executable = "/bin/true";')
    assert "forecast" not in printed("submit", str(jdl))  # a script reads the ids
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True, raising=False)
    assert printed("submit", str(jdl)).endswith(REFUSED)
    assert printed("submit", str(jdl), "-n", "2").endswith(f"The last of them: {REFUSED}")


def test_a_job_that_is_not_submitted_has_the_forecast_of_one_submitted_now(
    service: Service, printed: Print, tmp_path: Path
) -> None:
    jdl = tmp_path / "job.jdl"
    jdl.write_text('Executable = "true";')
    assert REFUSED in printed("explain", str(jdl))
    ids = service.submit(*[{"Executable": "true"}] * 40)
    record(service, ids)
    assert "Starts probably between" in printed("explain", str(jdl))
    client = Client(service.url, token=service.token("user", vo="cms", user="ada"))
    foreseen = client.explain({"Executable": "true"}).start or {}
    [last] = service.submit({"Executable": "true"})
    forecast = client.forecast_start(last)
    minute = timedelta(minutes=1)  # the clock goes on
    for name in ("earliest", "latest"):
        assert (
            abs(datetime.fromisoformat(foreseen[name]) - datetime.fromisoformat(forecast[name])) < 5 * minute
        )
    other = client.explain({"Executable": "true", "CPUTime": 4711}).start or {}
    assert other["text"] == "No forecast of its start: no job like it started in the last 24 hours."
    assert client.explain({"Executable": "true", "Site": "LCG.Nope.org"}).start is None


def test_the_forecast_of_a_group_is_told_everywhere_and_to_nobody_else(
    service: Service, printed: Print
) -> None:
    ids = service.submit(*[{"Executable": "true", "JobGroup": "scan"}] * 40)
    record(service, ids)
    answer = service.user().get("/api/v1/jobs/end", params={"job_group": "scan"}).json()
    text = answer["text"]
    assert re.fullmatch(
        r"The last of 40 waiting jobs: Starts probably between \d+ min and \d+ min from now \(97 % of the"
        r" last 39 such forecasts held\)\. No forecast of the end: none of its jobs is done, .*\.",
        text,
    )
    assert (answer["waiting"], answer["latest"], answer["last_start"]["held"]) == (40, None, 38)
    assert printed("forecast", "scan").startswith("The last of 40 waiting jobs: Starts probably between ")
    client = Client(service.url, token=service.token("user", vo="cms", user="ada"))
    assert client.forecast_end("scan", vo="cms", owner="ada")["waiting"] == 40
    nothing = "No forecast of the end: no job of the group waits or runs."
    assert client.forecast_end("scan", owner="bob")["text"] == nothing
    for role, about in (("user", {"vo": "cms", "user": "bob"}), ("vo_admin", {"vo": "dune", "user": "eve"})):
        found = Client(service.url, token=service.token(role, **about)).forecast_end("scan")
        assert (found["text"], found["last_start"], found["waiting"]) == (nothing, None, 0)


def test_a_job_that_does_not_wait_has_no_forecast(service: Service) -> None:
    [job_id] = service.submit({"Executable": "true"})
    service.user().post(f"/api/v1/jobs/{job_id}/kill").raise_for_status()
    text = service.user().get(f"/api/v1/jobs/{job_id}/start").json()["text"]
    assert text == "No forecast of its start: it is Killed."
    assert service.user().get(f"/api/v1/jobs/{job_id}/explain").json()["start"] is None
