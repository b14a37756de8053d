"""Doors are killed at random moments while JobAgents run jobs: every job ends once, and runs once.

The agents report as those of DIRAC do: a report without an answer is repeated, a request for a job is not.
Some payloads fail, are rescheduled by their JobWrapper, or go silent. By hand, for as long as one wants:

    python -m tests.acceptance.test_dirac_kills --minutes 10 --seed 7
"""

import argparse
import logging
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, and_, func, select, update

from examples.servers import starting
from examples.servers.certificates import Authority, make_proxy
from examples.servers.dirac_wire import WireClient
from examples.servers.postgres import Postgres
from requirements.states import FINAL
from taskqueue.db import database
from taskqueue.leases.attempts import FINISHED
from taskqueue.schema.tables import attempts, job_log, jobs
from tests.support.processes import Supervised

_log = logging.getLogger(__name__)

RESOURCES = """
Resources:
  Sites: {LCG.A.org: {VO: [lhcb], CEs: {ce1: {Queues: {long: {CPUTime: 100000}}}}}}
Operations: {Defaults: {JobScheduling: {RescheduleDelays: [0], MaxRescheduling: 20}}}
Registry:
  VO: {lhcb: {}}
  Users: {ada: {DN: /DC=test/CN=ada}, pia: {DN: /DC=test/CN=pia}}
  Groups:
    lhcb_user: {VO: lhcb, Users: [ada], Properties: [NormalUser]}
    lhcb_pilot: {VO: lhcb, Users: [pia], Properties: [GenericPilot]}
"""
RESOURCE = {"Site": "LCG.A.org", "GridCE": "ce1", "CEQueue": "long", "CPUTime": "90000", "MaxRAM": 0}
#: Seconds between two tries of a report, and for all jobs to end after the last kill.
PAUSE, PATIENCE = 0.5, 300.0
#: Jobs that wait, at least, while agents ask.
_BACKLOG = 30
_NO_MATCH = 1510
#: By which the clock of a door may differ from ours.
_CLOCKS = timedelta(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kills:
    """What happens, and for how long."""

    directory: Path
    database_url: str
    seconds: float
    seed: int = 1
    doors: int = 2
    agents: int = 8


@dataclass(slots=True)
class Record:
    """What the agents and the user have seen; all of them write."""

    submitted: set[int] = field(default_factory=set)  #: jobs whose submission was answered
    asking: dict[str, datetime] = field(default_factory=dict)  #: since when an agent waits for a match
    held: dict[str, int] = field(default_factory=dict)  #: the job that an agent has now
    ended: Counter[int] = field(default_factory=Counter)  #: ends of payloads that were reported, by job
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def end(self, job_id: int) -> None:
        with self._lock:
            self.ended[job_id] += 1


def run(plan: Kills) -> Record:
    """Run it; flaws are among the record's faults."""
    record, over, idle = Record(), threading.Event(), threading.Event()
    with _running(plan) as (doors, clients):
        engine = database.connect(plan.database_url)
        user, *agents = clients
        threads = [threading.Thread(target=_submit, args=(user, record, engine, idle), daemon=True)]
        for number, (pilot, payload) in enumerate(agents):
            agent = _Agent(pilot, payload, record, random.Random(f"{plan.seed} {number}"))
            threads.append(threading.Thread(target=agent.run, args=(over,), daemon=True))
        for each in threads:
            each.start()
        try:
            _kill(doors, record, plan)
            idle.set()
            _recover(engine, record)
        finally:
            idle.set()
            over.set()
            for each in threads:
                each.join(PATIENCE)
        record.faults += _find_flaws(engine, record)
        engine.dispose()
    for door in doors:
        if "Traceback" in door.log.read_text():
            record.faults.append(f"{door.log} has a traceback")
    return record


@contextmanager
def _running(plan: Kills) -> Iterator[tuple[Sequence[Supervised], Sequence[Any]]]:
    """Doors with an agent for lost jobs, and clients: a user, then pilots with their payloads."""
    authority = Authority(plan.directory)
    host, secret = authority.sign("host")
    people = {name: authority.sign(name) for name in ("ada", "pia")}
    (plan.directory / "resources.yaml").write_text(RESOURCES)
    ports = [starting.free_port() for _ in range(plan.doors)]
    urls = [f"https://localhost:{port}" for port in ports]
    environment = {
        "PILOTAGE_HOME": str(plan.directory / "home"),
        "PILOTAGE_DATABASE_URL": plan.database_url,
    }
    commands = {
        str(port): [
            *("dirac-door", "--port", str(port), "--tls-certificate", str(host), "--tls-key", str(secret)),
            *("--authorities", str(authority.link_by_hash())),
            *("--resources", str(plan.directory / "resources.yaml")),
        ]
        for port in ports
    }
    commands["agent"] = ["agent", "lost-jobs", "sweep"]

    def make_client(name: str, group: str, label: str) -> WireClient:
        proxy = make_proxy(*people[name], plan.directory / f"{name}{label}.proxy", group=group)
        return WireClient(urls=urls, proxy=proxy, authority=authority.certificate)

    clients: list[Any] = [make_client("ada", "lhcb_user", "")]
    clients += [
        (make_client("pia", "lhcb_pilot", str(number)), make_client("ada", "lhcb_user", f"-{number}"))
        for number in range(plan.agents)
    ]
    processes = []
    try:
        for name, arguments in commands.items():
            process = Supervised(name, arguments, env=environment, log=plan.directory / f"{name}.log")
            processes.append(process)
            process.start()
            if name != "agent":
                starting.wait_until(lambda log=process.log: "answers" in log.read_text(), PATIENCE)
        yield processes[: plan.doors], clients
    finally:
        for process in processes:
            process.stop()


def _kill(doors: Sequence[Supervised], record: Record, plan: Kills) -> None:
    """Kill one door or all at random moments; they are started again."""
    dice, end = random.Random(plan.seed), time.monotonic() + plan.seconds
    while time.monotonic() < end:
        pause = time.monotonic() + dice.uniform(0.5, 10)
        while time.monotonic() < min(pause, end):
            for door in doors:
                door.keep_alive()
            time.sleep(0.1)
        for door in doors if dice.random() < 0.2 else [dice.choice(doors)]:
            if _answers(door):  # else it is starting: that is no moment of its work
                door.kill()
                record.count("kills")
    starting.wait_until(lambda: all(_is_kept(door) for door in doors), PATIENCE)


def _answers(door: Supervised) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(door.name))) == 0


def _is_kept(door: Supervised) -> bool:
    door.keep_alive()
    return door.is_running


def _submit(user: WireClient, record: Record, engine: Engine, idle: threading.Event) -> None:
    """Keep some jobs waiting."""
    jdl = "Executable = /bin/echo; Arguments = %s; CPUTime = 1000; Parameters = 5"
    waiting = select(func.count()).select_from(jobs).where(jobs.c.status.in_(["Received", "Waiting"]))
    while not idle.wait(PAUSE):
        with database.reading(engine) as conn:
            if (conn.execute(waiting).scalar() or 0) >= _BACKLOG:
                continue
        try:
            answer = user.call("JobManager", "submitJob", jdl)
        except OSError:
            record.count("submissions without an answer")
            continue
        if answer["OK"]:
            record.submitted.update(answer["Value"])
        else:
            record.faults.append(f"submitJob: {answer['Message']}")


class _Agent:
    """A JobAgent with its JobWrappers, one after the other."""

    def __init__(self, pilot: WireClient, payload: WireClient, record: Record, dice: random.Random) -> None:
        self._pilot, self._payload, self._record, self._dice = pilot, payload, record, dice

    def run(self, over: threading.Event) -> None:
        """Take jobs and run them."""
        resource = {**RESOURCE, "PilotReference": f"https://ce1/{self._pilot.proxy.stem}"}
        while not over.is_set():
            self._record.asking[self._pilot.proxy.stem] = datetime.now(UTC)
            try:
                answer = self._pilot.call("Matcher", "requestJob", resource)
            except OSError:
                self._record.count("requests without an answer")
                over.wait(PAUSE)
                continue
            if answer["OK"]:
                job_id = answer["Value"]["JobID"]
                self._record.held[self._pilot.proxy.stem] = job_id
                del self._record.asking[self._pilot.proxy.stem]
                self._run_job(job_id)
                del self._record.held[self._pilot.proxy.stem]
            else:
                if answer["Errno"] != _NO_MATCH:
                    self._record.faults.append(f"requestJob: {answer['Message']}")
                over.wait(PAUSE)

    def _run_job(self, job_id: int) -> None:
        self._record.count("matches")
        self._report(self._pilot, "setJobStatusBulk", job_id, _statuses("Matched", "Job Received by Agent"))
        fate = self._dice.random()
        if fate < 0.05:
            self._record.count("silent payloads")
            return
        self._report(self._payload, "setJobStatusBulk", job_id, _statuses("Running", "Job Initialization"))
        if fate < 0.1:
            self._record.count("rescheduled by JobWrappers")
            status = _statuses("Rescheduled", "Input Sandbox Download")
            self._report(self._payload, "setJobStatusBulk", job_id, status)
            try:  # as genuine ones, which do not repeat it
                self._payload.call("JobManager", "rescheduleJob", job_id)
            except OSError:
                self._record.count("rescheduleJob without an answer")
            return
        self._report(self._payload, "setJobParameters", job_id, [["HostName", "node7"]])
        for _ in range(self._dice.randrange(4)):
            time.sleep(self._dice.uniform(0, 0.5))
            beat = self._report(self._payload, "sendHeartBeat", job_id, {}, {"StandardOutput": "hello"})
            if "Kill" in beat["Value"]:
                self._record.count("killed payloads")
                return
        end = "Failed" if fate < 0.2 else "Done"
        self._report(self._payload, "setJobStatusBulk", job_id, _statuses(end, "Execution Complete"))
        self._report(self._payload, "setJobParameter", job_id, "OutputSandbox", "uploaded")
        self._record.end(job_id)

    def _report(self, sender: WireClient, method: str, *arguments: object) -> dict[str, Any]:
        """Report until there is an answer, as a JobReport and its requests do."""
        while True:
            try:
                answer = sender.call("JobStateUpdate", method, *arguments)
            except OSError:
                self._record.count("reports without an answer")
                time.sleep(PAUSE)
                continue
            if not answer["OK"]:
                self._record.faults.append(f"{method}{arguments}: {answer['Message']}")
                return {"OK": False, "Value": {}}
            return answer


def _statuses(status: str, minor: str) -> dict[str, dict[str, str]]:
    """One status with its time."""
    now = datetime.now(UTC).replace(tzinfo=None)
    return {str(now): {"Status": status, "MinorStatus": minor, "Source": "JobWrapper"}}


def _recover(engine: Engine, record: Record) -> None:
    """Wait until all jobs have ended; attempts that no agent has get short times."""
    living = select(jobs.c.job_id, jobs.c.status).where(jobs.c.status.not_in(FINAL))
    deadline = time.monotonic() + PATIENCE
    while True:
        with database.reading(engine) as conn:
            left = [tuple(row) for row in conn.execute(living)]
        if not left:
            return
        if time.monotonic() > deadline:
            record.faults.append(f"jobs did not end: {left[:20]}")
            return
        _shorten(engine, record)
        time.sleep(1)


def _shorten(engine: Engine, record: Record) -> None:
    """Let the times run out of attempts whose agent did not get the job, or has gone silent."""
    now = datetime.now(UTC)
    # One that was opened since an agent asked may be on its way to it.
    asked_at = min([now, *record.asking.values()])
    left_alone = and_(attempts.c.closed_at.is_(None), attempts.c.opened_at < asked_at - _CLOCKS)
    with database.writing(engine) as conn:
        alone = set(conn.execute(select(attempts.c.job_id).where(left_alone)).scalars())
        alone.difference_update(record.held.values())
        chosen = update(attempts).where(attempts.c.job_id.in_(alone), left_alone)
        conn.execute(chosen.values(times="[5,5,5]", lease_expires_at=now))


def _find_flaws(engine: Engine, record: Record) -> Iterator[str]:
    """Jobs that did not run and end exactly once."""
    with database.reading(engine) as conn:
        stored = {row.job_id: row.status for row in conn.execute(select(jobs.c.job_id, jobs.c.status))}
        closed = Counter(
            conn.execute(select(attempts.c.job_id).where(attempts.c.closed_as == FINISHED)).scalars()
        )
        ends = Counter(conn.execute(select(job_log.c.job_id).where(job_log.c.to_status.in_(FINAL))).scalars())
    record.counts["jobs"] = len(stored)
    record.counts.update(stored.values())
    for what, by_job in (("ends of payloads", record.ended), ("attempts", closed), ("ends in the log", ends)):
        if wrong := {job: by_job[job] for job in stored if by_job[job] != 1}:
            yield f"{what} other than one: {dict(list(wrong.items())[:20])}"
    if lost := record.submitted - stored.keys():
        yield f"jobs are gone: {sorted(lost)[:20]}"


@pytest.mark.timeout(1800)
def test_every_job_ends_once_while_doors_are_killed(postgres_url: str, tmp_path: Path) -> None:
    record = run(Kills(directory=tmp_path, database_url=postgres_url, seconds=25))
    assert not record.faults, "\n".join(record.faults)
    assert record.counts["kills"] > 0
    assert record.counts["Done"] > 0


def main() -> int:
    """Run it; 1 if there is a flaw."""
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.test_dirac_kills", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--agents", type=int, default=8)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    directory = Path(tempfile.mkdtemp(prefix="dirac-kills-"))
    directory.chmod(0o755)
    _log.info("seed %d, logs in %s", options.seed, directory)
    (directory / "pg").mkdir()
    server = Postgres(directory / "pg")
    server.start()
    try:
        server.execute("CREATE DATABASE kills")
        database.upgrade(server.url("kills"))
        record = run(
            Kills(
                directory=directory,
                database_url=server.url("kills"),
                seconds=60 * options.minutes,
                seed=options.seed,
                agents=options.agents,
            )
        )
    finally:
        server.stop()
    for what, number in sorted(record.counts.items()):
        _log.info("%6d %s", number, what)
    for fault in record.faults:
        _log.error("%s", fault)
    return int(bool(record.faults))


if __name__ == "__main__":
    sys.exit(main())
