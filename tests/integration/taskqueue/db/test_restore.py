"""A backup is restored while pilots hold jobs: what `pilotage db recover` promises, over HTTP."""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, make_url

from examples.servers.postgres import Postgres
from pilotage.cli import application, doctor, settings
from pilotage.cli.doctor import Health
from pilotage.cli.engine import LastSeen
from pilotage.cli.errors import CommandRefused
from pilotage.cli.settings import Settings
from pilotage.service.problems import readiness
from pilotage.service.services import utc_now
from taskqueue.db import database as db_database
from tests.support.factories import queued_jobs
from tests.support.service import Service, running

TREE = "Resources: {Sites: {A.B.ch: {CEs: {ce: {Queues: {long: {}}}}}}}"
QUEUE = "A.B.ch/ce/long"
ASKING = {"Site": "A.B.ch", "GridCE": "ce", "Queue": "long", "CPUTime": 10**6}
DONE = {"status": "Done", "exit_code": 0}


class _Installation:
    """A service on a database of which there is a backup."""

    def __init__(self, request: pytest.FixtureRequest, home: Path) -> None:
        self.postgres: Postgres | None = None
        if request.param == "postgresql":
            self.postgres = request.getfixturevalue("postgres")
            self.url: str = request.getfixturevalue("postgres_url")
        else:
            self.url = request.getfixturevalue("sqlite_url")
        self.home = home
        self.settings: Settings = settings.load({"home": home, "database_url": self.url}, {})

    @contextmanager
    def service(self) -> Iterator[Service]:
        with self.engine() as engine, running(engine, self.home, TREE) as service:
            yield service

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        engine = db_database.connect(self.url)
        try:
            yield engine
        finally:
            engine.dispose()

    @property
    def _name(self) -> str:
        return make_url(self.url).database or ""

    def back_up(self) -> None:
        backup = self._backup()
        if self.postgres is not None:
            self.postgres.dump(self._name, backup)
            return
        with closing(sqlite3.connect(self._name)) as source, closing(sqlite3.connect(backup)) as copy:
            source.backup(copy)

    def restore(self) -> None:
        backup = self._backup()
        if self.postgres is not None:
            self.postgres.restore(self._name, backup)
            return
        for suffix in ("-wal", "-shm"):
            Path(self._name + suffix).unlink(missing_ok=True)
        backup.replace(self._name)

    def restore_beneath(self) -> None:
        """Restore while processes have it open."""
        if self.postgres is not None:
            self.restore()
            return
        with closing(sqlite3.connect(self._backup())) as copy, closing(sqlite3.connect(self._name)) as live:
            copy.backup(live)

    def _backup(self) -> Path:
        return (self.postgres.directory if self.postgres else self.home) / f"{Path(self._name).name}.backup"

    def look(self) -> None:
        """As every process does that starts."""
        with self.engine() as engine:
            seen = LastSeen(engine, self.settings)
            seen.start()
            seen.look(utc_now())

    def doctor(self) -> tuple[Health, str]:
        [finding] = [
            each for each in doctor.check_database(self.settings, utc_now()) if each.subject == "history"
        ]
        return finding.health, finding.message


@pytest.fixture(params=["sqlite", "postgresql"])
def installation(request: pytest.FixtureRequest, tmp_path: Path) -> _Installation:
    return _Installation(request, tmp_path)


class _Pilot:
    """A pilot with the job that it was given."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http
        answer = http.post("/api/v1/matcher/requestJob", json=ASKING).json()
        [match] = answer["matches"] or [None]
        self.match: dict[str, Any] = match or {}
        self.job_id: int | None = self.match.get("job_id")

    def says(self, what: str, body: object = None) -> int:
        return self.http.post(f"/api/v1/leases/{self.match['lease']}/{what}", json=body or {}).status_code

    @property
    def attempt(self) -> tuple[int, int]:
        return self.match["job_id"], self.match["epoch"]


class _Pilots:
    """Pilots whose tokens were minted before anything was lost."""

    def __init__(self, service: Service) -> None:
        self.tokens = [service.token("pilot", vo="cms", queue=QUEUE) for _ in range(12)]

    def next(self, service: Service) -> _Pilot:
        return _Pilot(service.client(self.tokens.pop()))

    def wait_for_job(self, service: Service) -> _Pilot:
        """One that asks until it is given a job: for a second the answer of before may come from a cache."""
        token, deadline = self.tokens.pop(), time.monotonic() + 300
        while (pilot := _Pilot(service.client(token))).job_id is None:
            assert time.monotonic() < deadline, "nothing is given out"
            time.sleep(0.2)
        return pilot

    def again(self, service: Service, pilot: _Pilot) -> None:
        """The same pilot, when the service has been started again."""
        pilot.http = service.client(pilot.http.headers["Authorization"].removeprefix("Bearer "))


def _submit(service: Service, count: int, key: str) -> httpx.Response:
    body = {"jobs": [{"Executable": "x"}] * count}
    return service.user().post("/api/v1/jobs", json=body, headers={"Idempotency-Key": key})


def _status(service: Service, job_id: int) -> str:
    return str(service.user().get(f"/api/v1/jobs/{job_id}").json().get("status"))


def _recover(installation: _Installation, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    flags = ["--home", str(installation.home), "--database-url", installation.url, "--json"]
    with pytest.raises(SystemExit) as ended:
        application.main(["db", "recover", *flags])
    said = capsys.readouterr()
    assert not ended.value.code, said.err
    done: dict[str, Any] = json.loads(said.out)
    return done


def test_old_pilots_report_and_nothing_is_given_out_again(
    installation: _Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    with installation.service() as service:
        pilots = _Pilots(service)
        ids = _submit(service, 6, "first").json()["job_ids"]
        running_one, matched = pilots.next(service), pilots.next(service)
        assert running_one.says("start") == 200
        installation.look()
        installation.back_up()

        # What the backup does not know.
        assert matched.says("start") == 200
        unknown, ended = pilots.next(service), pilots.next(service)
        assert [unknown.says("start"), ended.says("start"), ended.says("finish", DONE)] == [200] * 3
        lost_ids = _submit(service, 2, "second").json()["job_ids"]
        installation.look()

    installation.restore()
    with pytest.raises(CommandRefused, match="pilotage db recover"):
        installation.look()
    assert installation.doctor()[0] is Health.BAD
    done = _recover(installation, capsys)
    assert done["quarantined"] == 2
    installation.look()
    assert installation.doctor()[0] is Health.GOOD

    with installation.service() as service:
        old = [running_one, matched, unknown, ended]
        for each in old:
            pilots.again(service, each)
        # Who is known goes on, also who began or ended without our knowing it.
        assert [running_one.says("heartbeat"), running_one.says("finish", DONE)] == [200, 200]
        assert matched.says("finish", DONE) == 200
        # Who is not known is told to stop: 404 and 409 both say that.
        assert [unknown.says("heartbeat"), ended.says("finish", DONE)] == [404, 404]
        assert service.user().get(f"/api/v1/jobs/{lost_ids[0]}").status_code == 404

        again = _submit(service, 2, "second").json()["job_ids"]
        assert min(again) > max(lost_ids), "the same key stores the same jobs, under other ids"
        given: list[_Pilot] = []
        while (pilot := pilots.next(service)).job_id is not None:
            assert [pilot.says("start"), pilot.says("finish", DONE)] == [200, 200]
            given.append(pilot)
        assert {each.job_id for each in given} == {*ids, *again} - {running_one.job_id, matched.job_id}
        assert {_status(service, each) for each in (*ids, *again)} == {"Done"}
        attempts = [each.attempt for each in (*old, *given)]
        assert len(set(attempts)) == len(attempts), "no attempt has the number of one that was lost"


@pytest.mark.parametrize("installation", ["postgresql"], indirect=True)
def test_a_service_that_lives_through_a_restore_gives_out_what_waits_now(
    installation: _Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    with installation.service() as service:
        pilots = _Pilots(service)
        [first] = _submit(service, 1, "first").json()["job_ids"]
        installation.back_up()
        taken = pilots.next(service)
        assert (taken.job_id, taken.says("start")) == (first, 200)
        assert pilots.next(service).job_id is None
        installation.restore()
        again = pilots.wait_for_job(service)
        assert again.job_id == first, "it waits again, and everybody sees it"
        _recover(installation, capsys)
        assert taken.says("heartbeat") == 404
        assert again.says("start") == 200
        [second] = _submit(service, 1, "second").json()["job_ids"]
        assert pilots.next(service).job_id == second


def test_processes_that_live_through_a_restore_store_nothing_until_the_recovery(
    installation: _Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    with installation.service() as service:
        pilots = _Pilots(service)
        seen = LastSeen(service.parts.engine, installation.settings)
        seen.start()
        seen.look(utc_now())
        [kept] = _submit(service, 1, "first").json()["job_ids"]
        installation.back_up()
        [lost] = _submit(service, 1, "second").json()["job_ids"]
        seen.look(utc_now())
        installation.restore_beneath()
        with installation.engine() as engine, db_database.writing(engine) as conn:
            # A process that has not noticed: it gives the number of a lost job to another.
            again = queued_jobs.put(conn, utc_now(), 10)
        assert lost in again
        seen.look(utc_now())

        for _ in range(2):
            refused = [
                _submit(service, 1, "third"),
                service.user().post(f"/api/v1/jobs/{lost}/kill"),
                service.user().post("/api/v1/jobs/kill", json={"ids": [lost]}),
                service.client(pilots.tokens.pop()).post("/api/v1/matcher/requestJob", json=ASKING),
            ]
            assert [each.status_code for each in refused] == [503] * 4
            for each in refused:
                assert "pilotage db recover" in each.json()["error"]["message"]
                assert each.headers["Retry-After"]
            assert service.user().get(f"/api/v1/jobs/{kept}").status_code == 200
            ready = service.user().get("/readyz")
            assert ready.status_code == 503
            assert "pilotage db recover" in ready.json()["checks"]["history"]
            assert installation.doctor()[0] is Health.BAD
            seen.look(utc_now())  # and though others have gone on, it is not forgotten
        with pytest.raises(CommandRefused, match="pilotage db recover"):
            installation.look()

        _recover(installation, capsys)
        seen.look(utc_now())
        assert readiness.run_checks(service.parts)["history"] == "ok"
        assert installation.doctor()[0] is Health.GOOD
        assert _submit(service, 1, "third").status_code == 201
        pilot = service.client(pilots.tokens.pop())
        assert pilot.post("/api/v1/matcher/requestJob", json=ASKING).status_code == 200
