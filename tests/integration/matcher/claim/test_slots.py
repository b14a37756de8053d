"""What the token of a pilot is worth: one slot."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partialmethod
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text, update

from cs_config.tree.configuration import Configuration
from matcher.claim import claim_loop
from matcher.claim.claim_loop import StepwiseClaimer
from matcher.claim.claim_request import ClaimRequest, ClaimResult
from matcher.request.match_request import MatchCaller, MatchRequest
from requirements.requirement_class import RequirementClass
from requirements.resource import Allotment, Location
from requirements.states import PILOT_ENDS, PilotStatus
from taskqueue.db import database
from taskqueue.db.compiled_sql import AutocommitRunner
from taskqueue.leases import batched_claim
from taskqueue.leases.batched_claim import BatchClaim, BatchClaimResult
from taskqueue.leases.opening import LeaseHolder
from taskqueue.pilots import pilots, slots
from taskqueue.pilots.pilots import FirstRequest
from taskqueue.pilots.slots import SlotLimits, SlotRefusal
from taskqueue.schema.tables import attempts
from taskqueue.schema.tables import pilots as table
from tests.support import databases, wait
from tests.support.claimers import claim_together
from tests.support.factories import queued_jobs
from tests.support.factories.queued_jobs import LONG

HOUR = timedelta(hours=1)
LARGE = RequirementClass(vo="lhcb", cpu_time=3600, processors_min=8, processors_max=8)


def grid(queue: str = "{}", operations: str = "{}") -> Configuration:
    text = queued_jobs.GRID.replace("{long: {}, short", f"{{long: {queue}, short")
    return queued_jobs.grid(f"{text}Operations: {{Defaults: {operations}}}\n")


def of_pilot(stamp: str = "s", *, count: int = 1, key: str | None = None, **said: object) -> MatchRequest:
    caller = MatchCaller(subject=f"pilot:{stamp}", vos=frozenset({"lhcb"}), stamp=stamp, queue=LONG)
    return queued_jobs.request(caller=caller, count=count, request_id=key, **queued_jobs.at(LONG), **said)


class Claims:
    """Claims of pilots in a matcher."""

    def __init__(self, engine: Engine, now: datetime, config: Configuration | None = None) -> None:
        self.engine, self.now, self.config = engine, now, config

    def begin(
        self,
        *stamps: str,
        processors: int | None = 1,
        asked: RequirementClass = queued_jobs.EVERYWHERE,
    ) -> None:
        """Jobs that wait, and pilots that have stated their slots."""
        first = [FirstRequest(stamp=each, vo="lhcb", queue=LONG, processors=processors) for each in stamps]
        with database.writing(self.engine) as conn:
            queued_jobs.put(conn, self.now, 20, asked=asked)
            pilots.bind_queues(conn, first, now=self.now)

    def serve(self, *requests: MatchRequest) -> list[ClaimResult]:
        matcher = queued_jobs.matcher(self.engine, self.now, self.config)
        served = database.run_with_retry(lambda: matcher.serve(requests))
        assert all(isinstance(each, ClaimResult) for each in served)
        return [each for each in served if isinstance(each, ClaimResult)]

    def end_all(self) -> None:
        databases.execute(self.engine, update(attempts).values(closed_at=self.now, closed_as="finished"))


@pytest.mark.parametrize("key", [None, "k"])
def test_a_pilot_holds_no_more_jobs_than_its_slot_has_processors(
    engine: Engine, now: datetime, key: str | None
) -> None:
    claims = Claims(engine, now)
    claims.begin("s", processors=2)
    results = [claims.serve(of_pilot(key=key and f"{key}{n}"))[0] for n in range(4)]
    assert [len(each.claimed) for each in results] == [1, 1, 0, 0]
    assert [each.refused for each in results[2:]] == [SlotRefusal.FULL] * 2
    if key:
        assert claims.serve(of_pilot(key="k0"))[0].claimed == results[0].claimed
    claims.end_all()
    assert len(claims.serve(of_pilot())[0].claimed) == 1


def test_a_request_for_several_jobs_gets_what_is_left_of_the_slot(engine: Engine, now: datetime) -> None:
    claims = Claims(engine, now)
    claims.begin("s", processors=3)
    assert len(claims.serve(of_pilot())[0].claimed) == 1
    # Without processors a request is never full by itself.
    assert len(claims.serve(of_pilot(count=100))[0].claimed) == 2


def test_requests_of_other_pilots_in_the_same_batch_get_their_jobs(engine: Engine, now: datetime) -> None:
    claims = Claims(engine, now)
    claims.begin("s", "t", "u", processors=1)
    claims.serve(of_pilot("t"))
    results = claims.serve(of_pilot("s"), of_pilot("t"), of_pilot("u"))
    assert [len(each.claimed) for each in results] == [1, 0, 1]


@pytest.mark.parametrize(
    ("queue", "stated", "held"),
    [
        ("{}", 1024, 4),
        ("{NumberOfProcessors: 2}", 1024, 2),
        ("{NumberOfProcessors: 8}", 1024, 4),
        ("{NumberOfProcessors: 2, WholeNode: true}", 1024, 4),
        ("{}", None, 4),
    ],
)
def test_a_slot_has_what_its_queue_has_and_its_first_request_stated(
    engine: Engine, now: datetime, queue: str, stated: int | None, held: int
) -> None:
    claims = Claims(engine, now, grid(queue))
    claims.begin("s", processors=4)
    said = {} if stated is None else {"NumberOfProcessors": stated}
    assert len(claims.serve(of_pilot(count=100, **said))[0].claimed) == held
    assert claims.serve(of_pilot(**said))[0].refused == SlotRefusal.FULL


def test_a_pilot_that_never_stated_a_slot_has_one_processor(engine: Engine, now: datetime) -> None:
    claims = Claims(engine, now)
    claims.begin()
    assert len(claims.serve(of_pilot(count=100, NumberOfProcessors=64))[0].claimed) == 1


@pytest.mark.parametrize("key", [None, "k"])
def test_jobs_of_several_processors_fill_the_slot(engine: Engine, now: datetime, key: str | None) -> None:
    claims = Claims(engine, now)
    claims.begin("s", processors=16, asked=LARGE)
    large = {"NumberOfProcessors": 16}
    results = [claims.serve(of_pilot(key=key and f"{key}{n}", **large))[0] for n in range(3)]
    assert [len(each.claimed) for each in results] == [1, 1, 0]
    assert results[-1].refused == SlotRefusal.FULL
    claims.end_all()
    assert len(claims.serve(of_pilot(count=100, **large))[0].claimed) == 2


@pytest.mark.parametrize("counts", [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_a_pilot_that_asks_two_processes_at_once_gets_one_slot(
    postgresql: Engine, now: datetime, counts: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both claim before the other one has committed."""
    Claims(postgresql, now).begin("s", "t", processors=2)
    first, second = (of_pilot(count=count) for count in counts)
    other = of_pilot("t")
    with ThreadPoolExecutor() as pool, database.writing(postgresql) as conn:
        rival = queued_jobs.matcher(postgresql, now)
        monkeypatch.setattr(StepwiseClaimer, "claim", partialmethod(claim_inside, conn))
        [before] = rival.serve([first])
        monkeypatch.undo()
        late = pool.submit(Claims(postgresql, now).serve, second, other)
        wait.until(lambda: databases.count_lock_waits(postgresql) == 1)
        conn.commit()
        results = late.result(timeout=300)
    assert isinstance(before, ClaimResult)
    assert len(before.claimed) == counts[0]
    assert [len(each.claimed) for each in results] == [min(2 - counts[0], counts[1]), 1]


def claim_inside(
    _self: StepwiseClaimer, conn: Connection, requests: Sequence[ClaimRequest], *, now: datetime
) -> dict[int, ClaimResult]:
    """Claim in an open transaction."""
    found = claim_loop.claim_all(conn, requests, now=now)
    return {id(requests[number].request): result for number, result in found.items()}


def test_no_job_is_larger_than_the_slots_of_the_queue(engine: Engine, now: datetime) -> None:
    claims = Claims(engine, now, grid("{NumberOfProcessors: 4, MaxRAM: 2000, GPUs: 1}"))
    with database.writing(engine) as conn:
        queued_jobs.put(conn, now, asked=LARGE)
        queued_jobs.put(conn, now, asked=RequirementClass(vo="lhcb", cpu_time=3600, min_ram=3000))
        queued_jobs.put(conn, now, asked=RequirementClass(vo="lhcb", cpu_time=3600, gpus=2))
    large = {"NumberOfProcessors": 64, "MaxRAM": 64_000, "GPUs": 8}
    assert claims.serve(of_pilot(count=100, **large))[0].claimed == ()
    gateway = queued_jobs.request(count=100, **queued_jobs.at(LONG), **large)
    assert len(claims.serve(gateway)[0].claimed) == 3


def end_pilot(engine: Engine, now: datetime, status: PilotStatus, *, submitted_by: str) -> Claims:
    claims = Claims(engine, now)
    claims.begin("s")
    with database.writing(engine) as conn:
        pilots.set_status(conn, "s", status, now=now)
        conn.execute(update(table).where(table.c.stamp == "s").values(submitted_by=submitted_by))
    return claims


@pytest.mark.parametrize("status", [PilotStatus.DONE, PilotStatus.FAILED])
@pytest.mark.parametrize("key", [None, "k"])
def test_a_pilot_started_by_hand_may_be_started_again_with_its_token(
    engine: Engine, now: datetime, status: PilotStatus, key: str | None
) -> None:
    claims = end_pilot(engine, now, status, submitted_by="")
    assert len(claims.serve(of_pilot(key=key))[0].claimed) == 1


@pytest.mark.parametrize(
    ("status", "submitted_by"),
    [*((each, "dora") for each in sorted(PILOT_ENDS)), (PilotStatus.ABORTED, ""), (PilotStatus.DELETED, "")],
)
def test_a_pilot_that_has_ended_gets_nothing(
    engine: Engine, now: datetime, status: PilotStatus, submitted_by: str
) -> None:
    claims = end_pilot(engine, now, status, submitted_by=submitted_by)
    assert claims.serve(of_pilot())[0].refused == SlotRefusal.ENDED
    assert claims.serve(of_pilot(key="k"))[0].refused == SlotRefusal.ENDED


def test_a_pilot_claims_so_many_jobs_in_an_hour_and_processor(engine: Engine, now: datetime) -> None:
    claims = Claims(engine, now, grid(operations="{Limits: {PilotClaimsPerHour: 3}}"))
    claims.begin("s", processors=2)
    for _ in range(3):
        assert len(claims.serve(of_pilot(count=2))[0].claimed) == 2
        claims.end_all()
    assert claims.serve(of_pilot())[0].refused == SlotRefusal.TOO_FAST
    claims.now += HOUR + timedelta(seconds=1)
    assert len(claims.serve(of_pilot())[0].claimed) == 1


#: Ended long ago, of one pilot.
_EARLIER = """INSERT INTO attempts (job_id, epoch, lease, holder, stamp, vo, site, ce, queue, opened_at,
    lease_expires_at, closed_at, closed_as, progress, output_tail, claim_number)
    SELECT :job_id, n, 'lease' || n, 'pilot:s', 's', 'lhcb', '', '', '', :at, :at, :at, 'finished', '', '',
    n - 6000
    FROM generate_series(1000, 5999) AS n"""


def test_earlier_jobs_of_a_pilot_are_not_read_again_for_each_claim(postgresql: Engine, now: datetime) -> None:
    claims = Claims(postgresql, now)
    claims.begin("s", processors=2)
    [served] = claims.serve(of_pilot())
    databases.execute(postgresql, text(_EARLIER), {"job_id": served.claimed[0].job_id, "at": now - 2 * HOUR})
    with database.writing(postgresql) as conn:
        conn.execute(text("ANALYZE attempts"))
        rooms = slots.ROOMS.compile(conn)
        since = {"since": json.dumps({"s": str(now - HOUR)})}
        [plan] = conn.exec_driver_sql(
            f"EXPLAIN (ANALYZE, FORMAT JSON) {rooms}", rooms.params | since
        ).scalar_one()
    assert max(_list_rows(plan["Plan"])) < 100
    assert len(claims.serve(of_pilot())[0].claimed) == 1
    assert claims.serve(of_pilot())[0].refused == SlotRefusal.FULL


#: Held by one pilot, far more than its slot has room for.
_HELD = """INSERT INTO attempts (job_id, epoch, lease, holder, stamp, vo, site, ce, queue, opened_at,
    lease_expires_at, progress, output_tail)
    SELECT n, 1, 'held' || n, 'pilot:s', 's', 'lhcb', '', '', '', :at, :at, '', ''
    FROM generate_series(1000, 5999) AS n"""


def test_a_refusal_does_not_read_all_that_a_pilot_holds(postgresql: Engine, now: datetime) -> None:
    claims = Claims(postgresql, now)
    claims.begin("s", processors=2)
    with database.writing(postgresql) as conn:
        conn.execute(text("SET LOCAL session_replication_role = replica"))  # without their jobs
        conn.execute(text(_HELD), {"at": now})
    holder = LeaseHolder(
        subject="pilot:s",
        stamp="s",
        lease_time=HOUR,
        slot=SlotLimits(processors=8, claims=60),
    )
    place = Location(site=LONG.site, ce=LONG.ce, queue=LONG.queue)
    claim = BatchClaim(
        task_queue_id=1, place=place, holder=holder, lease="x", allotment=Allotment(processors=1)
    )
    databases.execute(postgresql, text("ANALYZE attempts"))
    with contextlib.closing(AutocommitRunner(postgresql)) as server:
        assert claim_together(server, [claim], now=now) == [BatchClaimResult(refused=SlotRefusal.FULL)]
        statement, values = batched_claim.build_statement([claim], now=now)
        [([plan],)] = server.rows(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", values)
    assert max(_list_rows(plan["Plan"])) < 100


def test_a_pilot_without_room_is_refused_at_once(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = Claims(engine, now)
    claims.begin("s", processors=1)
    matcher = queued_jobs.matcher(engine, now)
    assert len(claims.serve(of_pilot())[0].claimed) == 1
    tries: list[int] = []
    claim = StepwiseClaimer.claim

    def note(claimer: StepwiseClaimer, requests: Sequence[ClaimRequest], **about: Any) -> Any:
        tries.append(len(requests))
        return claim(claimer, requests, **about)

    monkeypatch.setattr(StepwiseClaimer, "claim", note)
    for key in ("a", "b"):
        [served] = database.run_with_retry(lambda key=key: matcher.serve([of_pilot(key=key)]))
        assert served == ClaimResult(refused=SlotRefusal.FULL)
    assert tries == [1, 1], "a newer index gives it no room"


def _list_rows(node: dict[str, Any]) -> Iterator[int]:
    yield node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    for each in node.get("Plans", ()):
        yield from _list_rows(each)
