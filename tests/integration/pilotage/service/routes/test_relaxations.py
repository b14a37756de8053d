"""Over HTTP: what jobs that wait long will give up, and gave up, by their rules."""

from datetime import timedelta
from typing import Any

from sqlalchemy import update

from agents import lost_jobs
from cs_config.versions import store
from taskqueue.db import database
from taskqueue.jobs import jobs
from taskqueue.schema.tables import job_log
from tests.support import databases
from tests.support.factories import stored_rows
from tests.support.service import CONFIG, Service

pytestmark = databases.BOTH

RULES = ["after 2 h: Memory = 4000", "after 4 h: without CPUModel, Memory x 0.5"]
ASKED = {"Executable": "true", "Requirements": {"Memory": 16_000, "CPUModel": "Intel Xeon"}, "Relax": RULES}


def _relax(service: Service, job_id: int, *, hours: float) -> int:
    """Let the agent see a job that waited for so long; how many gave something up."""
    with database.reading(service.engine) as conn:
        config = store.load_version(conn)
        submitted_at = jobs.get_job(conn, job_id).submitted_at
    later = submitted_at + timedelta(hours=hours)
    stored_rows.service_up(service.engine, submitted_at, later, process=f"up for {hours} h")
    stored_rows.watched(service.engine, submitted_at, later, vo="cms")
    result = lost_jobs.cycle(service.engine, config, now=later, holder="test")
    assert result is not None
    return result.relaxed


def _read(service: Service, path: str) -> dict[str, Any]:
    answer = service.user().get(f"/api/v1/jobs/{path}")
    assert answer.is_success, answer.text
    return dict(answer.json())


def test_what_was_given_up_and_what_is_left_are_shown(service: Service):
    [job_id] = service.submit(ASKED)
    assert _read(service, f"{job_id}")["relaxations"] == []
    assert _relax(service, job_id, hours=2.5) == 1
    found = _read(service, f"{job_id}")
    assert [each["note"] for each in found["relaxations"]] == ["after 2 h: Memory 16000 → 4000"]
    assert found["description"]["Requirements"] == {"Memory": 4000, "CPUModel": "Intel Xeon"}
    assert found["description"]["Relax"] == RULES[1:]


def test_an_explanation_names_the_next_step(service: Service):
    [job_id] = service.submit({**ASKED, "Relax": "after 9 h: Memory = 4000"})
    told = _read(service, f"{job_id}/explain")["now"]
    # Not "2 h": they would be 120 min once the service has recorded that it was up for a moment.
    assert "in 9 h, if nothing fits until then, it asks for less: Memory = 4000 (Relax)" in told
    [plain] = service.submit({"Executable": "true"})
    assert not [each for each in _read(service, f"{plain}/explain")["now"] if "asks for less" in each]


def test_an_explanation_names_a_step_that_no_queue_could_run(service: Service):
    [job_id] = service.submit({**ASKED, "Relax": ["after 1 min: Memory = 64000"]})
    with database.writing(service.engine) as conn:
        submitted_at = jobs.get_job(conn, job_id).submitted_at
        before = submitted_at - timedelta(hours=1)
        conn.execute(update(job_log).where(job_log.c.job_id == job_id).values(at=before))
    stored_rows.service_up(service.engine, before, submitted_at, process="another")
    stored_rows.watched(service.engine, before, submitted_at, vo="cms")
    told = _read(service, f"{job_id}/explain")["now"]
    assert "asks for less at once, if a queue could run it then: Memory = 64000 (Relax)" in told


def test_rules_of_a_vo_are_shown_as_such(service: Service):
    rule = 'Relax: {default: "after 9 h: Memory x 0.5"}'
    service.configure(CONFIG.replace("JobDescription:\n", f"JobDescription:\n      {rule}\n"))
    [job_id] = service.submit({"Executable": "true", "MinRAM": 2000})
    told = _read(service, f"{job_id}/explain")["now"]
    whose = "Relax of cms, as far as it asks for it"
    assert f"in 9 h, if nothing fits until then, it asks for less: Memory x 0.5 ({whose})" in told
    assert _relax(service, job_id, hours=9.1) == 1
    assert _read(service, f"{job_id}")["description"]["MinRAM"] == 1000


def test_a_rule_that_cannot_be_applied_is_refused_at_submission(service: Service):
    for rule, problem in (
        ("after 2 h: without Platform", "Platform is not in the description"),
        ("after 2 h: CPUTime = long", "allowed is a whole number"),
        ("after 2 h: Owner = bob", "a job keeps its owner"),
    ):
        jobs = [{"Executable": "true", "Relax": rule}]
        answer = service.user().post("/api/v1/jobs", json={"jobs": jobs})
        assert answer.status_code == 400
        assert problem in answer.text, answer.text
