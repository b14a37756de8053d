"""An asynchronous replica is promoted under load: what it had not received is lost, nothing is doubled."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine, select

from examples.servers.postgres import Postgres
from matcher.claim.claim_thread import ClaimWorker
from matcher.request.match_request import MatchCaller
from requirements.errors import PilotageError
from requirements.states import JobStatus
from taskqueue.db import database, incarnation
from taskqueue.errors import LeaseNotFound
from taskqueue.leases import expiry
from taskqueue.leases.opening import ClaimedJob
from taskqueue.leases.reports import PayloadResult
from taskqueue.schema.tables import attempts, jobs
from tests.support.factories import pilot_reports, queued_jobs, submitted_jobs
from tests.support.factories.queued_jobs import request
from tests.support.wait import until

LEASE = timedelta(minutes=5)
DONE = PayloadResult(status="Done", exit_code=0)
_PILOTS = 6


@pytest.fixture
def engine(primary: Postgres, replica: Postgres) -> Iterator[Engine]:
    """As operators write it: whichever of the two takes writes."""
    hosts = f"{primary.directory},{replica.directory}"
    url = f"postgresql://postgres@/pilotage?host={hosts}&target_session_attrs=read-write"
    engine = database.connect(url)
    yield engine
    engine.dispose()


class _Load:
    """Pilots that ask for jobs again and again, while they are let."""

    def __init__(self, claimer: ClaimWorker) -> None:
        self._claimer = claimer
        self._open = threading.Event()
        self._ended = threading.Event()
        self._asking: Counter[int] = Counter()
        self.given: list[ClaimedJob] = []
        self._threads = [threading.Thread(target=self._live, args=(number,)) for number in range(_PILOTS)]

    def start(self) -> None:
        """Start them in a pause."""
        for thread in self._threads:
            thread.start()

    def pause(self) -> None:
        """Let nobody ask, and wait for those who have."""
        self._open.clear()
        until(lambda: not any(self._asking.values()))

    def go_on(self) -> None:
        self._open.set()

    def go_on_until_more(self, count: int) -> None:
        """Let them ask after a pause, and wait until they have got so many more."""
        wanted = len(self.given) + count
        self.go_on()
        until(lambda: len(self.given) >= wanted)

    def end(self) -> None:
        self._ended.set()
        self._open.set()
        for thread in self._threads:
            thread.join()

    def _live(self, number: int) -> None:
        caller = MatchCaller(subject=f"pilot {number}", vos=frozenset({"lhcb"}))
        while self._open.wait() and not self._ended.is_set():
            self._asking[number] = 1
            if self._open.is_set():
                self._ask(caller)
            self._asking[number] = 0

    def _ask(self, caller: MatchCaller) -> None:
        try:
            answer = self._claimer.submit(request(caller=caller)).future.result(600)
        except (PilotageError, *database.UNAVAILABLE):
            return  # as a pilot that got a 503
        self.given.extend(answer.matches)


@pytest.fixture
def load(engine: Engine, now: datetime) -> Iterator[_Load]:
    claimer = ClaimWorker(engine, queued_jobs.matcher(engine, now))
    claimer.start()
    load = _Load(claimer)
    yield load
    load.end()
    claimer.stop()


def _known(engine: Engine) -> tuple[set[int], set[str]]:
    """The jobs and the leases that the database knows."""
    with database.reading(engine) as conn:
        found = conn.execute(select(jobs.c.job_id)).scalars().all()
        leases = conn.execute(select(attempts.c.lease)).scalars().all()
    return set(found), set(leases)


def _finish(engine: Engine, given: Sequence[ClaimedJob], now: datetime) -> list[ClaimedJob]:
    """The pilots end their jobs, without a word before; those that are told that nobody knows them."""
    refused: list[ClaimedJob] = []
    for each in given:
        with database.writing(engine) as conn:
            try:
                pilot_reports.heartbeat(conn, each.lease, lease_time=LEASE, now=now)
                pilot_reports.start(conn, each.lease, lease_time=LEASE, now=now)
                pilot_reports.finish(conn, each.lease, DONE, now=now)
            except LeaseNotFound:
                refused.append(each)
    return refused


def test_only_what_was_not_received_is_lost_and_nothing_is_doubled(
    engine: Engine, primary: Postgres, replica: Postgres, load: _Load, now: datetime
) -> None:
    received = queued_jobs.put(engine, now, 150)
    load.start()
    load.go_on_until_more(20)
    load.pause()  # or they take all that is left, where this takes long
    replica.catch_up(primary)
    replica.fall_behind()
    not_received = queued_jobs.put(engine, now, 20)
    load.go_on_until_more(20)
    primary.kill()  # whoever asks at this moment gets no answer
    load.pause()
    replica.promote()

    with database.writing(engine) as conn:
        done = incarnation.recover(conn, now=now + timedelta(minutes=1))
    known_jobs, known_leases = _known(engine)
    before = list(load.given)
    unknown = [each for each in before if each.lease not in known_leases]
    assert unknown, "the test is about claims that are lost"
    assert len(unknown) < len(before), "and about those that are not"
    assert known_jobs == set(received), "jobs that were received are there, the others are not"
    assert done.quarantined == len(known_leases)

    # The same matcher lives on.
    load.go_on()
    until(lambda: not submitted_jobs.waiting(engine))
    load.pause()
    [new] = queued_jobs.put(engine, now, 1)
    load.go_on()
    until(lambda: load.given[-1].job_id == new)
    assert new > max(not_received)

    handed_out = Counter((each.job_id, each.epoch) for each in load.given)
    assert handed_out.most_common(1)[0][1] == 1, "no attempt has the number of another"
    again = Counter(each.job_id for each in load.given)
    lost_jobs = {each.job_id for each in unknown}
    assert {job_id for job_id, times in again.items() if times > 1} == lost_jobs & known_jobs

    refused = _finish(engine, load.given, now + timedelta(minutes=2))
    assert {each.lease for each in refused} == {each.lease for each in unknown}
    _nobody_is_orphaned(engine, load, now)


def _nobody_is_orphaned(engine: Engine, load: _Load, now: datetime) -> None:
    """What was claimed without an answer comes back when its time is over; all else is done."""
    with database.writing(engine) as conn:
        answered = {each.lease for each in load.given}
        open_ones = conn.execute(select(attempts.c.lease).where(attempts.c.closed_at.is_(None))).scalars()
        assert answered.isdisjoint(open_ones)
        later = now + timedelta(days=1)
        unanswered = expiry.expire_leases(conn, silent_since={"lhcb": later}, now=later)
        statuses = conn.execute(select(jobs.c.job_id, jobs.c.status)).all()
    assert {row.job_id for row in statuses if row.status != JobStatus.DONE} == set(unanswered)
