"""Several matcher processes at one throttled site: the truth never exceeds the limits."""

import queue
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from sqlalchemy import Engine

from taskqueue.db import database
from taskqueue.leases.reports import PayloadResult
from taskqueue.sites import reservations
from tests.support.factories import pilot_reports, queued_jobs
from tests.support.fakes.site_counter import GATHERING, POLLING, SUBMITTING, Gateway

ROOT = Path(__file__).parents[4]
PROCESSES = 3
#: Jobs after which it was open again and again.
ENOUGH = 30
TREE = """
Resources:
  Sites:
    T.x:
      Throttle: {Policy: level2, MaxJobs: 7, MaxSubmittingAndOutputGatheringJobs: 4}
      CEs: {ce: {Queues: {q: {Throttle: {Policy: level0, MaxSubmittingJobs: 3}}}}}
"""
LEASE = timedelta(minutes=5)
NEXT = {SUBMITTING: POLLING, POLLING: GATHERING}


class Site:
    """A gateway that takes what the matchers hand out, works, and advertises."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.gateway = Gateway()
        self.arrived = 0
        self.most = 0
        self.most_submitting = 0
        self.random = Random(7)

    def take(self, lease: str) -> None:
        self.gateway.phases[lease] = SUBMITTING
        self.arrived += 1
        self.most = max(self.most, self.gateway.total)
        self.most_submitting = max(self.most_submitting, self.gateway.number(SUBMITTING))
        pilot_reports.start(self.engine, lease, lease_time=LEASE, now=datetime.now(UTC))

    def work(self) -> None:
        for lease, phase in list(self.gateway.phases.items()):
            if self.random.random() < 0.5:
                continue
            if phase in NEXT:
                self.gateway.phases[lease] = NEXT[phase]
                continue
            del self.gateway.phases[lease]
            pilot_reports.finish(self.engine, lease, PayloadResult(status="Done"), now=datetime.now(UTC))

    def advertise(self) -> None:
        with database.writing(self.engine) as conn:
            said = self.gateway.count(reservations.create_watermark(conn, "T.x"))
        for scope in ("T.x", "T.x/ce/q"):
            with database.writing(self.engine) as conn:
                reservations.accept_advertisement(conn, scope, said, now=datetime.now(UTC))


def test_no_process_gives_what_another_has_given(engine: Engine, database_url: str, tmp_path: Path) -> None:
    file, lasting = tmp_path / "grid.yaml", tmp_path / "lasting"
    file.write_text(TREE)
    lasting.touch()
    queued_jobs.put(engine, datetime.now(UTC), 500)
    site = Site(engine)
    site.advertise()
    leases: queue.SimpleQueue[str] = queue.SimpleQueue()
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.scripts.request_matches",
                database_url,
                str(file),
                "T.x/ce/q",
                str(lasting),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]
    readers = [threading.Thread(target=_read, args=(process, leases)) for process in processes]
    try:
        for reader in readers:
            reader.start()
        while any(reader.is_alive() for reader in readers) or not leases.empty():
            if site.arrived > ENOUGH:
                lasting.unlink(missing_ok=True)
            while not leases.empty():
                site.take(leases.get())
            site.work()
            site.advertise()
            time.sleep(0.02)
        assert [process.wait(300) for process in processes] == [0] * PROCESSES
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert site.most <= 7
    assert site.most_submitting <= 3


def _read(process: "subprocess.Popen[str]", leases: "queue.SimpleQueue[str]") -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            leases.put(line.strip())
