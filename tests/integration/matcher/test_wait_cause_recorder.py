"""What kept jobs from pilots is counted by place, stored for each minute, and told of the jobs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from agents import wait_times
from matcher import wait_cause_recorder
from matcher.claim.matcher import Matcher, build_answer
from matcher.claim.snapshot import Snapshot
from matcher.limits import place_policy
from matcher.request.match_request import MatchRequest, MatchResult
from matcher.wait_cause_recorder import WaitCauseRecorder
from requirements.states import JobStatus
from taskqueue import retention
from taskqueue.accounting import wait_times as jobs_wait_times
from taskqueue.db import database
from taskqueue.jobs import jobs, log
from taskqueue.jobs.log import LogEntry
from taskqueue.sites import closures
from taskqueue.sites.closures import Downtime, Severity
from taskqueue.task_queues import wait_causes
from taskqueue.task_queues.wait_causes import TURN_CAUSE, WaitCause
from tests.support import databases
from tests.support.factories import queued_jobs, stored_rows
from tests.support.factories.queued_jobs import LONG, SHORT

LIMITS = "Operations: {Defaults: {JobScheduling: {RunningLimit: {A.B.ch: {JobType: {Merge: 0}}}}}}"


@dataclass(frozen=True)
class Process:
    """A process that answers pilots."""

    matcher: Matcher
    causes: WaitCauseRecorder

    def answer(self, request: MatchRequest) -> MatchResult:
        result = queued_jobs.serve(self.matcher, request)
        answer = build_answer(request, result)
        self.causes.count(request, answer)
        return answer


class Hand:
    """Pilots that ask, and a clock."""

    def __init__(self, engine: Engine, now: datetime, options: str = "") -> None:
        self.engine, self.now = engine, now
        self.config = queued_jobs.grid(queued_jobs.GRID + options)
        self.process = self.another()

    def another(self) -> Process:
        matcher = Matcher(self.engine, lambda: self.config, lambda: self.now, Random(1))
        return Process(matcher, WaitCauseRecorder(self.engine, matcher))

    def store(self) -> None:
        self.process.causes.store()

    def put(self, owner: str = "alice", *, job_type: str = "User") -> int:
        with database.writing(self.engine) as conn:
            [job_id] = queued_jobs.put(conn, self.now, owner=owner, job_type=job_type)
            to_status, minor = JobStatus.WAITING, "Pilot Agent Submission"
            stored_at = LogEntry(
                job_id=job_id,
                at=self.now,
                from_status=JobStatus.RECEIVED,
                to_status=to_status,
                minor_status=minor,
                source="test",
            )
            log.append(conn, [stored_at])
        return job_id

    def asks(self, seconds: float, *, process: Process | None = None) -> None:
        """A pilot asks every twenty seconds of so many."""
        end = self.now + timedelta(seconds=seconds)
        while self.now < end:
            self.ask(process=process)
            self.now += timedelta(seconds=20)

    def ask(self, *, process: Process | None = None, **stated: object) -> MatchResult:
        return (process or self.process).answer(queued_jobs.request(**queued_jobs.at(LONG), **stated))

    def waited(self, job_id: int) -> dict[str, float]:
        with database.reading(self.engine) as conn:
            found = jobs_wait_times.sum_until_now(
                conn, jobs.get_job(conn, job_id), log.read_log(conn, job_id), now=self.now
            )
        return {cause: seconds for cause, seconds in found.items() if seconds}

    def written(self, job_id: int) -> list[WaitCause]:
        with database.reading(self.engine) as conn:
            task_queue = queued_jobs.task_queue_of(conn, job_id)
            found = wait_causes.read_causes(conn, [task_queue], since=self.now - timedelta(days=1))
        return sorted(found.get(task_queue, ()), key=lambda each: each.since)


def test_a_job_that_a_limit_kept_out_waited_for_the_limit(engine: Engine, now: datetime) -> None:
    hand = Hand(engine, now, LIMITS)
    job_id = hand.put(job_type="Merge")
    hand.asks(60)
    hand.store()
    hand.asks(60)
    hand.store()
    assert hand.waited(job_id) == {"limits": 120}
    assert len(hand.written(job_id)) == 1  # the second time of writing prolonged the first
    hand.now += timedelta(seconds=100)
    assert hand.waited(job_id) == {"limits": 120, "a pilot": 100}
    stored_rows.kill(engine, hand.now, job_id)
    memory = wait_times.WaitTimesState()
    wait_times.cycle(engine, now=hand.now, holder="test", memory=memory)
    with database.reading(engine) as conn:
        assert jobs_wait_times.read_waits(conn, job_id) == {}  # a matcher may still have to write what it saw
    wait_times.cycle(engine, now=hand.now + timedelta(minutes=2), holder="test", memory=memory)
    with database.reading(engine) as conn:
        assert jobs_wait_times.read_waits(conn, job_id) == {"limits": 120, "a pilot": 100, "optimizers": 0}


def test_a_process_that_ends_leaves_out_what_it_has_no_time_to_store(engine: Engine, now: datetime) -> None:
    hand = Hand(engine, now, LIMITS)
    job_id = hand.put(job_type="Merge")
    hand.asks(60)
    hand.process.causes.end(within=600)
    hand.store()
    assert hand.waited(job_id) == {"limits": 60}
    hand.asks(60)
    hand.process.causes.end(within=0)
    hand.store()
    assert hand.waited(job_id) == {"limits": 60, "a pilot": 60}


def test_a_ban_is_told_as_one(engine: Engine, now: datetime) -> None:
    hand = Hand(engine, now)
    job_id = hand.put()
    stored_rows.ban(engine, now)
    hand.asks(60)
    hand.store()
    assert hand.waited(job_id) == {"banned": 60}


def test_a_ban_is_told_as_one_before_the_next_downtime(engine: Engine, now: datetime) -> None:
    hand = Hand(engine, now)
    job_id = hand.put()
    stored_rows.ban(engine, now)
    with database.writing(engine) as conn:
        begins, ends = now + timedelta(minutes=5), now + timedelta(minutes=9)
        plan = Downtime(
            place="A.B.ch",
            begins=begins,
            ends=ends,
            severity=Severity.OUTAGE,
            reason="r",
            author="a",
            at=now,
        )
        closures.plan_downtime(conn, plan)
    hand.asks(60)
    hand.store()
    assert hand.waited(job_id) == {"banned": 60}


def test_a_job_that_waits_while_others_are_handed_out_waits_for_its_turn(
    engine: Engine, now: datetime
) -> None:
    hand = Hand(engine, now, LIMITS)
    kept_out = hand.put("bob", job_type="Merge")
    ids = [hand.put() for _ in range(4)]
    hand.asks(60)
    hand.store()
    assert hand.waited(ids[-1]) == {TURN_CAUSE: 60}
    assert hand.waited(kept_out) == {"limits": 60}


def test_no_request_writes_what_kept_its_jobs_away(engine: Engine, now: datetime) -> None:
    hand = Hand(engine, now, LIMITS)
    job_id = hand.put(job_type="Merge")
    hand.process.matcher.refresh()
    statements = databases.record_statements(engine)
    for _ in range(5):
        assert hand.ask().reason == place_policy.LIMITS
        hand.now += timedelta(seconds=10)
    assert not {"INSERT", "UPDATE", "DELETE"} & {each.split()[0] for each in statements}
    assert hand.written(job_id) == []
    hand.store()
    assert [(each.cause, each.since, each.until) for each in hand.written(job_id)] == [
        ("limits", now, hand.now)
    ]
    statements.clear()
    hand.store()
    assert statements == []


@pytest.mark.parametrize("stated", [{"CPUTime": 1}, {"JobID": 1}], ids=["nothing-fits", "one-job-wanted"])
def test_an_answer_that_says_nothing_of_waiting_jobs_is_not_counted(
    engine: Engine, now: datetime, stated: dict[str, object]
) -> None:
    hand = Hand(engine, now)
    job_id = hand.put()
    stored_rows.ban(engine, now)
    hand.ask(**stated)
    hand.now += timedelta(seconds=60)
    hand.store()
    assert hand.written(job_id) == []


def test_a_pilot_of_one_owner_does_not_stand_for_the_jobs_of_others(engine: Engine, now: datetime) -> None:
    hand = Hand(engine, now)
    ids = {owner: hand.put(owner) for owner in ("alice", "bob")}
    stored_rows.ban(engine, now)
    hand.ask(Owner="alice")
    hand.now += timedelta(seconds=60)
    hand.store()
    assert [bool(hand.written(ids[owner])) for owner in ids] == [True, False]
    hand.ask(Owner="alice")
    hand.ask(VO="lhcb")
    hand.now += timedelta(seconds=60)
    hand.store()
    assert [len(hand.written(ids[owner])) for owner in ids] == [1, 1]


def test_a_clock_that_is_set_back_leaves_one_minute(engine: Engine, now: datetime) -> None:
    hand = Hand(engine, now, LIMITS)
    job_id = hand.put(job_type="Merge")
    hand.ask()
    hand.now -= timedelta(days=1)
    hand.store()
    [found] = hand.written(job_id)
    assert (found.since, found.until) == (hand.now - timedelta(seconds=60), hand.now)


def _away(*_: object, **__: object) -> None:
    raise OperationalError("", {}, Exception("away"))


@pytest.mark.parametrize(
    ("module", "function"), [(wait_causes, "record_causes"), (wait_cause_recorder, "find_causes")]
)
def test_what_could_not_be_written_is_written_the_next_time(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch, module: object, function: str
) -> None:
    hand = Hand(engine, now, LIMITS)
    job_id = hand.put(job_type="Merge")
    hand.asks(60)
    with monkeypatch.context() as broken:
        broken.setattr(module, function, _away)
        with pytest.raises(OperationalError):
            hand.store()
    assert hand.written(job_id) == []
    hand.store()
    assert hand.waited(job_id) == {"limits": 60}


def test_an_outage_of_the_database_is_no_time_in_which_a_limit_kept_jobs_out(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = Hand(engine, now, LIMITS)
    job_id = hand.put(job_type="Merge")
    hand.asks(60)
    with monkeypatch.context() as broken:
        broken.setattr(wait_causes, "record_causes", _away)
        for _ in range(10):
            with pytest.raises(OperationalError):
                hand.store()
            hand.now += timedelta(seconds=60)
    hand.asks(60)
    hand.store()
    assert [each.until - each.since for each in hand.written(job_id)] == [
        timedelta(seconds=60),  # before the outage
        timedelta(seconds=120),  # with the minute in which it ended
    ]


def test_a_request_that_we_cannot_work_on_keeps_no_later_one_from_being_stored(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of ours is repeated with the same request: put back, it would stop the process's records."""
    hand = Hand(engine, now, LIMITS)
    job_id = hand.put(job_type="Merge")
    hand.process.answer(queued_jobs.request(**queued_jobs.at(SHORT)))
    find_causes = wait_cause_recorder.find_causes

    def find(view: Snapshot, answered: Iterable[tuple[str, MatchRequest]]) -> Mapping[str, set[int]]:
        requests = list(answered)
        if any(request.presented.queue == SHORT.queue for _, request in requests):
            raise KeyError("a fault of ours")
        return find_causes(view, requests)

    monkeypatch.setattr(wait_cause_recorder, "find_causes", find)
    with pytest.raises(KeyError):
        hand.store()
    hand.asks(60)
    hand.store()
    assert hand.waited(job_id) == {"limits": 60}


def test_what_several_matchers_saw_counts_once(engine: Engine, now: datetime) -> None:
    hand = Hand(engine, now, LIMITS)
    job_id = hand.put(job_type="Merge")
    other = hand.another()
    for _ in range(2):
        hand.asks(20)
        hand.asks(40, process=other)
        hand.store()
        other.causes.store()
    assert hand.waited(job_id) == {"limits": 120}
    with database.writing(engine) as conn:
        seen = hand.written(job_id)
        wait_causes.record_causes(conn, seen)
    assert len(hand.written(job_id)) == len(seen) == 1
    assert hand.waited(job_id) == {"limits": 120}


def test_what_kept_jobs_from_pilots_goes_when_it_is_old(engine: Engine, now: datetime) -> None:
    hand = Hand(engine, now, LIMITS)
    job_id = hand.put(job_type="Merge")
    hand.asks(60)
    hand.store()
    with database.writing(engine) as conn:
        assert retention.remove_old(conn, "wait_causes", before=hand.now, limit=10) == 0
        assert retention.remove_old(conn, "wait_causes", before=hand.now + timedelta(days=1), limit=10) == 1
    assert hand.waited(job_id) == {"a pilot": 60}
