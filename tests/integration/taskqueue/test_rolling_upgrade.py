"""During an upgrade: this release on the next schema, and a pilot that is older than the service."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine, inspect, text

from cs_config import validate
from cs_config.versions import store
from pilotage.cli import doctor, settings, wiring
from pilotage.cli.commands import db
from pilotage.cli.doctor import Health
from pilotage.cli.errors import CommandRefused
from pilotage.service.services import utc_now
from taskqueue.db import database as db_database
from tests.support import earlier_release, large_database, wait
from tests.support.service import Service


@pytest.fixture
def expanded(engine: Engine) -> Engine:
    """What a later release may do: new tables, and new columns in every table."""
    tables = [name for name in inspect(engine).get_table_names() if name != "alembic_version"]
    with db_database.writing(engine) as conn:
        conn.execute(text("CREATE TABLE of_a_later_release (id INTEGER PRIMARY KEY)"))
        for table in tables:
            conn.execute(text(f"ALTER TABLE {table} ADD COLUMN later_fact TEXT"))
            conn.execute(text(f"ALTER TABLE {table} ADD COLUMN later_count INTEGER NOT NULL DEFAULT 0"))
        conn.execute(text("UPDATE alembic_version SET version_num = 'later'"))
    return engine


@pytest.fixture
def service(expanded: Engine, tmp_path: Path) -> Iterator[Service]:
    with large_database.service_on(expanded, tmp_path) as service:
        yield service


def test_jobs_live_on_the_schema_of_the_next_release(service: Service) -> None:
    job_ids = large_database.live(service, 3)
    large_database.look(service, job_ids[0])
    large_database.agents(service)
    shown = [service.user().get(f"/api/v1/jobs/{job_id}").json()["status"] for job_id in job_ids]
    assert shown == ["Done"] * 3


def test_the_schema_of_the_next_release_is_left_alone(expanded: Engine, database_url: str) -> None:
    db_database.upgrade(database_url)
    state = db_database.schema_state(expanded)
    assert (state.current, state.is_current, state.is_newer) == ("later", False, True)


def test_people_are_told_of_a_later_schema_and_processes_start_on_it(
    expanded: Engine, database_url: str, tmp_path: Path, now: datetime, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = settings.load({"home": tmp_path, "database_url": database_url}, {})
    with wiring.open_current_engine(chosen):
        pass
    found = {each.subject: each for each in doctor.check_database(chosen, now)}
    assert found["schema"].health is Health.WARNING
    db.check(database_url=database_url, home=tmp_path, as_json=False)
    assert "made by a later release" in capsys.readouterr().out


def test_a_process_does_not_start_on_the_schema_of_an_earlier_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'old.db'}"
    db_database.upgrade(url)
    # As in a release with one more migration.
    revisions = ("later", *db_database._list_revisions())
    monkeypatch.setattr(db_database, "_list_revisions", lambda: revisions)
    chosen = settings.load({"home": tmp_path, "database_url": url}, {})
    with pytest.raises(CommandRefused, match="earlier release"), wiring.open_current_engine(chosen):
        pass


#: What processes of a later release store: a job in a state of theirs, a class with a requirement of theirs,
#: a rule of a kind of theirs.
_LATER = (
    "UPDATE jobs SET status = 'Parked' WHERE job_id = :parked",
    "DELETE FROM waiting_jobs WHERE job_id = :parked",
    """INSERT INTO job_log
    (job_id, at, from_status, to_status, minor_status, application_status, source, epoch)
    SELECT job_id, updated_at, 'Waiting', 'Parked', '', '', 'Later', 0 FROM jobs WHERE job_id = :parked""",
    """UPDATE requirement_classes
    SET digest = 'later', definition = replace(definition, '{', '{"later_need": 3,')
    WHERE class_id IN
    (SELECT class_id FROM task_queues JOIN jobs USING (task_queue_id) WHERE job_id = :demanding)""",
    "INSERT INTO scopes (scope, site) VALUES ('lcg.b.org', 'lcg.b.org')",
    """INSERT INTO scope_rules (scope, kind, attribute, value, vo, definition, format, opened)
    VALUES ('lcg.b.org', 'later', '', '', '', '{}', 7, true)""",
)


@pytest.fixture
def beside_later_release(expanded: Engine, tmp_path: Path) -> Iterator[tuple[Service, int, int]]:
    """A service that starts beside processes of a later release; a job in its state, one with its class."""
    (tmp_path / "before").mkdir()
    with large_database.service_on(expanded, tmp_path / "before") as service:
        parked, demanding = large_database.live(service, 2, finish=False)
    with db_database.writing(expanded) as conn:
        for statement in _LATER:
            conn.execute(text(statement), {"parked": parked, "demanding": demanding})
    with large_database.service_on(expanded, tmp_path) as service:
        yield service, parked, demanding


def _live_under_load(service: Service, count: int) -> list[int]:
    job_ids = large_database.live(service, count, finish=False)
    for _ in job_ids:
        wait.until(lambda: large_database.run_one(service))
    return job_ids


def test_what_only_a_later_release_knows_is_passed_over_under_load(
    beside_later_release: tuple[Service, int, int],
) -> None:
    service, parked, demanding = beside_later_release
    user, operator = service.user(), service.operator()
    lists = ("jobs?limit=20", "jobs/summary?by=status", "task-queues", "pools", "overview", "accounting")
    with ThreadPoolExecutor(4) as threads:
        living = [threads.submit(_live_under_load, service, 4) for _ in range(3)]
        while not all(each.done() for each in living):
            for job_id in (parked, demanding):
                large_database.look(service, job_id)
            for path in lists:
                assert user.get(f"/api/v1/{path}").status_code < 500, path
                assert operator.get(f"/api/v1/{path}").status_code < 500, path
            large_database.agents(service)
    done = [job_id for each in living for job_id in each.result()]
    shown = {each["job_id"]: each["status"] for each in user.get("/api/v1/jobs?limit=100").json()["jobs"]}
    assert shown == {**dict.fromkeys(done, "Done"), demanding: "Waiting"}
    assert user.get(f"/api/v1/jobs/{parked}").json()["status"] == "Parked"
    assert [each["to"] for each in user.get(f"/api/v1/jobs/{parked}/log").json()["log"]][-1] == "Parked"
    assert user.post(f"/api/v1/jobs/{parked}/kill").status_code == 409


def test_a_process_that_cannot_read_new_options_gives_no_jobs_until_they_are_rolled_back(
    service: Service,
) -> None:
    job_ids = large_database.live(service, 2, finish=False)
    later = large_database.CONFIGURATION.replace("JobDescription:", "LaterOption: 1\n    JobDescription:")
    offer = dict(zip(("Site", "GridCE", "Queue"), large_database.QUEUE.split("/"), strict=True))
    pilot = service.pilot(large_database.QUEUE)
    with db_database.writing(service.engine) as conn:
        # As `store_text`, which would refuse it.
        store.store_checked(
            conn,
            replace(validate.parse(large_database.CONFIGURATION, "later.yaml"), source=later),
            author="test",
            message="",
            expected=None,
            now=utc_now(),
        )
    with db_database.reading(service.engine) as conn:
        service.parts.live.refresh(conn)
    assert pilot.get("/readyz").status_code == 503
    assert pilot.post("/api/v1/matcher/requestJob", json={**offer, "CPUTime": 100_000}).status_code == 503
    large_database.look(service, job_ids[0])
    large_database.agents(service)
    service.configure(large_database.CONFIGURATION)
    wait.until(lambda: pilot.get("/readyz").status_code == 200)
    assert pilot.post("/api/v1/matcher/requestJob", json={**offer, "CPUTime": 100_000}).json()["matches"]


#: What a pilot says to the service, in the words and by the code of that release.
_CONVERSATION = """
import io, sys
sys.path.insert(0, sys.argv.pop(1))
import pilotage
from pilotage.fabric.pilot.payload.payload import Report
from pilotage.fabric.pilot.service.service_client import Service
from pilotage.fabric.pilot.service.transport import Transport
from pilotage.fabric.pilot.settings import QueuePlace

assert ".pyz" in pilotage.__file__
url, token, *place = sys.argv[1:]
service, place = Service(Transport(url, token)), QueuePlace(*place)
offer = {"Site": place.site, "GridCE": place.ce, "Queue": place.queue, "NumberOfProcessors": 1}
offer["CPUTime"] = service.queue_parameters(place, None)["CPUTime"]
offer["SubmitPool"] = service.submit_pools(place)
assert offer["SubmitPool"]
[match] = service.request_job(offer, count=1, request_id="first").matches
assert service.request_job(offer, count=1, request_id="first").matches[0].lease == match.lease
assert match.lease_seconds > 60
assert match.description["Executable"] == "/bin/true"
assert not service.fetch_sandbox(match.lease, io.BytesIO(), limit=1000)
assert service.start(match.lease, {}).heartbeat_seconds > 0
assert service.heartbeat(match.lease, {"progress": "half", "output_tail": "..."}).commands == ()
output = service.deliver_output(match.lease, io.BytesIO(b"all"), size=3)
service.finish(match.lease, Report(status="Done", minor_status="", exit_code=0, output=output))
[given_back] = service.request_job(offer, count=1, request_id="second").matches
service.release(given_back.lease, "told to end")
service.report_pilot("a1", status="Done", reason="told to end")
"""


def test_a_pilot_of_the_last_release_is_understood_and_understands(service: Service) -> None:
    user = service.user()
    job = {"Executable": "/bin/true", "Requirements": {"Memory": 2000}}
    first, second = user.post("/api/v1/jobs", json={"jobs": [job] * 2}).raise_for_status().json()["job_ids"]
    token = service.token("pilot", vo="cms", queue=large_database.QUEUE, stamp="a1")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            _CONVERSATION,
            str(earlier_release.PILOT),
            service.url,
            token,
            *large_database.QUEUE.split("/"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = {each: user.get(f"/api/v1/jobs/{each}").json() for each in (first, second)}
    assert [each["status"] for each in shown.values()] == ["Done", "Waiting"]
    assert shown[first]["attempt"]["progress"] == "half"
    assert user.get(f"/api/v1/jobs/{first}/output").content == b"all"
