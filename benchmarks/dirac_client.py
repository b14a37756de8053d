"""Runs in DIRAC's own environment: fills a `TaskQueueDB`, and takes jobs from it.

    MYSQL_UNIX_PORT=SOCKET python dirac_client.py POPULATION.json

The population has the task queues with their sizes, and what pilots offer. For each line of standard input,
`CLIENTS SECONDS`, one line of JSON on standard output says what so many processes did in so many seconds.
"""

import json
import multiprocessing
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import DIRAC
import MySQLdb
from DIRAC.ConfigurationSystem.Client.ConfigurationData import gConfigurationData
from DIRAC.Core.Utilities.ReturnValues import returnValueOrRaise
from DIRAC.WorkloadManagementSystem.DB.TaskQueueDB import TaskQueueDB

_NAME = "TaskQueueDB"
_LISTS = ("Sites", "Platforms", "JobTypes", "Tags")
_AT_ONCE = 5_000
#: DIRAC does not take a user without a password.
_PREPARE = (
    f"DROP DATABASE IF EXISTS {_NAME}",
    f"CREATE DATABASE {_NAME}",
    f"GRANT ALL ON {_NAME}.* TO {_NAME}@localhost IDENTIFIED BY '{_NAME}'",
)


def main() -> None:
    """Fill, then measure as often as asked."""
    population = json.loads(Path(sys.argv[1]).read_text())
    _configure(population)
    _fill(population)
    print("ready", flush=True)
    for line in sys.stdin:
        clients, seconds = line.split()
        print(json.dumps(_measure(population, int(clients), float(seconds))), flush=True)


def _configure(population: dict[str, Any]) -> None:
    """Where the database is and which VO a group is of, without any configuration service."""
    DIRAC.gLogger.setLevel("FATAL")
    local = {"Host": "localhost", "User": _NAME, "Password": _NAME, "DBName": _NAME}
    for option, value in local.items():
        gConfigurationData.setOptionInCFG(f"/Systems/WorkloadManagement/Databases/{_NAME}/{option}", value)
    for group in {each["OwnerGroup"] for each in population["task_queues"]}:
        gConfigurationData.setOptionInCFG(f"/Registry/Groups/{group}/VO", population["VO"])


def _fill(population: dict[str, Any]) -> None:
    """One job by its own way; the other rows as that left them, but in bulk: its own way takes minutes."""
    with MySQLdb.connect(host="localhost", user="root") as connection:
        for statement in _PREPARE:
            connection.cursor().execute(statement)
    first, *others = population["task_queues"]
    asked = {name: value for name, value in first.items() if name != "jobs"}
    returnValueOrRaise(TaskQueueDB().insertJob(1, asked, 1))
    with MySQLdb.connect(host="localhost", user="root", db=_NAME) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT TQId, Priority, Enabled FROM tq_TaskQueues")
        [(number, *_)] = cursor.fetchall()
        _task_queues(cursor, others, number + 1, population["VO"])
        sizes = [first["jobs"] - 1, *(each["jobs"] for each in others)]
        queues = [number + place for place, size in enumerate(sizes) for _ in range(size)]
        random.Random(0).shuffle(queues)
        _many(cursor, "tq_Jobs", [(queue, job, 1, 1) for job, queue in enumerate(queues, start=2)])
        connection.commit()
        cursor.execute("ANALYZE TABLE tq_TaskQueues, tq_Jobs, " + ", ".join(f"tq_TQTo{x}" for x in _LISTS))


def _task_queues(cursor: Any, asked: list[dict[str, Any]], first: int, vo: str) -> None:
    numbered = list(enumerate(asked, start=first))
    rows = [
        (number, each["Owner"], each["OwnerGroup"], vo, each["CPUTime"], 1, 1) for number, each in numbered
    ]
    _many(cursor, "tq_TaskQueues (TQId, Owner, OwnerGroup, VO, CPUTime, Priority, Enabled)", rows)
    for name in _LISTS:
        _many(
            cursor,
            f"tq_TQTo{name} (TQId, Value)",
            [(number, value) for number, each in numbered for value in each.get(name, ())],
        )


def _many(cursor: Any, table: str, rows: Sequence[tuple[object, ...]]) -> None:
    for start in range(0, len(rows), _AT_ONCE):
        some = rows[start : start + _AT_ONCE]
        cursor.executemany(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(some[0]))})", some)


def _measure(population: dict[str, Any], clients: int, seconds: float) -> dict[str, object]:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(clients)
    with context.Pool(clients, initializer=_begin, initargs=(population, barrier)) as pool:
        done = pool.starmap(_take, [(number, seconds) for number in range(clients)], chunksize=1)
    latencies = [each for _, some, _ in done for each in some]
    return {
        "per_second": sum(len(some) / took for took, some, _ in done),
        "latencies": latencies,
        "jobs": [job for *_, jobs in done for job in jobs],
    }


def _begin(population: dict[str, Any], barrier: Any) -> None:
    global _offers, _barrier  # of this process
    _configure(population)
    _offers, _barrier = population["offers"], barrier


def _take(client: int, seconds: float) -> tuple[float, list[float], list[int]]:
    """Take jobs one after the other; how long it took in all and each, and which jobs."""
    draw, database = random.Random(client), TaskQueueDB()
    latencies: list[float] = []
    jobs: list[int] = []
    for _ in range(5):
        _one(database, draw, jobs)
    _barrier.wait()
    began = time.perf_counter()
    while (now := time.perf_counter()) - began < seconds:
        if _one(database, draw, jobs):
            latencies.append(time.perf_counter() - now)
    return time.perf_counter() - began, latencies, jobs


def _one(database: Any, draw: random.Random, jobs: list[int]) -> bool:
    found = returnValueOrRaise(database.matchAndGetJob(dict(draw.choice(_offers))))
    if found["matchFound"]:
        jobs.append(found["jobId"])
    return bool(found["matchFound"])


_offers: list[dict[str, object]] = []
_barrier: Any = None

if __name__ == "__main__":
    main()
