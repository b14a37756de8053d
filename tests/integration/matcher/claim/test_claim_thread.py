"""The one thread that claims: what is late, gone or wrong costs nobody a job."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from types import SimpleNamespace

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.exc import OperationalError

from matcher.claim import claim_thread as claimer_module
from matcher.claim.claim_request import ClaimResult
from matcher.claim.claim_thread import ClaimWorker, PendingRequest
from matcher.claim.matcher import Matcher
from matcher.request.match_request import Busy, MatchCaller, MatchRequest, MatchResult, NotInTime
from requirements.errors import PilotageError
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.jobs import jobs
from taskqueue.leases import attempts
from taskqueue.schema import tables
from tests.support.factories import pilot_reports, queued_jobs, submitted_jobs
from tests.support.factories.queued_jobs import at, request
from tests.support.wait import until


@pytest.fixture
def matcher(engine: Engine, now: datetime) -> Matcher:
    return queued_jobs.matcher(engine, now)


@pytest.fixture
def claimer(engine: Engine, matcher: Matcher) -> Iterator[ClaimWorker]:
    with _started(ClaimWorker(engine, matcher)) as running:
        yield running


@contextlib.contextmanager
def _started(claimer: ClaimWorker) -> Iterator[ClaimWorker]:
    """It serves, and has ended afterwards."""
    claimer.start()
    try:
        yield claimer
    finally:
        claimer.stop()


def _answer(ticket: PendingRequest) -> MatchResult:
    return ticket.future.result(300)


Serve = Callable[[Sequence[MatchRequest]], list[ClaimResult | PilotageError]]


def _instead(monkeypatch: pytest.MonkeyPatch, matcher: Matcher, serve: Callable[[Serve], Serve]) -> None:
    """Let something happen around the matcher's look."""
    monkeypatch.setattr(matcher, "serve", serve(matcher.serve))


def _held_up(monkeypatch: pytest.MonkeyPatch, matcher: Matcher) -> tuple[threading.Event, threading.Event]:
    """Stop the claimer after its claim is committed: `claimed` says so, `go` lets it go on."""
    claimed, go = threading.Event(), threading.Event()

    def wrap(serve: Serve) -> Serve:
        def slow(batch: Sequence[MatchRequest]) -> list[ClaimResult | PilotageError]:
            looks = serve(batch)
            claimed.set()
            assert go.wait(300)
            return looks

        return slow

    _instead(monkeypatch, matcher, wrap)
    return claimed, go


def test_a_request_gets_its_job(engine: Engine, now: datetime, claimer: ClaimWorker) -> None:
    [job_id] = queued_jobs.put(engine, now)
    answer = _answer(claimer.submit(request(**at(queued_jobs.LONG))))
    assert [match.job_id for match in answer.matches] == [job_id]
    assert claimer.alive


def test_all_that_have_come_in_are_served_in_one_transaction(
    engine: Engine, now: datetime, matcher: Matcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = queued_jobs.put(engine, now, 10)
    sizes: list[int] = []

    def wrap(serve: Serve) -> Serve:
        def counted(batch: Sequence[MatchRequest]) -> list[ClaimResult | PilotageError]:
            sizes.append(len(batch))
            return serve(batch)

        return counted

    _instead(monkeypatch, matcher, wrap)
    claimer = ClaimWorker(engine, matcher)
    monkeypatch.setattr(ClaimWorker, "alive", True)
    tickets = [claimer.submit(request()) for _ in range(10)]
    with _started(claimer):
        given = [match.job_id for ticket in tickets for match in _answer(ticket).matches]
    assert sizes == [10]
    assert sorted(given) == ids


def test_a_poisoned_request_fails_alone(
    engine: Engine, now: datetime, matcher: Matcher, claimer: ClaimWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = queued_jobs.put(engine, now, 3)

    def wrap(serve: Serve) -> Serve:
        def poisoned(batch: Sequence[MatchRequest]) -> list[ClaimResult | PilotageError]:
            looks = serve(batch)
            if any(each.request_id == "poison" for each in batch):
                raise ZeroDivisionError("a defect of ours")
            return looks

        return poisoned

    _instead(monkeypatch, matcher, wrap)
    tickets = [claimer.submit(request()) for _ in range(3)]
    poison = claimer.submit(
        request(request_id="poison", caller=MatchCaller(subject="x", vos=frozenset({"cms"})))
    )
    with pytest.raises(ZeroDivisionError):
        _answer(poison)
    given = [match.job_id for ticket in tickets for match in _answer(ticket).matches]
    assert len(given) == len(set(given)) <= len(ids)
    assert claimer.alive


def test_a_database_that_is_away_is_told_to_all_and_the_claimer_goes_on(
    engine: Engine, now: datetime, matcher: Matcher, claimer: ClaimWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job_id] = queued_jobs.put(engine, now)
    away = [True]

    def wrap(serve: Serve) -> Serve:
        def sometimes(batch: Sequence[MatchRequest]) -> list[ClaimResult | PilotageError]:
            if away:
                raise OperationalError("SELECT 1", {}, Exception("server closed the connection"))
            return serve(batch)

        return sometimes

    _instead(monkeypatch, matcher, wrap)
    with pytest.raises(OperationalError):
        _answer(claimer.submit(request()))
    away.clear()
    assert _answer(claimer.submit(request())).matches[0].job_id == job_id


# Deadlines, clients that have gone.


def test_a_request_whose_time_is_over_takes_no_job(
    engine: Engine, now: datetime, claimer: ClaimWorker
) -> None:
    [job_id] = queued_jobs.put(engine, now)
    with pytest.raises(NotInTime):
        _answer(claimer.submit(request(seconds=-1)))
    assert submitted_jobs.waiting(engine) == [job_id]
    with database.reading(engine) as conn:
        assert attempts.get_latest(conn, job_id) is None, "it was not claimed at all"


def test_a_request_whose_client_has_gone_takes_no_job(
    engine: Engine, now: datetime, matcher: Matcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job_id] = queued_jobs.put(engine, now)
    claimer = ClaimWorker(engine, matcher)
    monkeypatch.setattr(ClaimWorker, "alive", True)
    gone, there = claimer.submit(request()), claimer.submit(request())
    claimer.abandon(gone)
    with _started(claimer):
        assert _answer(there).matches[0].job_id == job_id
    assert gone.future.cancelled()


@pytest.mark.parametrize("request_id", [None, "r"])
def test_a_job_that_was_claimed_for_a_client_that_has_gone_waits_again_at_once(
    engine: Engine,
    now: datetime,
    matcher: Matcher,
    claimer: ClaimWorker,
    monkeypatch: pytest.MonkeyPatch,
    request_id: str | None,
) -> None:
    [job_id] = queued_jobs.put(engine, now)
    claimed, go = _held_up(monkeypatch, matcher)
    ticket = claimer.submit(request(request_id=request_id))
    assert claimed.wait(300)
    claimer.abandon(ticket)
    go.set()
    until(lambda: submitted_jobs.waiting(engine) == [job_id])
    with database.reading(engine) as conn:
        job, attempt = jobs.get_job(conn, job_id), attempts.get_latest(conn, job_id)
    assert (job.status, job.reschedules) == (JobStatus.WAITING, 0)
    assert attempt is not None
    assert attempt.closed_as == "released"


def test_a_job_that_was_claimed_too_late_waits_again_at_once(
    engine: Engine, now: datetime, matcher: Matcher, claimer: ClaimWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job_id] = queued_jobs.put(engine, now)
    claimed, go = _held_up(monkeypatch, matcher)
    late = request(seconds=600)
    ticket = claimer.submit(late)
    assert claimed.wait(300)
    monkeypatch.setattr(claimer_module, "time", SimpleNamespace(monotonic=lambda: late.deadline))
    go.set()
    with pytest.raises(NotInTime):
        _answer(ticket)
    until(lambda: submitted_jobs.waiting(engine) == [job_id])


def test_an_answer_that_could_not_be_sent_goes_back(
    engine: Engine, now: datetime, claimer: ClaimWorker
) -> None:
    [job_id] = queued_jobs.put(engine, now)
    ticket = claimer.submit(request())
    assert _answer(ticket).matches
    claimer.abandon(ticket)
    until(lambda: submitted_jobs.waiting(engine) == [job_id])


def test_what_was_begun_all_the_same_does_not_go_back(
    engine: Engine, now: datetime, claimer: ClaimWorker
) -> None:
    [job_id] = queued_jobs.put(engine, now)
    ticket = claimer.submit(request(request_id="r"))
    [match] = _answer(ticket).matches
    pilot_reports.start(engine, match.lease, lease_time=match.lease_expires_at - now, now=now)
    claimer.abandon(ticket)
    assert _answer(claimer.submit(request())).reason == "no_task_queue", "it has been looked at by now"
    assert submitted_jobs.job(engine, job_id).status is JobStatus.RUNNING
    queued_jobs.put(engine, now)
    assert _answer(claimer.submit(request(request_id="r"))).matches == (match,), "it has its answer"


def test_who_asks_again_is_not_given_what_is_about_to_go_back(
    engine: Engine, now: datetime, matcher: Matcher
) -> None:
    queued_jobs.put(engine, now, 2)
    claimer = ClaimWorker(engine, matcher)
    gone, again = (PendingRequest(request=request(request_id="r")) for _ in range(2))
    claimer._serve_batch([gone])
    claimer.abandon(gone)
    claimer._serve_batch([again])
    claimer._serve_batch([])
    [match] = again.future.result(0).matches
    with database.reading(engine) as conn:
        assert attempts.get_attempt(conn, match.lease).closed_at is None


def test_a_statement_that_the_database_cannot_take_fails_its_own_request_only(
    engine: Engine, now: datetime, matcher: Matcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job_id] = queued_jobs.put(engine, now)

    def wrap(serve: Serve) -> Serve:
        def too_many(batch: Sequence[MatchRequest]) -> list[ClaimResult | PilotageError]:
            if any(each.request_id == "too many" for each in batch):
                values = range(300_000 if engine.dialect.name == "sqlite" else 70_000)
                with database.reading(engine) as conn:
                    conn.execute(select(tables.jobs.c.job_id).where(tables.jobs.c.job_id.in_(values)))
            return serve(batch)

        return too_many

    _instead(monkeypatch, matcher, wrap)
    claimer = ClaimWorker(engine, matcher)
    bad, good = PendingRequest(request=request(request_id="too many")), PendingRequest(request=request())
    claimer._serve_batch([bad, good])
    assert [each.job_id for each in _answer(good).matches] == [job_id]
    with pytest.raises(OperationalError):
        _answer(bad)


# Bounds, and an end.


def test_more_requests_than_there_is_room_for_are_sent_away(
    engine: Engine, matcher: Matcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimer = ClaimWorker(engine, matcher, most_waiting=2)
    monkeypatch.setattr(ClaimWorker, "alive", True)
    claimer.submit(request())
    claimer.submit(request())
    with pytest.raises(Busy, match="2 requests wait already"):
        claimer.submit(request())


def test_before_its_start_and_after_its_end_it_is_not_alive(engine: Engine, matcher: Matcher) -> None:
    claimer = ClaimWorker(engine, matcher)
    assert not claimer.alive
    with pytest.raises(Busy):
        claimer.submit(request())
    claimer.start()
    assert claimer.alive
    claimer.stop()
    assert not claimer.alive
    with pytest.raises(Busy):
        claimer.submit(request())


def test_a_claimer_that_is_stuck_is_not_alive(
    matcher: Matcher, claimer: ClaimWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed, go = _held_up(monkeypatch, matcher)
    ticket = claimer.submit(request())
    assert claimed.wait(300)
    assert claimer.alive
    monkeypatch.setattr(claimer_module, "_STUCK", 0.05)
    until(lambda: not claimer.alive)
    go.set()
    _answer(ticket)


def test_what_has_come_in_is_served_before_the_end(engine: Engine, now: datetime, matcher: Matcher) -> None:
    queued_jobs.put(engine, now, 5)
    claimer = ClaimWorker(engine, matcher)
    with _started(claimer):
        tickets = [claimer.submit(request()) for _ in range(5)]
    assert all(ticket.future.done() for ticket in tickets)
    assert sum(len(_answer(ticket).matches) for ticket in tickets) == 5


def test_a_defect_between_two_requests_does_not_end_the_claimer(
    engine: Engine, now: datetime, matcher: Matcher, claimer: ClaimWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = threading.Event()

    def defect() -> None:
        broken.set()
        raise ZeroDivisionError

    monkeypatch.setattr(matcher, "refresh", defect)
    assert broken.wait(300)
    [job_id] = queued_jobs.put(engine, now)
    assert _answer(claimer.submit(request())).matches[0].job_id == job_id


# Jobs in other hands.


def test_nothing_is_not_said_while_a_job_that_fits_may_come_free_again(
    postgresql: Engine, now: datetime
) -> None:
    with database.writing(postgresql) as conn:
        [job_id] = queued_jobs.put(conn, now)
        task_queue = queued_jobs.task_queue_of(conn, job_id)
    with _started(ClaimWorker(postgresql, queued_jobs.matcher(postgresql, now))) as claimer:
        with postgresql.connect() as rival, rival.begin() as transaction:
            assert queued_jobs.claim(rival, [task_queue], now)
            ticket = claimer.submit(request())
            with pytest.raises(TimeoutError):
                ticket.future.result(0.3)
            transaction.rollback()
        assert _answer(ticket).matches[0].job_id == job_id
        with postgresql.connect() as rival, rival.begin():
            ticket = claimer.submit(request())
            assert _answer(ticket).reason == "no_task_queue"


def test_who_waits_for_other_hands_is_told_when_its_time_is_over(postgresql: Engine, now: datetime) -> None:
    with database.writing(postgresql) as conn:
        [job_id] = queued_jobs.put(conn, now)
        task_queue = queued_jobs.task_queue_of(conn, job_id)
    with (
        _started(ClaimWorker(postgresql, queued_jobs.matcher(postgresql, now))) as claimer,
        database.writing(postgresql) as rival,
    ):
        queued_jobs.claim(rival, [task_queue], now)
        with pytest.raises(NotInTime):
            _answer(claimer.submit(request(seconds=0.3)))


# Everything at once.


def test_many_pilots_of_two_claimers_drain_the_task_queues(engine: Engine, now: datetime) -> None:
    ids = []
    with database.writing(engine) as conn:
        for number in range(20):
            ids += queued_jobs.put(conn, now, 15, owner=f"user{number}")

    def pilot(number: int) -> list[int]:
        mine: list[int] = []
        while True:
            answer = _answer(claimers[number % 2].submit(request(count=1 + number % 2)))
            if answer.reason:
                return mine
            mine += [match.job_id for match in answer.matches]

    with contextlib.ExitStack() as at_end, ThreadPoolExecutor(12) as pilots:
        matchers = [queued_jobs.matcher(engine, now) for _ in range(2)]
        claimers = [at_end.enter_context(_started(ClaimWorker(engine, each))) for each in matchers]
        futures: list[Future[list[int]]] = [pilots.submit(pilot, number) for number in range(12)]
        taken = Counter(job_id for future in futures for job_id in future.result())
    assert set(taken) == set(ids)
    assert max(taken.values()) == 1
    assert submitted_jobs.waiting(engine) == []
