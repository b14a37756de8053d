"""Real pilots at a real service."""

import json
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine

from examples.servers.starting import wait_until
from pilotage.service.auth import keys
from pilotage.service.auth.keys import KeyRing
from taskqueue.db import database
from taskqueue.leases import attempts
from tests.support.pilot_process import (
    PilotProcess,
    files_of,
    run,
    sandbox,
    wait_until_gone,
    wait_until_there,
)
from tests.support.service import KEY, Service, running

QUEUE = "LCG.Test.org/ce01/long"
CONFIG = """
Resources:
  Sites:
    LCG.Test.org:
      CEs:
        ce01:
          CPUModel: Intel Xeon
          Queues:
            long:
              {CPUTime: 100000, MaxRAM: 4000, NumberOfProcessors: 4, Tag: [Special],
               NodeAttributes: {Cores: unknown, Benchmark: unknown}}
            other: {CPUTime: 100000, CPUModel: AMD}
Operations:
  Defaults:
    Leases: {StalledTime: 6}
Registry:
  VO: {cms: {}}
"""
pytestmark = pytest.mark.config(CONFIG)


@pytest.fixture
def user(service: Service) -> httpx.Client:
    client = service.user()
    client.base_url = f"{service.url}/api/v1"
    return client


def submit(user: httpx.Client, **description: object) -> int:
    archive = description.pop("sandbox", None)
    body = {"jobs": [description], **({"sandbox": archive} if archive else {})}
    answer = user.post("/jobs", json=body)
    assert answer.is_success, answer.text
    return int(answer.json()["job_ids"][0])


def test_a_job_with_requirements_sandbox_and_output_is_run(
    service: Service, user: httpx.Client, tmp_path: Path
) -> None:
    stored = user.post(
        "/sandboxes", content=sandbox(run__sh="#!/bin/sh\necho $1 at $DIRACSITE; echo x > x.dat\n")
    )
    job_id = submit(
        user,
        Executable="run.sh",
        Arguments="hello",
        InputSandbox=["run.sh"],
        OutputSandbox=["x.dat"],
        Tags=["Special"],
        Requirements={"CPUModel": "intel xeon"},
        sandbox=stored.json()["sandbox"],
    )

    ended = run(service.url, tmp_path / "work", token=service.token("pilot", vo="cms"))

    job = user.get(f"/jobs/{job_id}").json()
    assert (job["status"], job["minor_status"], job["site"]) == ("Done", "Execution Complete", "LCG.Test.org")
    output = user.get(f"/jobs/{job_id}/output").content
    assert files_of(output) == {"std.out": "hello at LCG.Test.org\n", "std.err": "", "x.dat": "x\n"}
    steps = [entry["to"] for entry in user.get(f"/jobs/{job_id}/log").json()["log"]]
    assert steps[-3:] == ["Matched", "Running", "Done"]
    assert ended["returncode"] == 0


def test_a_result_waits_for_a_host_that_has_not_got_the_key_of_its_token_yet(
    service: Service, user: httpx.Client, tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"
    job_id = submit(
        user, Executable="/bin/sh", Arguments=["-c", f"until [ -e '{go_on}' ]; do sleep 0.1; done"]
    )
    with PilotProcess(service.url, tmp_path / "work", token=service.token("pilot", vo="cms")) as pilot:
        wait_until(lambda: user.get(f"/jobs/{job_id}").json()["status"] == "Running")
        service.parts.tokens._use(KeyRing(signing=keys.generate()))
        go_on.touch()
        pilot.wait_until_it_says("trying again: the key that signed this token is none of this service's")
        service.parts.tokens._use(KeyRing(signing=KEY))
        ended = pilot.end()

    job = user.get(f"/jobs/{job_id}").json()
    assert (job["status"], job["epoch"]) == ("Done", 1)
    assert [each["ended"] for each in ended["jobs"]] == ["Done"]


def test_a_pilot_whose_token_is_revoked_ends_its_payload(
    service: Service, user: httpx.Client, tmp_path: Path
) -> None:
    marker = f"of a revoked one at {tmp_path}"
    submit(user, Executable="/bin/sh", Arguments=["-c", f"while :; do sleep 0.1; done # {marker}"])
    token = service.token("pilot", vo="cms")
    with PilotProcess(service.url, tmp_path / "work", "--processors", "1", token=token) as pilot:
        wait_until_there(marker)
        assert service.operator().post("/api/v1/tokens/revoke", json={"token": token}).is_success
        ended = pilot.end()

    wait_until_gone(marker)
    assert [each["ended"] for each in ended["jobs"]] == ["Lost"]
    assert (ended["returncode"], "(401 revoked)" in ended["reason"]) == (1, True)


def test_the_cpu_time_of_all_processes_of_a_payload_is_told(
    service: Service, user: httpx.Client, tmp_path: Path
) -> None:
    burn = "#!/bin/sh\n(i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done) &\nwait\n"
    stored = user.post("/sandboxes", content=sandbox(run__sh=burn)).json()["sandbox"]
    job_id = submit(user, Executable="run.sh", InputSandbox=["run.sh"], sandbox=stored)

    run(service.url, tmp_path / "work", "--cpu-power", "12.5", token=service.token("pilot", vo="cms"))

    with database.reading(service.parts.engine) as conn:
        attempt = attempts.get_latest(conn, job_id)
    assert attempt is not None
    assert attempt.request is not None
    told = json.loads(attempt.request)["finish"]
    assert 0.01 < told["cpu_seconds"] < 60
    assert told["cpu_power"] == 12.5


def test_an_output_whose_commit_was_lost_is_sent_again_before_the_end(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(engine, tmp_path / "service", CONFIG) as service:
        uploads = service.lose_first_output(monkeypatch)
        user = service.user()
        user.base_url = f"{service.url}/api/v1"
        job_id = submit(user, Executable="/bin/echo", Arguments="here")

        ended = run(service.url, tmp_path / "work", token=service.token("pilot", vo="cms"))

        job = user.get(f"/jobs/{job_id}").json()
        assert (job["status"], job["epoch"], len(uploads)) == ("Done", 1, 2)
        assert files_of(user.get(f"/jobs/{job_id}/output").content)["std.out"] == "here\n"
        assert [each["ended"] for each in ended["jobs"]] == ["Done"]


def test_a_job_is_taken_by_the_pilot_whose_node_has_what_it_asks(
    service: Service, user: httpx.Client, tmp_path: Path
) -> None:
    job_id = submit(user, Executable="true", Requirements="other.Cores >= 1 && other.Benchmark > 500")
    ends = {}
    for benchmark in (400, 501):
        facts = tmp_path / f"{benchmark}.json"
        facts.write_text(f'{{"Benchmark": {benchmark}}}')
        token = service.token("pilot", vo="cms")
        ends[benchmark] = run(service.url, tmp_path / "work", "--facts", str(facts), token=token)

    assert ends[400]["jobs"] == []
    assert [job["job_id"] for job in ends[501]["jobs"]] == [job_id]
    assert user.get(f"/jobs/{job_id}").json()["status"] == "Done"


def test_a_pilot_that_ends_is_known_as_done_with_its_reason(
    service: Service, user: httpx.Client, tmp_path: Path
) -> None:
    run(service.url, tmp_path / "work", token=service.token("pilot", vo="cms", stamp="abc"))

    [pilot] = service.operator().get("/api/v1/pilots").json()["pilots"]
    assert (pilot["stamp"], pilot["status"]) == ("abc", "Done")
    assert pilot["status_reason"].startswith("no work")


def test_jobs_fill_a_pilot_and_together_have_no_more_than_it(
    service: Service, user: httpx.Client, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    meet = f"touch {place}/$JOBID; while [ $(ls {place} | wc -l) -lt 3 ]; do sleep 0.05; done; env"
    asked: tuple[dict[str, object], ...] = (
        {"NumberOfProcessors": 2, "MinRAM": 1000},
        {"MinRAM": 1500},
        {},
    )
    jobs = [submit(user, Executable="/bin/sh", Arguments=f"-c '{meet}'", **each) for each in asked]
    alone = submit(user, Executable="/bin/sh", Arguments="-c env", MinRAM=3900)

    ended = run(service.url, tmp_path / "work", token=service.token("pilot", vo="cms"))

    assert {job["job_id"] for job in ended["jobs"]} == {*jobs, alone}
    assert {job["ended"] for job in ended["jobs"]} == {"Done"}
    seen = [files_of(user.get(f"/jobs/{job}/output").content)["std.out"] for job in (*jobs, alone)]
    shares = [dict(line.split("=", 1) for line in text.splitlines() if "=" in line) for text in seen]
    assert [each["DIRAC_JOB_PROCESSORS"] for each in shares] == ["2", "1", "1", "1"]
    memory = [int(each["PILOTAGE_JOB_RAM"]) for each in shares]
    assert memory[:2] == [1000, 1500]
    assert sum(memory[:3]) <= 4000
    assert memory[3] == 3900


def test_pilots_without_space_take_no_job_and_their_node_is_excluded(
    service: Service, user: httpx.Client, tmp_path: Path
) -> None:
    job_id = submit(user, Executable="/bin/true")
    director = service.as_role("director", vo="cms")

    def send(number: int, *words: str, node: str = "") -> dict[str, object]:
        stamp = f"north.any.{number}"
        answer = director.post("/api/v1/pilots", json={"stamp": stamp, "queue": QUEUE, "secret": True})
        file = tmp_path / stamp
        file.write_text(answer.json()["secret"])
        secret = ("--secret-file", str(file), "--stamp", stamp)
        variables = {"PILOTAGE_NODE": node}
        return run(service.url, tmp_path / "work", *secret, *words, environment=variables)

    ended = [send(number, "--least-space", "1000000000") for number in range(3)]
    excluded = send(3)

    assert [each["returncode"] for each in (*ended, excluded)] == [4] * 4
    assert "MB are free, less than 1000000000 MB" in str(ended[0]["reason"])
    assert str(excluded["reason"]).startswith("this host is excluded until ")
    job = user.get(f"/jobs/{job_id}").json()
    assert (job["status"], job["epoch"]) == ("Waiting", 0)
    shown = director.get("/api/v1/pilots/north.any.3").json()
    assert (shown["status"], shown["host_trouble"], shown["empty_reason"]) == (
        "Failed",
        False,
        "node_excluded",
    )
    log = director.get("/api/v1/pilots/north.any.3/output").json()
    assert "this host is excluded until" in log["log"]
    assert (log["stdout"], log["stored_at"]) == ("", None)

    elsewhere = send(4, node="node-8")  # of which this host has not the name
    assert [each["job_id"] for each in elsewhere["jobs"]] == [job_id]
    assert director.get("/api/v1/pilots/north.any.4").json()["node"] == "node-8"
