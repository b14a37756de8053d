"""Jobs that wait, pools with their queues, and pilots that ask: what tests of the matching need."""

import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from random import Random
from typing import Any

from sqlalchemy import Connection, Engine, select

from cs_config import validate
from cs_config.classes.queue_classes import queue_classes as configured
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.claim.claim_request import ClaimResult
from matcher.claim.matcher import Matcher
from matcher.request import match_request
from matcher.request.match_request import MatchCaller, MatchRequest
from requirements.requirement_class import RequirementClass
from requirements.resource import Location
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.jobs import jobs, submission
from taskqueue.jobs.descriptions import Description
from taskqueue.jobs.submission import NewJob
from taskqueue.leases import assignment
from taskqueue.leases import opening as leases_claim
from taskqueue.leases.opening import ClaimedJob, LeaseHolder
from taskqueue.pools import queue_class_store
from taskqueue.schema.tables import task_queues as task_queues_table
from taskqueue.schema.tables import waiting_jobs
from tests.support.factories import pilot_reports, stored_rows
from tests.support.factories.stored_rows import WaitingEntry
from tests.support.transactions import own_transaction

GRID = """
Resources:
  Sites:
    A.B.ch:
      VO: [lhcb, cms]
      CEs:
        ce1:
          Queues: {long: {}, short: {}, shut: {Enabled: false}}
        ce2:
          Queues: {long: {VO: [cms]}}
    C.D.ch:
      MaxRAM: 4000
      CEs: {ce: {Queues: {long: {}}}}
Registry:
  VO: {lhcb: {}, cms: {}}
  Groups:
    lhcb_prod: {VO: lhcb, Properties: [JobSharing]}
"""
LONG = QueueAddress(site="A.B.ch", ce="ce1", queue="long")
SHORT = QueueAddress(site="A.B.ch", ce="ce1", queue="short")
ELSEWHERE = QueueAddress(site="C.D.ch", ce="ce", queue="long")
EVERYWHERE = RequirementClass(vo="lhcb", cpu_time=3600)
HOLDER = LeaseHolder(subject="pilot", stamp=None, lease_time=timedelta(minutes=5))
ANYWHERE = Location(site="")


def grid(text: str = GRID, version: int = 1) -> Configuration:
    """A configuration that is not in the database."""
    return validate.parse(text, "grid.yaml", version)


@own_transaction
def put(
    conn: Connection,
    /,
    now: datetime,
    count: int = 1,
    *,
    asked: RequirementClass = EVERYWHERE,
    owner: str = "alice",
    group: str = "lhcb_user",
    priority: float = 1.0,
    body: Mapping[str, object] | None = None,
    parameters: Mapping[str, str] | None = None,
    **values: object,
) -> list[int]:
    """New jobs that wait; their ids. `values`: what else their rows say."""
    new = NewJob(vo=asked.vo, owner=owner, owner_group=group, priority=priority, parameters=parameters)
    description = Description(source="", body=body or {"Executable": "x"}, sandbox=None)
    job_ids = submission.store_jobs(conn, [description], [(0, each) for each in [new] * count], now=now)
    for job_id in job_ids:
        stored_rows.force(
            conn,
            job_id,
            status=JobStatus.WAITING.value,
            submit_pool=asked.submit_pool,
            due_at=None,
            **values,
        )
    entries = [
        WaitingEntry(
            job_id=job_id, requirement_class=asked, owner=owner, owner_group=group, priority=priority
        )
        for job_id in job_ids
    ]
    stored_rows.enqueue(conn, entries, now=now)
    return job_ids


@own_transaction
def claim(
    conn: Connection,
    task_queue_ids: Iterable[int],
    now: datetime,
    *,
    count: int = 1,
    place: Location = ANYWHERE,
    holder: LeaseHolder = HOLDER,
) -> list[ClaimedJob]:
    """Jobs in the hands of a pilot."""
    taken = assignment.take_jobs(conn, task_queue_ids, count, place=place, now=now)
    return leases_claim.open_attempts(
        conn, [leases_claim.AssignedJob(row=row, place=place, holder=holder) for row in taken], now=now
    )


def task_queue_of(conn: Connection, job_id: int) -> int:
    """The task queue that a job is in, or was."""
    found = jobs.get_job(conn, job_id).task_queue_id
    assert found is not None
    return found


def left(conn: Connection) -> list[int]:
    """Ids of the jobs that a pilot may take."""
    return list(conn.execute(select(waiting_jobs.c.job_id).order_by(waiting_jobs.c.job_id)).scalars())


def occupied(conn: Connection) -> set[int]:
    """Ids of the task queues that are said to have jobs."""
    statement = select(task_queues_table.c.task_queue_id).where(task_queues_table.c.occupied)
    return set(conn.execute(statement).scalars())


@own_transaction
def pool(
    conn: Connection,
    now: datetime,
    pool_id: str,
    *queues: QueueAddress,
    config: Configuration,
    vo: str = "lhcb",
) -> str:
    """A pool that these queues are eligible for."""
    stored_rows.touch_pool(conn, pool_id=pool_id, vo=vo, requirements_json="{}", original_json="{}", now=now)
    remap(conn, now, pool_id, *queues, config=config, vo=vo)
    return pool_id


@own_transaction
def remap(
    conn: Connection,
    now: datetime,
    pool_id: str,
    *queues: QueueAddress,
    config: Configuration,
    vo: str = "lhcb",
) -> None:
    """Make these, and what is like them, the eligible queues of a pool."""
    classes = configured(config, vo)
    queue_class_store.store_classes(conn, vo=vo, config_version=config.version, classes=classes, now=now)
    digests = [each.digest for each in classes if set(each.queues) & set(queues)]
    stored_rows.store_pool_mapping(
        conn, pool_id=pool_id, config_version=config.version, queue_class_digests=digests, now=now
    )


def matcher(engine: Engine, now: datetime, config: Configuration | None = None, seed: int = 1) -> Matcher:
    """A matcher at a fixed time, whose lottery is always the same."""
    running = config or grid()
    return Matcher(engine, lambda: running, lambda: now, Random(seed))


def serve(matcher: Matcher, asked: MatchRequest) -> ClaimResult:
    """What a pilot gets whose request is not refused as wrong."""
    [found] = matcher.serve([asked])
    assert isinstance(found, ClaimResult), found
    matcher.settle([found])
    return found


def release(engine: Engine, now: datetime, *leases: str) -> None:
    """Pilots give jobs back, however often."""
    with database.writing(engine) as conn:
        for lease in leases:
            pilot_reports.release(conn, lease, reason="", max_rescheduling=99, now=now)


def request(
    *,
    caller: MatchCaller | None = None,
    count: int = 1,
    request_id: str | None = None,
    seconds: float = 300,
    **said: object,
) -> MatchRequest:
    """A pilot's request; it has CPU time for everything unless it says otherwise."""
    return MatchRequest(
        presented=match_request.read_resource({"CPUTime": 10**7, **said}),
        caller=caller or MatchCaller(subject="pilot", vos=frozenset({"lhcb"})),
        deadline=time.monotonic() + seconds,
        count=count,
        request_id=request_id,
    )


def at(address: QueueAddress) -> dict[str, Any]:
    """How a pilot says where it is."""
    return {"Site": address.site, "GridCE": address.ce, "Queue": address.queue}
