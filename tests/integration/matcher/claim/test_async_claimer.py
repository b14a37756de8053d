"""Claims in the event loop: nothing is given twice or lost, whoever goes and whatever connection breaks."""

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select, text

from matcher.claim import async_claimer
from matcher.claim.claim_request import ClaimResult
from matcher.request.match_request import MatchCaller, MatchRequest, MatchResult, NotInTime
from requirements.errors import PilotageError
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.pilots import pilots
from taskqueue.pilots.pilots import FirstRequest
from taskqueue.pilots.slots import SlotRefusal
from taskqueue.schema.tables import attempts, jobs, match_requests
from tests.support import databases, wait
from tests.support.claimers import ClaimingProcess, claiming, run
from tests.support.factories import queued_jobs, stored_rows, submitted_jobs
from tests.support.factories.queued_jobs import LONG, at, request


@pytest.fixture
def engine(postgresql: Engine) -> Engine:
    return postgresql


@pytest.fixture
def process(engine: Engine, now: datetime) -> Iterator[ClaimingProcess]:
    with claiming(engine, queued_jobs.matcher(engine, now)) as process:
        yield process


def _ask(number: int = 0, *, seconds: float = 300, **about: Any) -> MatchRequest:
    caller = MatchCaller(subject=f"pilot{number}", vos=frozenset({"lhcb"}))
    return request(seconds=seconds, **{"caller": caller, **at(LONG), **about})


def _may_be_gone(draw: random.Random) -> bool:
    return draw.random() < 0.5


def _stays() -> bool:
    return False


def _open_attempts(engine: Engine) -> list[int]:
    return databases.scalars(engine, select(attempts.c.job_id).where(attempts.c.closed_at.is_(None)))


def test_what_comes_in_together_is_claimed_together(
    engine: Engine, now: datetime, process: ClaimingProcess
) -> None:
    queued_jobs.put(engine, now, 40)

    async def work() -> list[MatchResult | None]:
        assert await process.claimer.claim(_ask(), lambda: False) is None, "nobody has asked from there"
        await process.ask(_ask())
        return await asyncio.gather(*(process.claimer.claim(_ask(n), lambda: False) for n in range(30)))

    answers = run(work, process)
    given = [match.job_id for answer in answers if answer for match in answer.matches]
    assert len(given) == len(set(given)) == 30, "none of them needed the thread"
    assert len(_open_attempts(engine)) == 31


def test_the_first_request_from_a_place_is_claimed_for_in_the_event_loop(
    engine: Engine, now: datetime
) -> None:
    queued_jobs.put(engine, now, 2)
    with claiming(engine, queued_jobs.matcher(engine, now)) as process:
        wait.until(lambda: process.matcher.is_loaded)

        async def work() -> None:
            for number, place in enumerate((LONG, queued_jobs.ELSEWHERE), 1):
                answer = await process.ask(replace(_ask(**at(place)), cache_key=place))
                assert (len(answer.matches), process.in_loop) == (1, number)

        run(work, process)


def test_a_first_request_waits_for_no_other_work_in_threads(engine: Engine, now: datetime) -> None:
    queued_jobs.put(engine, now, 1)
    is_over = threading.Event()
    with claiming(engine, queued_jobs.matcher(engine, now)) as process:
        wait.until(lambda: process.matcher.is_loaded)

        async def work() -> MatchResult:
            loop = asyncio.get_running_loop()
            loop.set_default_executor(ThreadPoolExecutor(1))
            loop.run_in_executor(None, is_over.wait, 300)
            try:
                return await process.ask(replace(_ask(seconds=60), cache_key="place"))
            finally:
                is_over.set()

        assert len(run(work, process).matches) == 1


def test_a_place_is_read_once_for_all_first_requests_from_there(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued_jobs.put(engine, now, 5)
    with claiming(engine, queued_jobs.matcher(engine, now)) as process:
        wait.until(lambda: process.matcher.is_loaded)
        readings: list[object] = []
        read = process.matcher.read_place

        def count(asked: MatchRequest) -> None:
            readings.append(asked.cache_key)
            read(asked)

        monkeypatch.setattr(process.matcher, "read_place", count)

        async def work() -> list[MatchResult]:
            asked = [replace(_ask(number), cache_key="place") for number in range(5)]
            return await asyncio.gather(*map(process.ask, asked))

        assert [len(each.matches) for each in run(work, process)] == [1] * 5
        assert (readings, process.in_loop) == (["place"], 5)


def test_a_request_that_another_process_answers_sends_no_other_one_to_the_thread(
    engine: Engine, now: datetime, process: ClaimingProcess
) -> None:
    queued_jobs.put(engine, now, 5)

    async def work() -> list[MatchResult | None]:
        await process.ask(_ask())
        with engine.connect() as rival, rival.begin() as transaction:
            row = {"subject": "pilot1", "request_id": "r", "at": now, "matches": "[]"}
            rival.execute(insert(match_requests).values(row))
            asked = [_ask(1, request_id="r"), _ask(2, request_id="r"), _ask(3)]
            claims = [asyncio.create_task(process.claimer.claim(each, _stays)) for each in asked]
            await asyncio.to_thread(wait.until, lambda: databases.count_lock_waits(engine) > 0)
            transaction.commit()
        return await asyncio.gather(*claims)

    answered, *others = run(work, process)
    assert answered is None, "only the thread reads the other process's answer"
    assert [len(each.matches) for each in others if each is not None] == [1, 1]
    assert len(_open_attempts(engine)) == 3


def test_a_place_that_cannot_be_read_in_time_is_an_answer_in_time(
    process: ClaimingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = threading.Event()
    monkeypatch.setattr(process.matcher, "read_place", lambda _: is_over.wait(300))

    async def work() -> None:
        try:
            with pytest.raises(NotInTime):
                await process.ask(replace(_ask(seconds=0.05), cache_key="place"))
        finally:
            is_over.set()

    run(work, process)


def test_a_pilot_without_room_does_not_reach_the_thread(
    engine: Engine, now: datetime, process: ClaimingProcess
) -> None:
    queued_jobs.put(engine, now, 5)
    first = FirstRequest(stamp="s", vo="lhcb", queue=LONG, processors=1)
    with database.writing(engine) as conn:
        pilots.bind_queues(conn, [first], now=now)
    caller = MatchCaller(subject="pilot:s", vos=frozenset({"lhcb"}), stamp="s", queue=LONG)

    async def work() -> list[MatchResult | None]:
        held = await process.ask(_ask(caller=caller, request_id="first"))
        again = await process.claimer.claim(_ask(caller=caller, request_id="second"), lambda: False)
        repeated = await process.claimer.claim(_ask(caller=caller, request_id="first"), lambda: False)
        assert repeated is None, "only the thread reads earlier answers"
        return [held, again, await process.ask(_ask(caller=caller, request_id="first"))]

    held, again, repeated = run(work, process)
    assert again == MatchResult(reason=SlotRefusal.FULL)
    assert held is not None
    assert held == repeated
    assert len(_open_attempts(engine)) == 1


def test_few_requests_wait_for_a_statement_that_is_under_way(
    engine: Engine, now: datetime, process: ClaimingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_claimer, "_SLOW", 600.0)
    queued_jobs.put(engine, now, 20)

    async def work() -> None:
        await process.ask(_ask())
        sent: list[asyncio.Task[MatchResult]] = []
        with engine.connect() as rival, rival.begin() as transaction:
            rival.execute(text("LOCK TABLE attempts IN EXCLUSIVE MODE"))
            for statements, requests in ((1, 3), (1, 1), (2, 2)):
                sent += [asyncio.create_task(process.ask(_ask(len(sent) + n + 1))) for n in range(requests)]
                while await asyncio.to_thread(databases.count_lock_waits, engine) < statements:
                    await asyncio.sleep(0)
            transaction.rollback()
        await asyncio.gather(*sent)

    run(work, process)
    transactions = databases.scalars(engine, text("SELECT count(*) FROM attempts GROUP BY xmin ORDER BY 1"))
    assert transactions == [1, 3, 3]


def test_a_statement_that_waits_for_a_lock_holds_up_no_others(
    engine: Engine, now: datetime, process: ClaimingProcess
) -> None:
    queued_jobs.put(engine, now, 20)

    async def work() -> None:
        await process.ask(_ask())
        with engine.connect() as rival, rival.begin() as transaction:
            key = {"subject": "pilot1", "request_id": "r", "at": now, "matches": "[]"}
            rival.execute(insert(match_requests), key)
            stuck = [asyncio.create_task(process.ask(_ask(1, request_id="r")))]
            while not await asyncio.to_thread(databases.count_lock_waits, engine):
                await asyncio.sleep(0)
            assert len((await process.ask(_ask(2))).matches) == 1
            assert not stuck[0].done()
            transaction.rollback()
        assert len((await stuck[0]).matches) == 1

    run(work, process)


def test_no_connection_is_left_open_where_requests_wait_at_the_end(
    engine: Engine, now: datetime, process: ClaimingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of them is served by a connection that is idle while another statement is waited for."""
    monkeypatch.setattr(async_claimer, "_SLOW", 600.0)
    queued_jobs.put(engine, now, 20)
    sent: list[asyncio.Task[MatchResult]] = []

    async def send(*requests: MatchRequest, statements: int) -> None:
        sent.extend(asyncio.create_task(process.ask(each)) for each in requests)
        while await asyncio.to_thread(databases.count_lock_waits, engine) < statements:
            await asyncio.sleep(0)

    async def work() -> None:
        await process.ask(_ask())
        with ExitStack() as stack:
            locks = []
            for number in (1, 2):
                rival = stack.enter_context(engine.connect())
                locks.append(stack.enter_context(rival.begin()))
                key = {"subject": f"pilot{number}", "request_id": "r", "at": now, "matches": "[]"}
                rival.execute(insert(match_requests), key)
            await send(_ask(1, request_id="r"), statements=1)
            await send(_ask(2, request_id="r"), _ask(3), statements=2)
            await send(_ask(4), statements=2)
            locks[0].rollback()
            await sent[0]
            closing = asyncio.create_task(process.claimer.close())
            await asyncio.sleep(0)
            locks[1].rollback()
            await asyncio.gather(*sent)
            await closing
        assert [lane.server._driver for lane in process.claimer._lanes] == [None, None]

    asyncio.run(work())


def test_a_repeated_request_gets_the_same_job(
    engine: Engine, now: datetime, process: ClaimingProcess
) -> None:
    queued_jobs.put(engine, now, 5)

    async def work() -> list[MatchResult]:
        await process.ask(_ask())
        first = await process.ask(_ask(request_id="r"))
        together = await asyncio.gather(*(process.ask(_ask(request_id="r")) for _ in range(3)))
        return [first, *together]

    answers = run(work, process)
    assert len({each.matches[0].job_id for each in answers}) == 1
    assert len(_open_attempts(engine)) == 2


def test_what_comes_too_late_goes_back(engine: Engine, now: datetime, process: ClaimingProcess) -> None:
    job_ids = queued_jobs.put(engine, now, 5)

    async def work() -> None:
        await process.ask(_ask())
        with engine.connect() as rival, rival.begin() as transaction:
            rival.execute(text("LOCK TABLE attempts IN EXCLUSIVE MODE"))
            late = [
                asyncio.create_task(process.claimer.claim(_ask(n, seconds=0.3), lambda: False))
                for n in (1, 2)
            ]
            results = await asyncio.gather(*late, return_exceptions=True)
            transaction.rollback()
        assert [type(each) for each in results] == [NotInTime, NotInTime]

    run(work, process)
    wait.until(lambda: len(_open_attempts(engine)) == 1)
    assert len(submitted_jobs.waiting(engine)) == len(job_ids) - 1


def test_nothing_is_claimed_for_who_has_gone(engine: Engine, now: datetime, process: ClaimingProcess) -> None:
    queued_jobs.put(engine, now, 5)

    async def work() -> MatchResult | None:
        await process.ask(_ask())
        return await process.claimer.claim(_ask(1), lambda: True)

    assert run(work, process) is None, "the claim thread sees for itself that the client has gone"
    assert len(_open_attempts(engine)) == 1


def test_nothing_is_only_said_by_who_read_what_is_new(
    engine: Engine, now: datetime, process: ClaimingProcess
) -> None:
    queued_jobs.put(engine, now, 2)

    async def work() -> list[int]:
        answers = [await process.ask(_ask(number)) for number in range(4)]
        return [len(each.matches) for each in answers]

    assert run(work, process) == [1, 1, 0, 0]
    queued_jobs.put(engine, now, 1, owner="bob")
    assert len(run(lambda: process.ask(_ask(9)), process).matches) == 1


def test_a_request_waits_while_a_rival_holds_the_row_of_the_last_job(
    engine: Engine, now: datetime, process: ClaimingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, last = queued_jobs.put(engine, now, 2)
    batches: list[int] = []
    serve = process.matcher.serve

    def count(batch: Sequence[MatchRequest]) -> list[ClaimResult | PilotageError]:
        batches.append(len(batch))
        return serve(batch)

    async def work() -> MatchResult:
        await process.ask(_ask())  # by the thread: the next one begins in the event loop
        monkeypatch.setattr(process.matcher, "serve", count)
        with engine.connect() as rival, rival.begin() as transaction:
            assert queued_jobs.claim(rival, [queued_jobs.task_queue_of(rival, last)], now)
            asking = asyncio.create_task(process.ask(_ask(1)))
            await asyncio.to_thread(wait.until, lambda: len(batches) >= 2)
            assert not asking.done(), "it is tried again"
            transaction.rollback()
        return await asking

    assert [match.job_id for match in run(work, process).matches] == [last]


@pytest.mark.parametrize("requests", [1, 2])
def test_a_place_that_was_closed_a_moment_ago_makes_no_task_queue_empty(
    engine: Engine, now: datetime, process: ClaimingProcess, requests: int
) -> None:
    queued_jobs.put(engine, now, 5)

    async def work() -> list[MatchResult | None]:
        await process.ask(_ask())
        process.worker.stop()  # it would read of the ban
        stored_rows.ban(engine, now)
        return await asyncio.gather(*(process.claimer.claim(_ask(n), _stays) for n in range(requests)))

    assert run(work, process) == [None] * requests
    assert process.matcher._memory.waiting.excluded == frozenset()


def test_sqlite_leaves_everything_to_the_thread(tmp_path: Any, now: datetime) -> None:
    url = f"sqlite:///{tmp_path / 'test.db'}"
    database.upgrade(url)
    engine = database.connect(url)
    queued_jobs.put(engine, now, 2)
    with claiming(engine, queued_jobs.matcher(engine, now)) as process:

        async def work() -> MatchResult | None:
            await process.ask(_ask())
            return await process.claimer.claim(_ask(1), lambda: False)

        assert run(work, process) is None
    engine.dispose()


def test_a_drain_gives_each_job_once_and_nothing_only_at_its_end(engine: Engine, now: datetime) -> None:
    job_ids = [
        each for owner in range(20) for each in queued_jobs.put(engine, now, 100, owner=f"user{owner}")
    ]
    given: Counter[int] = Counter()

    async def pilot(process: ClaimingProcess, number: int) -> list[int]:
        while (answer := await process.ask(_ask(number))).matches:
            given.update(match.job_id for match in answer.matches)
        with database.reading(engine) as conn:
            return queued_jobs.left(conn)

    async def work() -> list[list[int]]:
        return await asyncio.gather(*(pilot(processes[n % 2], n) for n in range(128)))

    with ExitStack() as stack:
        processes = [
            stack.enter_context(claiming(engine, queued_jobs.matcher(engine, now))) for _ in range(2)
        ]
        assert run(work, *processes) == [[]] * 128, "no job waits when nothing is answered"
    assert given == Counter(job_ids)


@pytest.mark.parametrize("seed", range(3))
def test_processes_clients_that_go_and_connections_that_break_lose_and_double_nothing(
    engine: Engine, now: datetime, seed: int
) -> None:
    draw = random.Random(seed)
    job_ids = [
        each for owner in ("alice", "bob", "carol") for each in queued_jobs.put(engine, now, 60, owner=owner)
    ]
    kept: Counter[int] = Counter()

    async def pilot(process: ClaimingProcess, number: int) -> None:
        for turn in range(6):
            asked = _ask(number, request_id=f"{number}.{turn}", seconds=draw.choice((0.05, 5, 5)))
            goes = draw.random() < 0.2
            try:
                answer = await process.ask(asked, partial(_may_be_gone, draw) if goes else _stays)
            except (PilotageError, *database.UNAVAILABLE):
                continue
            if not goes:
                kept.update(match.job_id for match in answer.matches)

    def end_sessions() -> None:
        others = "datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.5"
        with contextlib.suppress(*database.UNAVAILABLE), database.writing(engine) as conn:
            conn.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))

    async def work() -> None:
        asking = asyncio.gather(*(pilot(processes[n % 2], n) for n in range(16)))
        for _ in range(4):
            await asyncio.wait([asking], timeout=0.05)
            await asyncio.to_thread(end_sessions)
        await asking
        for each in processes:
            await each.claimer.close()

    with ExitStack() as stack:
        processes = [
            stack.enter_context(claiming(engine, queued_jobs.matcher(engine, now))) for _ in range(2)
        ]
        asyncio.run(work())
    assert max(kept.values(), default=0) <= 1, "no job is given twice"
    with database.reading(engine) as conn:
        open_ = _open_attempts(engine)
        matched = list(conn.scalars(select(jobs.c.job_id).where(jobs.c.status == JobStatus.MATCHED.value)))
        assert sorted(open_) == sorted(matched), "each job has one attempt, or none and waits"
        assert sorted([*matched, *queued_jobs.left(conn)]) == sorted(job_ids), "none is lost"
        assert set(kept) <= set(open_), "what a pilot got is its own"
