"""Many pilots at several matchers drain many task queues: none is left, none is taken twice."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from sqlalchemy import Engine, func, select

from taskqueue.db import database
from taskqueue.schema.tables import attempts, job_log
from tests.support.factories import queued_jobs

ROOT = Path(__file__).parents[4]
TASK_QUEUES = 100
JOBS = 2_000
PROCESSES = 3


def _fill(engine: Engine, now: datetime) -> list[int]:
    ids: list[int] = []
    with database.writing(engine) as conn:
        for number in range(TASK_QUEUES):
            asked = replace(queued_jobs.EVERYWHERE, cpu_time=1000 + number)
            size = JOBS // TASK_QUEUES + (10 if number % 2 else -10)  # some run dry long before others
            ids += queued_jobs.put(conn, now, size, asked=asked)
    return ids


def test_many_pilots_of_several_processes_drain_everything_once(
    engine: Engine, database_url: str, now: datetime
) -> None:
    ids = _fill(engine, now)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.scripts.drain_jobs", database_url, "8", str(1 + number)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * PROCESSES
    taken = Counter(job_id for output in outputs for job_id in json.loads(output))
    with database.reading(engine) as conn:
        assert queued_jobs.left(conn) == []
        handed_over = conn.scalar(select(func.count()).select_from(attempts))
        matched = conn.scalar(
            select(func.count()).select_from(job_log).where(job_log.c.to_status == "Matched")
        )
    assert max(taken.values()) == 1, "taken twice"
    assert set(taken) == set(ids), "lost between the claim and the pilot"
    assert handed_over == matched == len(ids)
