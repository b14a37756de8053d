"""Claims of one statement: how often they go to the server, what they refuse, what a break leaves."""

import asyncio
import contextlib
import gc
import os
import re
import time
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, func, insert, select, text
from sqlalchemy.exc import OperationalError

from cs_config.tree.address import QueueAddress
from matcher.claim import claim_loop, in_doubt_claims
from matcher.claim.async_claimer import AsyncClaimer
from matcher.claim.claim_request import ClaimRequest, ClaimResult
from matcher.claim.claim_thread import ClaimWorker, PendingRequest
from matcher.claim.matcher import Matcher
from matcher.request.match_request import MatchCaller, MatchRequest, Unserved
from requirements.errors import PilotageError
from requirements.resource import Allotment, Location
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.db.compiled_sql import AsyncRunner, AutocommitRunner, Rows
from taskqueue.jobs import jobs
from taskqueue.leases import assignment, attempts, batched_claim, opening
from taskqueue.leases.batched_claim import BatchClaim, BatchClaimResult
from taskqueue.leases.opening import LeaseHolder
from taskqueue.pilots import pilots
from taskqueue.pilots.pilots import FirstRequest
from taskqueue.pilots.slots import SlotLimits, SlotRefusal
from taskqueue.schema.tables import attempts as attempts_table
from taskqueue.schema.tables import match_requests, site_bans
from taskqueue.schema.tables import scopes as scopes_table
from taskqueue.sites import closures, scope_rules
from taskqueue.sites.closures import Ban
from taskqueue.sites.scope_rules import RuleKind, ScopeRule
from tests.support import databases, wait
from tests.support.claimers import ClaimingProcess, claim_together, claiming, run
from tests.support.factories import queued_jobs, submitted_jobs
from tests.support.factories.queued_jobs import request

LIMITS = "Operations: {Defaults: {JobScheduling: {RunningLimit: {A.B.ch: {Owner: {alice: 20}}}}}}\n"
HERE = Location(site="A.B.ch", ce="ce1", queue="long")
POOL = "a" * 64
#: Only requests that state their queue are batched.
AT = queued_jobs.at(queued_jobs.LONG)


@pytest.fixture
def engine(postgresql: Engine) -> Engine:
    return postgresql


@pytest.fixture
def matcher(engine: Engine, now: datetime) -> Matcher:
    return queued_jobs.matcher(engine, now)


@pytest.fixture
def process(engine: Engine, now: datetime) -> Iterator[ClaimingProcess]:
    with claiming(engine, queued_jobs.matcher(engine, now)) as process:
        yield process


def _ids(looks: list[ClaimResult | PilotageError]) -> list[list[int]]:
    return [[each.job_id for each in look.claimed] for look in looks if isinstance(look, ClaimResult)]


async def _give_together(process: ClaimingProcess, *asked: MatchRequest) -> list[list[int]]:
    answers = await asyncio.gather(*map(process.ask, asked))
    return [[match.job_id for match in answer.matches] for answer in answers]


def _wrap_rows(monkeypatch: pytest.MonkeyPatch, wrap: Callable[[Awaitable[Rows]], Awaitable[Rows]]) -> None:
    """Wrap the statements of the event loop."""
    rows = AsyncRunner.rows

    async def wrapped(server: AsyncRunner, statement: str, values: Sequence[object]) -> Rows:
        return await wrap(rows(server, statement, values))

    monkeypatch.setattr(AsyncRunner, "rows", wrapped)


def _ask(
    task_queue: int, number: int = 0, *, request_id: str | None = None, site: str = "A.B.ch"
) -> BatchClaim:
    return BatchClaim(
        task_queue_id=task_queue,
        place=Location(site=site),
        holder=LeaseHolder(subject=f"pilot{number}", stamp=None, lease_time=timedelta(minutes=5)),
        lease=f"lease{number}",
        allotment=Allotment(processors=1),
        request_id=request_id,
    )


def _ask_of_pilot(task_queue: int, number: int, *, stamp: str, request_id: str | None = None) -> BatchClaim:
    slot = SlotLimits(processors=8, claims=60)
    holder = LeaseHolder(subject=f"pilot:{stamp}", stamp=stamp, lease_time=timedelta(minutes=5), slot=slot)
    return replace(_ask(task_queue, number, request_id=request_id), holder=holder)


@pytest.mark.parametrize("pilots_at_once", [1, 64])
def test_a_batch_that_finds_its_jobs_goes_to_the_server_once(
    engine: Engine,
    now: datetime,
    process: ClaimingProcess,
    pilots_at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queued_jobs.put(engine, now, 100)
    queued_jobs.put(engine, now, 100, owner="bob")
    statements: list[int] = []

    async def note(rows: Awaitable[Rows]) -> Rows:
        statements.append(len(found := await rows))
        return found

    async def work() -> list[list[int]]:
        await process.ask(request(**AT))  # by the thread
        _wrap_rows(monkeypatch, note)
        asked = [request(**AT, request_id=str(number)) for number in range(pilots_at_once)]
        return await _give_together(process, *asked)

    given = run(work, process)
    assert statements == [pilots_at_once]
    assert process.in_loop == pilots_at_once
    assert len({job_id for ids in given for job_id in ids}) == pilots_at_once


def test_jobs_that_come_late_are_found_before_nothing_is_said(
    engine: Engine, now: datetime, matcher: Matcher
) -> None:
    queued_jobs.put(engine, now)
    queued_jobs.put(engine, now, owner="bob")
    for _ in range(3):
        matcher.settle(matcher.serve([request()]))
    matcher.refresh()
    with database.reading(engine) as conn:
        assert queued_jobs.occupied(conn) == set(), "what comes now has to be told"
    with engine.connect() as other, other.begin() as transaction:
        [job_id] = queued_jobs.put(other, now)
        assert _ids(matcher.serve([request()])) == [[]], "it is not committed"
        queued_jobs.put(engine, now, owner="bob")  # a later one, visible first
        assert len(_ids(matcher.serve([request()]))[0]) == 1
        transaction.commit()
    assert _ids(matcher.serve([request()])) == [[job_id]]


def test_what_one_statement_claims_is_whole(engine: Engine, now: datetime, matcher: Matcher) -> None:
    low = queued_jobs.put(engine, now, 2, priority=1.0)
    high = queued_jobs.put(engine, now, 1, priority=9.0)
    with database.writing(engine) as conn:
        for stamp in ("0", "1"):
            pilots.record_contact(conn, stamp=stamp, vo="lhcb", queue=queued_jobs.LONG, now=now)
    asked = [
        request(
            caller=MatchCaller(subject=f"pilot{stamp}", vos=frozenset({"lhcb"}), stamp=stamp),
            request_id="r",
            **queued_jobs.at(queued_jobs.LONG),
        )
        for stamp in ("0", "1")
    ]
    looks = matcher.serve(asked)
    given = [each for look in looks if isinstance(look, ClaimResult) for each in look.claimed]
    assert {each.job_id for each in given} == {high[0], low[0]}
    with database.reading(engine) as conn:
        assert queued_jobs.left(conn) == [low[1]]
        for stamp, each in enumerate(given):
            attempt = attempts.get_attempt(conn, each.lease)
            assert (attempt.job_id, attempt.epoch, attempt.holder) == (each.job_id, 1, f"pilot{stamp}")
            assert (attempt.site, attempt.ce, attempt.queue, attempt.stamp) == (
                HERE.site,
                HERE.ce,
                HERE.queue,
                str(stamp),
            )
            assert attempt.lease_expires_at == each.lease_expires_at == now + timedelta(minutes=5)
            assert jobs.get_job(conn, each.job_id).status is JobStatus.MATCHED
            assert each.description["JobID"] == each.job_id
        assert [pilots.get_pilot(conn, stamp).jobs for stamp in ("0", "1")] == [1, 1]
    assert _ids(matcher.serve(asked)) == [[each.job_id] for each in given], "said again: the same answer"


@pytest.mark.parametrize("how_many", [1, 3])
def test_a_site_that_was_banned_a_moment_ago_gets_nothing(
    engine: Engine, now: datetime, how_many: int
) -> None:
    job_ids = queued_jobs.put(engine, now, 5)
    with database.writing(engine) as conn:
        task_queue = queued_jobs.task_queue_of(conn, job_ids[0])
        closures.set_ban(conn, Ban(site="A.B.ch", reason="", author="x", at=now, until=None))
    asks = [_ask(task_queue, number) for number in range(how_many)]
    allowed = _ask(task_queue, 9, site="C.D.ch")
    with contextlib.closing(AutocommitRunner(engine)) as server:
        refused = BatchClaimResult(is_undecided=True)
        assert claim_together(server, asks, now=now) == [refused] * how_many
        [*nothing, given] = claim_together(server, [*asks, allowed], now=now)
    assert nothing == [refused] * how_many
    assert given.claimed is not None


def test_pilots_in_one_statement_have_each_the_room_of_their_own_slot(engine: Engine, now: datetime) -> None:
    job_ids = queued_jobs.put(engine, now, 20)
    queue = QueueAddress(site="A.B.ch", ce="ce", queue="q")
    sizes = {"one": 1, "two": 2, "three": 3}
    slots = [FirstRequest(stamp=each, vo="lhcb", queue=queue, processors=n) for each, n in sizes.items()]
    with database.writing(engine) as conn:
        task_queue = queued_jobs.task_queue_of(conn, job_ids[0])
        pilots.bind_queues(conn, slots, now=now)
    given: Counter[str] = Counter()
    reasons: dict[str, str | None] = {}
    with contextlib.closing(AutocommitRunner(engine)) as server:
        for turn in range(4):
            asks = [
                _ask_of_pilot(task_queue, 10 * turn + number, stamp=stamp, request_id=str(turn))
                for number, stamp in enumerate(sizes)
            ]
            outcomes = claim_together(server, asks, now=now)
            for stamp, outcome in zip(sizes, outcomes, strict=True):
                given[stamp] += outcome.claimed is not None
                reasons[stamp] = outcome.refused
    assert given == sizes
    assert set(reasons.values()) == {SlotRefusal.FULL}


@pytest.mark.parametrize("request_ids", [(None, None), ("a", "b"), ("a", "a")], ids=str)
def test_of_two_requests_of_one_pilot_in_a_statement_one_gets_a_job(
    engine: Engine, now: datetime, request_ids: tuple[str | None, str | None]
) -> None:
    job_ids = queued_jobs.put(engine, now, 3)
    queue = QueueAddress(site="A.B.ch", ce="ce", queue="q")
    with database.writing(engine) as conn:
        task_queue = queued_jobs.task_queue_of(conn, job_ids[0])
        first = [FirstRequest(stamp=each, vo="lhcb", queue=queue, processors=2) for each in ("one", "two")]
        pilots.bind_queues(conn, first, now=now)
    pair = [
        _ask_of_pilot(task_queue, number, stamp="one", request_id=each)
        for number, each in enumerate(request_ids)
    ]
    with contextlib.closing(AutocommitRunner(engine)) as server:
        outcomes = claim_together(server, [*pair, _ask_of_pilot(task_queue, 2, stamp="two")], now=now)
    assert [each.claimed is not None for each in outcomes] == [True, False, True]
    assert outcomes[1] == BatchClaimResult(is_undecided=True)
    assert _open_attempts(engine) == 2


@pytest.mark.parametrize("undecided", [False, True], ids=["every node", "some nodes"])
def test_the_statement_takes_jobs_of_a_pool_where_other_claims_do(
    engine: Engine, now: datetime, *, undecided: bool
) -> None:
    """Its condition on the mapping is written a second time, in SQL."""
    queues = [
        (site, ce, queue)
        for site in ("A.B.ch", "C.D.ch")
        for ce in ("ce1", "ce2")
        for queue in ("long", "short", "none")
    ]
    places = [
        Location(site=site, ce=ce, queue=queue, checked=checked)
        for site, ce, queue in queues
        for checked in (None, 1, 2)
    ]
    config = queued_jobs.grid()
    with database.writing(engine) as conn:
        queued_jobs.pool(conn, now, POOL, queued_jobs.LONG, config=config)
        if undecided:
            conn.execute(text("UPDATE pool_mappings SET undecided = eligible"))
        job_ids = queued_jobs.put(
            conn, now, len(places), asked=replace(queued_jobs.EVERYWHERE, submit_pool=POOL)
        )
        task_queue = queued_jobs.task_queue_of(conn, job_ids[0])
        expected = [bool(assignment.find_nonempty(conn, [task_queue], place=place)) for place in places]
    asks = [replace(_ask(task_queue, number), place=place) for number, place in enumerate(places)]
    with contextlib.closing(AutocommitRunner(engine)) as server:
        outcomes = claim_together(server, asks, now=now)
    assert [outcome.claimed is not None for outcome in outcomes] == expected
    assert config.version == 1
    assert sum(expected) == (2 if undecided else 6), "two queues, with each or one of the versions"


def test_the_statement_runs_in_psql_as_its_file_tells(engine: Engine, now: datetime) -> None:
    [job_id] = queued_jobs.put(engine, now)
    statement, _ = batched_claim.build_statement([], now=now)
    [example] = re.findall(r"EXECUTE (claim\(.*?\));", re.sub(r"\n--", "", statement), re.DOTALL)
    with database.writing(engine) as conn:
        task_queue = queued_jobs.task_queue_of(conn, job_id)
        conn.exec_driver_sql(f"PREPARE claim (text, timestamptz) AS {statement}")
        called = example.replace('"task_queue_id": 1', f'"task_queue_id": {task_queue}')
        [row] = conn.exec_driver_sql(f"EXECUTE {called}")
        conn.rollback()
    assert (row.number, row.job_id, row.refusal) == (0, job_id, None)


def test_of_two_that_answer_the_same_request_one_takes_a_job(engine: Engine, now: datetime) -> None:
    job_ids = queued_jobs.put(engine, now, 3)
    with database.reading(engine) as conn:
        task_queue = queued_jobs.task_queue_of(conn, job_ids[0])
    with contextlib.closing(AutocommitRunner(engine)) as server:
        [first] = claim_together(server, [_ask(task_queue, request_id="r")], now=now)
        again = [_ask(task_queue, request_id="r"), _ask(task_queue, 1, request_id="r")]
        [repeated, other] = claim_together(server, again, now=now)
    assert first.claimed is not None
    assert repeated == BatchClaimResult(is_undecided=True)
    assert other.claimed is not None, "another pilot's request of the same name"


def _serve_until_free(matcher: Matcher, asked: MatchRequest) -> Sequence[ClaimResult | PilotageError]:
    """As the claim thread does."""
    while True:
        looks = matcher.serve([asked])
        if not any(isinstance(look, ClaimResult) and look.in_other_hands for look in looks):
            return looks


@pytest.mark.parametrize("how_many", [1, 2])
@pytest.mark.parametrize("tree", [queued_jobs.GRID, queued_jobs.GRID + LIMITS], ids=["free", "counted"])
def test_one_request_at_several_processes_at_once_gets_one_answer(
    engine: Engine, now: datetime, how_many: int, tree: str
) -> None:
    queued_jobs.put(engine, now, 12)
    matchers = [queued_jobs.matcher(engine, now, queued_jobs.grid(tree)) for _ in range(3)]
    for each in matchers:
        each.serve([])
    asked = request(request_id="r", count=how_many, **queued_jobs.at(queued_jobs.LONG))
    with ThreadPoolExecutor(3) as processes:
        with engine.connect() as rival, rival.begin() as transaction:
            # All of them come to the door before one goes in.
            rival.execute(text("LOCK TABLE attempts IN EXCLUSIVE MODE"))
            answers = [processes.submit(_serve_until_free, each, asked) for each in matchers]
            wait.until(lambda: databases.count_lock_waits(engine) >= len(matchers))
            transaction.rollback()
        given = [
            [each.lease for each in look.claimed]
            for answer in answers
            for look in answer.result(300)
            if isinstance(look, ClaimResult)
        ]
    assert given == [given[0]] * len(matchers)
    assert _open_attempts(engine) == how_many


def test_what_the_statement_cannot_take_fails_its_own_request_only(
    engine: Engine, now: datetime, process: ClaimingProcess
) -> None:
    queued_jobs.put(engine, now, 4)
    bad = request(caller=MatchCaller(subject="nul\0", vos=frozenset({"lhcb"})), **AT)

    async def work() -> tuple[Any, Any, Any]:
        await process.ask(request(**AT))  # by the thread: what follows is one statement
        asked = map(process.ask, (request(**AT), bad, request(**AT)))
        first, refused, last = await asyncio.gather(*asked, return_exceptions=True)
        return first, refused, last

    first, refused, last = run(work, process)
    assert first.matches
    assert last.matches
    assert isinstance(refused, Exception)


def _lost() -> OperationalError:
    cause = psycopg.OperationalError("the connection is lost")
    return OperationalError("WITH", {}, cause, connection_invalidated=True)


def _open_attempts(engine: Engine) -> int:
    with database.reading(engine) as conn:
        open_ = select(func.count()).where(attempts_table.c.closed_at.is_(None))
        return conn.scalar(open_) or 0


async def _cut_off(rows: Awaitable[Rows]) -> Rows:
    assert await rows, "it is committed"
    raise _lost()


def test_a_claim_that_nobody_heard_of_goes_back(
    engine: Engine, now: datetime, process: ClaimingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, job_id = queued_jobs.put(engine, now, 2)

    async def work() -> list[list[int]]:
        assert await _give_together(process, request(**AT)) == [[first]], "by the thread"
        _wrap_rows(monkeypatch, _cut_off)
        with pytest.raises(OperationalError):
            await process.claimer.claim(request(**AT, request_id="r"), lambda: False)
        monkeypatch.undo()
        return await _give_together(process, request(**AT, request_id="r"))

    assert run(work, process) == [[job_id]]
    assert _open_attempts(engine) == 2
    assert databases.count(engine, match_requests) == 1


def test_what_was_claimed_before_the_database_went_away_is_delivered(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One place has been passed over too often: it is waited for in a second transaction."""
    queued_jobs.put(engine, now, 2)
    matcher = queued_jobs.matcher(engine, now)
    matcher.refresh()
    late = request(**queued_jobs.at(queued_jobs.ELSEWHERE))
    claim_all, waits = claim_loop.claim_all, list[bool]()

    def fail_late(
        conn: Connection, requests: Sequence[ClaimRequest], *, now: datetime, wait: bool
    ) -> dict[int, ClaimResult]:
        waits.append(wait)
        if wait:
            raise _lost()
        return claim_all(conn, requests, now=now, wait=wait)

    monkeypatch.setattr(claim_loop, "claim_all", fail_late)
    monkeypatch.setattr(claim_loop, "_PASSES", 0)
    failed, given = matcher.serve([late, request(**AT)])
    assert waits == [False, True]
    assert isinstance(given, ClaimResult)
    assert len(given.claimed) == 1
    assert isinstance(failed, Unserved), "it is served alone"


def test_what_was_in_doubt_and_is_given_to_who_asks_stays_given(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server executes the statement after the first search for it."""
    queued_jobs.put(engine, now, 2)
    matcher = queued_jobs.matcher(engine, now)
    claimer = ClaimWorker(engine, matcher)
    monkeypatch.setattr(in_doubt_claims, "_AGAIN", 600.0)
    sent: list[tuple[str, Sequence[object]]] = []

    async def lose(_: AsyncRunner, statement: str, values: Sequence[object]) -> Rows:
        sent.append((statement, values))
        raise _lost()

    async def work() -> None:
        with pytest.raises(OperationalError):
            await in_loop.claim(request(**AT, request_id="r"), lambda: False)
        await in_loop.close()

    claimer._serve_batch([PendingRequest(request=request(**AT))])
    in_loop = AsyncClaimer(engine, matcher, claimer.give_back)
    monkeypatch.setattr(AsyncRunner, "rows", lose)
    asyncio.run(work())
    claimer._serve_batch([])
    with contextlib.closing(AutocommitRunner(engine)) as server:
        [statement] = sent
        assert server.rows(*statement)
    again = PendingRequest(request=request(**AT, request_id="r"))
    claimer._serve_batch([again])
    [match] = again.future.result(0).matches
    later = time.monotonic() + 700
    monkeypatch.setattr(time, "monotonic", lambda: later)
    claimer._serve_batch([])
    with database.reading(engine) as conn:
        assert attempts.get_attempt(conn, match.lease).closed_at is None
    assert _open_attempts(engine) == 2


def test_claims_that_are_made_and_cannot_be_told_go_back(
    engine: Engine, now: datetime, process: ClaimingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *job_ids = queued_jobs.put(engine, now, 4)

    def cannot_read(_: object, rows: Rows, *, now: datetime) -> None:
        assert len(rows) == 2, f"committed at {now}"
        raise KeyError("a description that cannot be read")

    async def work() -> list[Any]:
        assert await _give_together(process, request(**AT)) == [[first]], "by the thread"
        monkeypatch.setattr(batched_claim, "read_results", cannot_read)
        asked = [process.claimer.claim(request(**AT), lambda: False) for _ in range(2)]
        return await asyncio.gather(*asked, return_exceptions=True)

    assert run(work, process) == [None, None], "the thread serves them, but for this test"
    wait.until(lambda: _open_attempts(engine) == 1)
    assert submitted_jobs.waiting(engine) == job_ids


def test_a_connection_that_was_given_up_is_not_held_on_to(engine: Engine) -> None:
    with contextlib.closing(AutocommitRunner(engine)) as server:
        server.rows("SELECT 1", ())
        assert server._driver is not None
        known = weakref.ref(server._driver)
        server.close()
        gc.collect()
        assert known() is None
        assert server.rows("SELECT 1", ()) == [(1,)]


def test_a_connection_that_the_server_ended_a_moment_ago_is_not_used(engine: Engine) -> None:
    with contextlib.closing(AutocommitRunner(engine)) as server:
        [(ended,)] = server.rows("SELECT pg_backend_pid()", ())
        with database.writing(engine) as conn:
            # Waits until the other is really gone.
            assert conn.scalar(select(func.pg_terminate_backend(ended, 300_000)))
        [(now_used,)] = server.rows("SELECT pg_backend_pid()", ())
    assert now_used != ended


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")  # other tests have threads
def test_a_child_that_was_forked_has_a_connection_of_its_own(engine: Engine) -> None:
    with contextlib.closing(AutocommitRunner(engine)) as server:
        [(parents,)] = server.rows("SELECT pg_backend_pid()", ())
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            with contextlib.suppress(BaseException):
                os.write(writing, str(server.rows("SELECT pg_backend_pid()", ())[0][0]).encode())
                server.close()
            os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        with os.fdopen(reading) as said:
            assert int(said.read()) != parents
        assert server.rows("SELECT pg_backend_pid()", ()) == [(parents,)]


def test_a_database_that_stood_still_under_load_leaves_no_attempt_without_a_pilot(
    engine: Engine, now: datetime, matcher: Matcher
) -> None:
    job_ids = queued_jobs.put(engine, now, 20)
    matcher.serve([])
    claimer = ClaimWorker(engine, matcher)
    claimer.start()
    try:
        with engine.connect() as rival, rival.begin() as transaction:
            # Every claim has to write here: all of them stand still until the lock goes.
            rival.execute(text("LOCK TABLE attempts IN EXCLUSIVE MODE"))
            tickets = [claimer.submit(request(seconds=0.5)) for _ in range(10)]
            errors = [ticket.future.exception for ticket in tickets]
            wait.until(lambda: all(ticket.request.deadline < time.monotonic() for ticket in tickets))
            transaction.rollback()
        assert all(error(300) is not None for error in errors)
        late = claimer.submit(request())
        [match] = late.future.result(300).matches
    finally:
        claimer.stop()
    assert _open_attempts(engine) == 1
    assert submitted_jobs.waiting(engine) == [each for each in job_ids if each != match.job_id]


def test_a_claim_is_prepared_at_once_with_a_plan_for_all_values(engine: Engine, now: datetime) -> None:
    job_ids = queued_jobs.put(engine, now, 3)
    with database.reading(engine) as conn:
        task_queue = queued_jobs.task_queue_of(conn, job_ids[0])
    with contextlib.closing(AutocommitRunner(engine)) as server:
        claim_together(server, [_ask(task_queue, number) for number in range(2)], now=now)
        [plans] = server.rows(
            "SELECT sum(generic_plans), sum(custom_plans) FROM pg_prepared_statements"
            " WHERE statement LIKE '%DELETE FROM waiting_jobs%' AND statement NOT LIKE '%pg_prepared%'",
            (),
        )
    assert plans == (1, 0)


def test_the_connection_used_last_is_used_next(engine: Engine) -> None:
    """It has the statements of the claim thread prepared; others are for threads beside it."""
    with engine.connect(), engine.connect() as second:
        last = second.execute(text("SELECT pg_backend_pid()")).scalar_one()
        second.rollback()
    with engine.connect() as first:
        before = first.execute(text("SELECT pg_backend_pid()")).scalar_one()
    assert before != last, "the first was given back after the second"
    for _ in range(3):
        with engine.connect() as conn:
            assert conn.execute(text("SELECT pg_backend_pid()")).scalar_one() == before


def test_leases_made_together_are_as_good_as_single_ones() -> None:
    made = opening.generate_leases(64)
    assert len(set(made)) == 64
    assert {len(each) for each in made} == {len(opening.generate_lease())}


def test_a_plan_made_while_tables_are_empty_reads_none_of_them_whole(engine: Engine, now: datetime) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.execute(text("VACUUM ANALYZE"))
    scans = _list_scans(engine, now)
    assert len(scans) > 6
    for scan in scans:
        is_large = scan["Relation Name"] in ("match_requests", "pilots", "attempts", "waiting_jobs", "jobs")
        assert scan["Node Type"] != "Seq Scan" or not is_large, scan


def test_rules_and_bans_of_other_places_are_not_read(engine: Engine, now: datetime) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        sites = [f"s{number}" for number in range(2000)]
        conn.execute(insert(scopes_table), [{"scope": site, "site": site} for site in sites])
        scope_rules.insert_rules(
            conn, [ScopeRule(scope=site, kind=RuleKind.RUNNING, definition="{}") for site in sites]
        )
        conn.execute(
            insert(site_bans), [{"site": site, "reason": "", "author": "", "at": now} for site in sites]
        )
        conn.execute(text("VACUUM ANALYZE"))
    scans = [
        each for each in _list_scans(engine, now) if each["Relation Name"] in ("scope_rules", "site_bans")
    ]
    assert len(scans) >= 3
    assert [each for each in scans if not each.keys() & {"Index Cond", "Recheck Cond"}] == []


def test_rules_are_read_once_for_all_requests_of_a_statement(engine: Engine, now: datetime) -> None:
    scans = [
        each
        for each in _explain(engine, [_CLAIM] * 4, now, options="ANALYZE, ")
        if each.get("Relation Name") == "scope_rules"
    ]
    assert len(scans) >= 3
    assert {each["Actual Loops"] for each in scans} <= {0, 1}


_CLAIM = BatchClaim(
    task_queue_id=1,
    place=HERE,
    holder=LeaseHolder(
        subject="p", stamp="s", lease_time=timedelta(1), slot=SlotLimits(processors=1, claims=9)
    ),
    lease="lease",
    allotment=Allotment(),
    request_id="request",
)


def _list_scans(engine: Engine, now: datetime) -> list[dict[str, Any]]:
    """The scans of tables in the plan of a claim."""
    nodes = _explain(engine, [_CLAIM] * 2, now)
    return [each for each in nodes if "Relation Name" in each and each["Node Type"].endswith("Scan")]


def _explain(
    engine: Engine, batch: list[BatchClaim], now: datetime, *, options: str = ""
) -> Iterator[dict[str, Any]]:
    """The nodes of the plan of a claim."""
    statement, values = batched_claim.build_statement(batch, now=now)
    runner = AutocommitRunner(engine)
    [([explained],)] = runner.rows(f"EXPLAIN ({options}FORMAT JSON) {statement}", values)
    return _list_nodes(explained["Plan"])


def _list_nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _list_nodes(part)
