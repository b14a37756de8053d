"""The example that carries a JIM job file over: nothing of it is lost, and what comes out is taken."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from pilotage.cli import application
from pilotage.fabric.manager.grid_job import AttemptKey
from pilotage.service.services import utc_now
from taskqueue.db import database
from tests.support.gateway import Ground
from tests.support.service import Service, running

PROJECT = Path(__file__).parents[3]
JIM = PROJECT / "examples" / "jim"
PAGE = PROJECT / "docs" / "user" / "grid-jobs.md"
QUEUE = "OSG.samgfarm.us/gate/farm"
LINES = [line for line in (JIM / "job.jim").read_text().splitlines() if line]


@pytest.mark.parametrize("line", LINES)
def test_every_line_has_a_row_whose_words_stand_in_the_description(line: str) -> None:
    [row] = [each for each in PAGE.read_text().splitlines() if each.startswith(f"| `{line}` |")]
    ours = row.split("|")[2].strip()
    ours_text = (JIM / "montecarlo.jdl").read_text()
    if line.startswith("instances"):
        assert ours.startswith("nothing")
        return
    words = ours.strip("`").replace("…", "\n")
    for part in re.sub(r'Arguments = "|";$', "", words).split("\n"):
        assert part.strip() in ours_text


@pytest.fixture
def service(sqlite_url: str, tmp_path: Path) -> Iterator[Service]:
    engine: Engine = database.connect(sqlite_url)
    with running(engine, tmp_path, (JIM / "resources.yaml").read_text()) as service:
        yield service
    engine.dispose()


def test_the_example_is_submitted_and_planned_as_eighty_local_jobs(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PILOTAGE_URL", service.url)
    monkeypatch.setenv("PILOTAGE_TOKEN", service.token("user", vo="dzero", user="ada"))
    monkeypatch.setenv("PILOTAGE_HOME", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        application.main(["job", "submit", str(JIM / "montecarlo.jdl")])
    assert ended.value.code == 0
    job_id = int(capsys.readouterr().out)
    ground = Ground(service, tmp_path / "gateway", monkeypatch)
    (ground.directory / "given").write_text(service.token("gateway", vo="dzero", site="OSG.samgfarm.us"))
    # Its host has no room for local jobs: they wait.
    farm = {"kind": "local", "directory": str(tmp_path / "farm"), "cores": 1, "memory": 1}
    queues = [{"queue": QUEUE, "system": "host", "batch_queue": "local", "memory": 1}]
    with ground.gateway(
        vos=["dzero"], queues=queues, systems={"host": farm}, max_jobs_per_cycle=1
    ) as gateway:
        assert not gateway.talk(utc_now()).list_problems()
        gateway.manager.advance()
        [grid_job] = gateway.manager.grid_jobs()
        gateway.talk(utc_now())
        gateway.manager.journal.cancel(AttemptKey(job_id, 1))
        gateway.manager.advance()
    assert sum(grid_job.local.values()) == 80
    job = ground.job(job_id)
    assert job["status"] == "Running"
    assert job["description"]["NotifyUser"] == "ada@example.org"
    assert sum(job["attempt"]["local_jobs"].values()) == 80
