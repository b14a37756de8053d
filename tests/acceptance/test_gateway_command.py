"""`pilotage gateway` as a process: killed in the middle, started again, and what it says of a wrong file."""

import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from agents import lost_jobs
from examples.servers.slurm import Slurm
from examples.servers.starting import wait_until
from optimizers.chain import batch
from pilotage.client.api import ServiceClient
from pilotage.service.services import utc_now
from tests.support.namespaces import userns, visible_directory
from tests.support.processes import PILOTAGE, Supervised
from tests.support.service import Service, running_on_sqlite

PROJECT = Path(__file__).parents[2]
RESOURCES = PROJECT / "examples" / "jim" / "resources.yaml"
SITE, QUEUE = "OSG.samgfarm.us", "OSG.samgfarm.us/gate/farm"
DRIVER = """\
#!/bin/sh
last=$((FIRST_EVENT + EVENTS - 1))
for event in $(seq $FIRST_EVENT $last)
do
  echo $event >>events.txt
  pilotage-progress generated $((event - FIRST_EVENT + 1)) $EVENTS
  while ! [ -e "$GO" ]; do sleep 0.1; done
done
"""
JOB = {
    "JobType": "montecarlo",
    "Events": 60,
    "EventsPerJob": 20,
    "Executable": "driver.sh",
    "InputSandbox": ["driver.sh"],
    "OutputSandbox": ["events.txt"],
}


@pytest.fixture
def service(sqlite_template: Path, tmp_path: Path) -> Iterator[Service]:
    with running_on_sqlite(sqlite_template, tmp_path, RESOURCES.read_text()) as service:
        yield service


@pytest.fixture
def file(service: Service, tmp_path: Path) -> Path:
    """The file of a gateway before this host."""
    (tmp_path / "token").write_text(service.token("gateway", vo="dzero", site=SITE))
    said = {
        "url": service.url,
        "name": "gate",
        "token_file": str(tmp_path / "token"),
        "vos": ["dzero"],
        "directory": str(tmp_path / "state"),
        "systems": {
            "host": {"kind": "local", "directory": str(tmp_path / "farm"), "cores": 3, "memory": 9000}
        },
        "queues": [{"queue": QUEUE, "system": "host", "batch_queue": "local", "memory": 200}],
        "polling_time": 0.5,
        "job_polling_time": 0.3,
        "isolation": "none",  # its jobs wait for a file of the test
        "beat": 0.5,
    }
    path = tmp_path / "gateway.yaml"
    path.write_text(yaml.safe_dump(said))
    return path


@pytest.fixture
def slurm_file(file: Path, slurm: Slurm, tmp_path: Path) -> Path:
    """The same file, before a real Slurm."""
    said = yaml.safe_load(file.read_text())
    directory, environment = str(tmp_path / "farm"), dict(slurm.environment)
    said["systems"]["host"] = {"kind": "slurm", "directory": directory, "environment": environment}
    said["queues"][0]["batch_queue"] = "long"
    file.write_text(yaml.safe_dump({**said, "settle": 1, "lost_after": {"listings": 2, "seconds": 2}}))
    return file


@dataclass(frozen=True)
class Begun:
    """A gateway that was killed while local jobs of a grid job ran; those have ended since."""

    client: ServiceClient
    job_id: int
    gateway: Supervised

    def go_on(self) -> None:
        """Start it again; what it brings has each event once, of the attempt that had begun."""
        self.gateway.start()
        wait_until(lambda: self.client.job(self.job_id)["status"] in ("Done", "Failed"))
        ended = self.client.job(self.job_id)
        assert (ended["status"], ended["epoch"]) == ("Done", 1), self.gateway.log.read_text()
        assert _generated(self.client, self.job_id) == [(60, 60, "events")]
        assert ended["attempt"]["local_jobs"] == {"done": 3}
        assert sorted(_events(self.client, self.job_id)) == list(range(1, 61))


@pytest.fixture
def begun(service: Service, file: Path, tmp_path: Path) -> Iterator[Begun]:
    yield from _begin(service, file, tmp_path)


@pytest.fixture
def begun_on_slurm(service: Service, slurm_file: Path, tmp_path: Path) -> Iterator[Begun]:
    yield from _begin(service, slurm_file, tmp_path)


def _begin(service: Service, file: Path, tmp_path: Path) -> Iterator[Begun]:
    go, log = tmp_path / "go", tmp_path / "gateway.log"
    client = ServiceClient(service.url, service.token("user", vo="dzero", user="ada"))
    job_id = _submit(client, go)
    gateway = Supervised("gateway", ["gateway", "--config", str(file), "--json"], env={}, log=log)
    gateway.start()
    try:
        wait_until(lambda: _generated(client, job_id) == [(3, 60, "events")])
        # Its log tells at the end of a round what there was.
        wait_until(lambda: '"polling": 1' in log.read_text())
        gateway.kill()
        go.touch()
        yield Begun(client, job_id, gateway)
    finally:
        go.touch()
        gateway.stop()
        client.close()


def test_killed_in_the_middle_and_started_again_it_brings_every_event_once(begun: Begun) -> None:
    begun.go_on()
    lines = begun.gateway.log.read_text().splitlines()
    rounds = [json.loads(line) for line in lines if line.startswith('{"at": "')]
    assert any(each.get("grid_jobs") == {"polling": 1} for each in rounds)


def test_started_again_after_its_job_was_given_up_it_goes_on_with_what_is_done(
    service: Service, begun: Begun
) -> None:
    _give_up(service, begun)
    begun.go_on()
    assert begun.client.job(begun.job_id)["reschedules"] == 0


@pytest.mark.debian("slurm")
def test_after_an_hour_it_goes_on_with_local_jobs_that_slurm_has_forgotten(
    service: Service, begun_on_slurm: Begun, slurm: Slurm, tmp_path: Path
) -> None:
    """They ended while the gateway was away; only their status files are left, and the job was given up."""
    wait_until(lambda: not slurm.ask("squeue", "--noheader", "--me"))
    slurm.forget_jobs()
    _give_up(service, begun_on_slurm)
    begun_on_slurm.go_on()
    assert begun_on_slurm.client.job(begun_on_slurm.job_id)["reschedules"] == 0
    assert not slurm.ask("squeue", "--noheader", "--me", "--states=all"), "none was submitted again"


def _give_up(service: Service, begun: Begun) -> None:
    """Have the service give the job up after a silence, as after an hour with usual options."""
    short = "Leases: {StalledTime: 2, StalledGrace: 1, RunOnTime: 3}"
    service.configure(RESOURCES.read_text().replace("  dzero:\n    Job", f"  dzero:\n    {short}\n    Job"))
    wait_until(lambda: _is_given_up(service, begun.client, begun.job_id))
    service.configure(RESOURCES.read_text())


def _submit(client: ServiceClient, go: Path) -> int:
    """A job whose local jobs make an event each, and the others when `go` is there."""
    with io.BytesIO() as packed:
        with tarfile.open(fileobj=packed, mode="w") as archive:
            member = tarfile.TarInfo("driver.sh")
            member.size, member.mode = len(DRIVER), 0o755
            archive.addfile(member, io.BytesIO(DRIVER.encode()))
        packed.seek(0)
        sandbox = client.upload_sandbox(packed)
    job = {**JOB, "ExecutionEnvironment": {"GO": str(go)}}
    [job_id] = client.submit(jobs=[job], sandbox=sandbox, idempotency_key="once")
    return job_id


def _is_given_up(service: Service, client: ServiceClient, job_id: int) -> bool:
    """One cycle of the agent; whether the job waits for another pilot."""
    engine, config = service.engine, service.parts.live.current
    lost_jobs.cycle(engine, config, now=utc_now(), holder="test")
    if client.job(job_id)["status"] == "Rescheduled":
        for hours in (0, 1):  # a job that was rescheduled is held for a while
            batch.optimize(engine, config, [job_id], now=utc_now() + timedelta(hours=hours))
    return bool(client.job(job_id)["status"] == "Waiting")


def _generated(client: ServiceClient, job_id: int) -> list[tuple[int, int, str]]:
    phases = (client.job(job_id)["attempt"] or {}).get("phases", [])
    return [(each["done"], each["of"], each["unit"]) for each in phases if each["name"] == "generated"]


def _events(client: ServiceClient, job_id: int) -> list[int]:
    with io.BytesIO() as packed:
        client.output(job_id, packed)
        packed.seek(0)
        with tarfile.open(fileobj=packed) as archive:
            files = [archive.extractfile(name) for name in archive.getnames() if "events" in name]
            return [int(line) for each in files if each is not None for line in each.read().split()]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(PILOTAGE), *words], capture_output=True, text=True, timeout=300, check=False)
    assert "Traceback" not in done.stderr
    return done


@contextmanager
def idle_gateway(file: Path) -> Iterator[None]:
    """A gateway that has looked for work, and found none."""
    log = file.with_suffix(".log")
    with Supervised("gateway", ["gateway", "--config", str(file)], env={}, log=log):
        wait_until(lambda: "grid jobs: none" in log.read_text())
        yield


def test_one_round_tells_what_it_did_and_a_second_gateway_is_refused(file: Path) -> None:
    done = run("gateway", "--config", str(file), "--once", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["grid_jobs"], told["advertised"], told["away"]) == ({}, 3, [])
    with idle_gateway(file):
        second = run("gateway", "--config", str(file), "--once")
    assert second.returncode == 1
    assert "another manager has it open" in second.stderr


def check(file: Path, **queue: object) -> tuple[int, str, str]:
    """The check of a gateway whose queue is stated like this: exit status, error of its system, messages."""
    said = yaml.safe_load(file.read_text())
    said["queues"][0].update(queue)
    file.write_text(yaml.safe_dump(said))
    done = run("gateway", "--config", str(file), "--check", "--json")
    answers = json.loads(done.stdout) if done.stdout else [{"error": ""}]
    return done.returncode, answers[0]["error"], done.stderr


def test_the_check_passes_beside_a_gateway_that_works(file: Path) -> None:
    with idle_gateway(file):
        assert check(file)[:2] == (0, "")


def test_the_check_fails_where_the_batch_system_would_refuse_each_local_job(file: Path) -> None:
    status, error, _ = check(file, batch_queue="nosuch")
    assert (status, error) == (1, f"{QUEUE}: no batch queue nosuch, there are local")

    status, error, _ = check(file, batch_queue="local", cores=4)
    assert status == 1
    assert error.startswith(f"{QUEUE}: a job would be refused: requires 4 cores")


@pytest.mark.debian("slurm")
def test_the_check_fails_where_slurm_would_refuse_each_local_job(slurm_file: Path) -> None:
    assert check(slurm_file)[:2] == (0, "")
    status, error, _ = check(slurm_file, flags=["--foo"])
    assert (status, "sbatch: unrecognized option '--foo'" in error) == (1, True), error


def test_the_check_names_queues_that_are_not_in_the_tree(file: Path) -> None:
    status, _, messages = check(file, queue="OSG.samgfarm.us/gate/nosuch")
    assert (status, "queues/0: OSG.samgfarm.us/gate/nosuch: " in messages) == (2, True), messages


def test_a_wrong_file_is_told_in_a_line_for_each_problem(file: Path) -> None:
    said = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**said, "poling_time": 1, "job_types": {"montcarlo": {}}, "vos": []}))
    done = run("gateway", "--config", str(file), "--once")
    assert done.returncode == 2
    assert "poling_time: unknown setting, did you mean polling_time?" in done.stderr
    assert len(done.stderr.splitlines()) == 2
    file.write_text(yaml.safe_dump({**said, "job_types": {"montcarlo": {}}}))
    done = run("gateway", "--config", str(file), "--once")
    assert (done.returncode, "did you mean montecarlo?" in done.stderr) == (2, True)


@userns
def test_local_jobs_see_no_file_of_their_gateway(
    service: Service, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    client = ServiceClient(service.url, service.token("user", vo="dzero", user="ada"))
    with visible_directory() as place:
        (place / "keys").mkdir()
        (place / "keys" / "token").write_text(service.token("gateway", vo="dzero", site=SITE))
        said = yaml.safe_load(file.read_text().replace(str(tmp_path), str(place)))
        said |= {"isolation": "strongest", "token_file": str(place / "keys" / "token")}
        file.write_text(yaml.safe_dump(said))
        job = {"JobType": "generic", "Executable": "/usr/bin/find", "Arguments": [str(place), "-type", "f"]}
        [job_id] = client.submit(jobs=[job], idempotency_key="once")
        log = tmp_path / "gateway.log"
        with Supervised("gateway", ["gateway", "--config", str(file)], env={}, log=log):
            wait_until(lambda: client.job(job_id)["status"] in ("Done", "Failed"))
        assert (place / "state").is_dir()
    assert _texts(client, job_id, "std.out") == [""], log.read_text()
    client.close()


def _texts(client: ServiceClient, job_id: int, name: str) -> list[str]:
    """The files of the output whose names begin so."""
    with io.BytesIO() as packed:
        client.output(job_id, packed)
        packed.seek(0)
        with tarfile.open(fileobj=packed) as archive:
            files = [archive.extractfile(each) for each in archive.getnames() if each.startswith(name)]
            return [each.read().decode() for each in files if each is not None]
