"""For what a job waited, over HTTP: pilots asked, and a limit kept it out."""

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine

from pilotage.service import app
from pilotage.service.services import utc_now
from tests.support.service import running

TREE = """
Resources:
  Sites:
    LCG.A.org: {VO: [cms], CEs: {ce1: {Queues: {long: {CPUTime: 100000}}}}}
Registry:
  VO: {cms: {}}
"""
LIMIT = "Operations: {Defaults: {JobScheduling: {RunningLimit: {LCG.A.org: {JobType: {Merge: 0}}}}}}"
JOB = {"Executable": "/bin/true", "JobType": "Merge", "CPUTime": 3600}
AT = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100_000, "JobType": "Merge"}


def test_a_job_that_a_running_limit_held_shows_the_limit(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(app, "_store_wait_causes", lambda *_: None)  # at no time but below
    later = [timedelta()]
    start = [utc_now()]
    with running(engine, tmp_path, TREE + LIMIT, clock=lambda: start[0] + later[0]) as service:
        user, pilot = service.user(), service.pilot("LCG.A.org/ce1/long")
        [job_id] = user.post("/api/v1/jobs", json={"jobs": [JOB]}).json()["job_ids"]
        start[0] = utc_now()
        for seconds in (0, 20, 40, 60):
            later[0] = timedelta(seconds=seconds)
            answer = pilot.post("/api/v1/matcher/requestJob", json=AT).json()
            assert (answer["matches"], answer["reason"]) == ([], "limits")
        service.parts.wait_causes.store()  # as each minute
        service.configure(TREE)
        later[0] = timedelta(seconds=80)
        [match] = pilot.post("/api/v1/matcher/requestJob", json=AT).json()["matches"]
        assert match["job_id"] == job_id
        waited = user.get(f"/api/v1/jobs/{job_id}").json()["waited"]
        assert next(iter(waited)) == "limits"
        assert waited["limits"] >= 60
        assert waited["a pilot"] == 20  # after the last minute's causes were stored
