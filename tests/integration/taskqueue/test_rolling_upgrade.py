"""During an upgrade: this release on the next schema, and a pilot that is older than the service."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine, inspect, text

from pilotage.cli import settings, wiring
from pilotage.cli.checks import database
from pilotage.cli.checks.finding import Health
from pilotage.cli.commands import db
from pilotage.cli.errors import CommandRefused
from taskqueue.db import database as db_database
from tests import at_size
from tests.running_service import Service

#: As that release's `pilotage.fabric.pilot.bundle` made it; here only for what it says to the service.
FIRST_PILOT = Path(__file__).parents[2] / "data" / "pilot_of_first_release.pyz"


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
    with at_size.service_on(expanded, tmp_path) as service:
        yield service


def test_jobs_live_on_the_schema_of_the_next_release(service: Service) -> None:
    job_ids = at_size.live(service, 3)
    at_size.look(service, job_ids[0])
    at_size.agents(service)
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
    found = {each.subject: each for each in database.check_database(chosen, now)}
    assert found["schema"].health is Health.WARNING
    db.check(database_url=database_url, home=tmp_path, as_json=False)
    assert "made by a later release" in capsys.readouterr().out


def test_a_process_does_not_start_on_the_schema_of_an_earlier_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'old.db'}"
    db_database.upgrade(url)
    # As in a release with one more migration.
    monkeypatch.setattr(db_database, "_list_revisions", lambda: ("0002", "0001"))
    chosen = settings.load({"home": tmp_path, "database_url": url}, {})
    with pytest.raises(CommandRefused, match="earlier release"), wiring.open_current_engine(chosen):
        pass


#: What a pilot says to the service, in the words and by the code of that release.
_CONVERSATION = """
import io, sys
sys.path.insert(0, sys.argv.pop(1))
import pilotage
from pilotage.fabric.pilot.service import Service
from pilotage.fabric.pilot.settings import Place
from pilotage.fabric.pilot.transport import Transport

assert ".pyz" in pilotage.__file__
url, token, *place = sys.argv[1:]
service, place = Service(Transport(url, token)), Place(*place)
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
service.deliver_output(match.lease, io.BytesIO(b"all"), size=3)
service.finish(match.lease, {"exit_code": 0, "status": "Done", "minor_status": ""})
[given_back] = service.request_job(offer, count=1, request_id="second").matches
service.release(given_back.lease, "told to end")
service.report_pilot("a1", status="Done", reason="told to end")
"""


def test_a_pilot_of_the_first_release_is_understood_and_understands(service: Service) -> None:
    user = service.user()
    job = {"Executable": "/bin/true", "Requirements": {"Memory": 2000}}
    first, second = user.post("/api/v1/jobs", json={"jobs": [job] * 2}).raise_for_status().json()["job_ids"]
    token = service.token("pilot", vo="cms", queue=at_size.QUEUE, stamp="a1")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            _CONVERSATION,
            str(FIRST_PILOT),
            service.url,
            token,
            *at_size.QUEUE.split("/"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = {each: user.get(f"/api/v1/jobs/{each}").json() for each in (first, second)}
    assert [each["status"] for each in shown.values()] == ["Done", "Waiting"]
    assert shown[first]["attempt"]["progress"] == "half"
    assert user.get(f"/api/v1/jobs/{first}/output").content == b"all"
