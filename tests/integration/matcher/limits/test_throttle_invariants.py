"""No interleaving lets more jobs in than the throttle says, with a simulated gateway as the truth."""

import contextlib
import itertools
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Engine, select, update

from cs_config.tree.throttle import Policy
from matcher.claim import claim_loop
from matcher.claim.claim_request import ClaimResult
from matcher.claim.matcher import Matcher
from matcher.limits import compiled_rules, throttle_standings
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.errors import IllegalTransition, StaleLease
from taskqueue.jobs import control
from taskqueue.leases import expiry
from taskqueue.leases.reports import Note, NoteReport, PayloadResult
from taskqueue.schema.tables import attempts
from taskqueue.sites import occupancy, reservations, rule_counters, scope_rules, scopes
from tests.support import databases
from tests.support.factories import pilot_reports, queued_jobs, stored_rows
from tests.support.fakes.site_counter import GATHERING, POLLING, SUBMITTING, Gateway

SUBMITTING_AT_MOST, BUSY_AT_MOST, JOBS_AT_MOST = 2, 3, 4
TREE = """
Resources:
  Sites:
    {site}:
      Throttle:
        Policy: {policy}
        MaxSubmittingJobs: 2
        MaxSubmittingAndOutputGatheringJobs: 3
        MaxJobs: 4
        Lifetime: 300000000
      CEs: {{ce: {{Queues: {{q: {{}}}}}}}}
Registry: {{VO: {{lhcb: {{}}}}}}
"""
LEASE = timedelta(minutes=5)
_numbers = itertools.count()


class Crash(Exception):
    """The process dies before its transaction ends."""


class Throttled(RuleBasedStateMachine):
    """Matchers, a gateway, and messages between them that are late, repeated, reordered or lost."""

    engine: Engine
    now: datetime

    @initialize(policy=st.sampled_from([Policy.LEVEL0, Policy.LEVEL1, Policy.LEVEL2, Policy.BROKERING]))
    def begin(self, policy: Policy) -> None:
        self.policy = policy
        self.site = f"S{next(_numbers)}.x"
        self.config = queued_jobs.grid(TREE.format(site=self.site, policy=policy))
        self.gateway = Gateway()
        self.on_their_way: dict[str, int] = {}  # lease → job, matched and not there yet
        self.jobs: dict[str, int] = {}  # lease → job, of those that are there
        self.started: set[str] = set()  # leases
        self.until: dict[str, datetime] = {}  # lease → when its pilot gives up unless it has begun
        self.watermarks: list[int] = []
        self.sent: list[reservations.Advertisement] = []
        queued_jobs.put(self.engine, self.now, 12)
        self.restart()
        assert self._advertise(self.gateway.count(None))

    @rule()
    def restart(self) -> None:
        self.matchers = [
            Matcher(self.engine, lambda: self.config, lambda: self.now, Random(seed)) for seed in range(2)
        ]

    @rule(which=st.integers(0, 1), count=st.integers(1, 3))
    def match(self, which: int, count: int) -> None:
        for job in self._ask(which, count).claimed:
            self.on_their_way[job.lease] = job.job_id
            self.until[job.lease] = job.lease_expires_at

    @rule(count=st.integers(1, 2))
    def match_and_lose_the_answer(self, count: int) -> None:
        self._ask(0, count)

    @rule(count=st.integers(1, 3))
    def match_and_crash(self, count: int) -> None:
        def dies(*said: Any, **more: Any) -> None:
            claim_all(*said, **more)
            raise Crash

        claim_all, claim_loop.claim_all = claim_loop.claim_all, dies  # type: ignore[assignment]
        try:
            with contextlib.suppress(Crash):
                self.matchers[0].serve([self._request(count)])
        finally:
            claim_loop.claim_all = claim_all

    @precondition(lambda self: self.on_their_way)
    @rule(data=st.data())
    def arrive(self, data: Any) -> None:
        lease = self._one(data, self.on_their_way)
        self.jobs[lease] = self.on_their_way.pop(lease)
        self.gateway.phases[lease] = SUBMITTING

    @precondition(lambda self: self.gateway.phases)
    @rule(data=st.data())
    def start(self, data: Any) -> None:
        self._start(self._one(data, self.gateway.phases))

    @precondition(lambda self: self.gateway.phases)
    @rule(data=st.data(), phase=st.sampled_from([POLLING, GATHERING]))
    def go_on(self, data: Any, phase: str) -> None:
        lease = self._one(data, self.gateway.phases)
        if self.gateway.phases[lease] != GATHERING:
            self.gateway.phases[lease] = phase

    @rule()
    def all_arrive(self) -> None:
        for lease in list(self.on_their_way):
            self.jobs[lease] = self.on_their_way.pop(lease)
            self.gateway.phases[lease] = SUBMITTING

    @precondition(lambda self: self.gateway.phases)
    @rule(data=st.data(), reported=st.booleans())
    def leave(self, data: Any, reported: bool) -> None:
        lease = self._one(data, self.gateway.phases)
        del self.gateway.phases[lease]
        if reported:
            self._report(lease)

    @precondition(lambda self: self.gateway.phases)
    @rule(data=st.data())
    def heartbeat(self, data: Any) -> None:
        self._hear(self._one(data, self.gateway.phases))

    @precondition(lambda self: self.on_their_way or self.gateway.phases)
    @rule(data=st.data(), kill=st.booleans())
    def take_away(self, data: Any, kill: bool) -> None:
        lease = self._one(data, {**self.on_their_way, **self.gateway.phases})
        job_id = self.on_their_way.get(lease) or self.jobs[lease]
        with database.writing(self.engine) as conn:
            if kill:
                control.kill_jobs(conn, [job_id], source="test", now=self.now)
            else:
                control.reschedule_jobs(conn, [job_id], source="test", now=self.now, maximum=1000)

    @rule(passed=st.sampled_from([LEASE / 5, LEASE / 2, 2 * LEASE]))
    def time_passes(self, passed: timedelta) -> None:
        """Who has not begun by the end of its lease gives up by itself."""
        self.now += passed
        for lease, until in self.until.items():
            if until < self.now and lease not in self.started:
                self.gateway.phases.pop(lease, None)
                self.on_their_way.pop(lease, None)
        with database.writing(self.engine) as conn:
            silent = {"silent_since": {"lhcb": self.now}, "now": self.now}
            expiry.expire_leases(conn, **silent)
            expiry.close_killed(conn, **silent)

    @precondition(lambda self: self.on_their_way or self.gateway.phases)
    @rule(data=st.data(), lease_time=st.sampled_from([LEASE, LEASE / 50]))
    def note(self, data: Any, lease_time: timedelta) -> None:
        """A pilot notes what it prepares; the lease time of its VO may have changed."""
        lease = self._one(data, {**self.on_their_way, **self.gateway.phases})
        report = NoteReport(lease=lease, sender=pilot_reports.ANYBODY, note=Note(minor_status="Preparing"))
        with contextlib.suppress(StaleLease, IllegalTransition), database.writing(self.engine) as conn:
            pilot_reports.record(conn, report, self.now, pilot_reports.rules(lease_time))

    @precondition(lambda self: self.on_their_way or self.gateway.phases)
    @rule(data=st.data(), is_undelivered=st.booleans())
    def give_back(self, data: Any, is_undelivered: bool) -> None:
        """A pilot ends what it has begun, and gives the job back."""
        lease = self._one(data, {**self.on_their_way, **self.gateway.phases})
        self.on_their_way.pop(lease, None)
        self.gateway.phases.pop(lease, None)
        undelivered = {"is_undelivered": is_undelivered, "max_rescheduling": 1000}
        with contextlib.suppress(StaleLease, IllegalTransition), database.writing(self.engine) as conn:
            pilot_reports.release(conn, lease, reason="test", now=self.now, **undelivered)

    @rule()
    def lose(self) -> None:
        """Running jobs are given up, as their pilots are silent; a heartbeat may resume them."""
        with database.writing(self.engine) as conn:
            later = self.now + LEASE / 100
            expiry.mark_stalled(conn, silent_since={"lhcb": later}, now=later)
            self.now = later + LEASE / 100
            pilot_reports.give_up(conn, "lhcb", now=self.now, max_rescheduling=1000)

    @rule()
    def fetch_watermark(self) -> None:
        self.watermarks.append(self._watermark())

    @precondition(lambda self: self.watermarks)
    @rule(data=st.data(), with_list=st.booleans())
    def count(self, data: Any, with_list: bool) -> None:
        as_of = data.draw(st.sampled_from(self.watermarks))
        self.sent.append(self.gateway.count(as_of, with_list=with_list))

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), again=st.booleans())
    def advertise(self, data: Any, again: bool) -> None:
        place = data.draw(st.integers(0, len(self.sent) - 1))
        self._advertise(self.sent[place] if again else self.sent.pop(place))

    @rule()
    def advertise_at_once(self) -> None:
        self._advertise(self.gateway.count(self._watermark()))

    @rule()
    def advertise_without_watermark(self) -> None:
        assert self._advertise(self.gateway.count(None))

    @rule()
    def come_to_rest(self) -> None:
        """All messages arrive, the dead are found: what is free then is given within one advertisement."""
        for lease in list(self.gateway.phases):
            self._start(lease)
        self.time_passes(2 * LEASE)
        assert self._advertise(self.gateway.count(self._watermark()))
        free = {
            Policy.LEVEL0: SUBMITTING_AT_MOST - self.gateway.number(SUBMITTING),
            Policy.LEVEL1: BUSY_AT_MOST - self.gateway.number(SUBMITTING, GATHERING),
            Policy.LEVEL2: min(
                JOBS_AT_MOST - self.gateway.total,
                BUSY_AT_MOST - self.gateway.number(SUBMITTING, GATHERING),
            ),
            Policy.BROKERING: min(
                JOBS_AT_MOST - self.gateway.total, SUBMITTING_AT_MOST - self.gateway.number(SUBMITTING)
            ),
        }
        assert self._room() == max(0, free[self.policy])

    @invariant()
    def never_too_many(self) -> None:
        if not hasattr(self, "policy"):
            return
        if self.policy in (Policy.LEVEL0, Policy.BROKERING):
            assert self.gateway.number(SUBMITTING) <= SUBMITTING_AT_MOST
        if self.policy in (Policy.LEVEL2, Policy.BROKERING):
            assert self.gateway.total <= JOBS_AT_MOST

    def _ask(self, which: int, count: int) -> ClaimResult:
        room = self._room()
        look = queued_jobs.serve(self.matchers[which], self._request(count))
        # Reported and unacknowledged together never reach over the limit.
        assert len(look.claimed) <= room
        assert look.refused == (None if room else "throttled") or not self._waiting()
        queued_jobs.put(self.engine, self.now, len(look.claimed))
        return look

    def _request(self, count: int) -> Any:
        return queued_jobs.request(Site=self.site, GridCE="ce", Queue="q", count=count)

    def _waiting(self) -> bool:
        with database.reading(self.engine) as conn:
            return bool(queued_jobs.left(conn))

    def _room(self) -> int:
        with database.reading(self.engine) as conn:
            found = scopes.read_scopes(conn, [self.site]).values()
            room = (
                throttle_standings.read_standings(conn, self.config, found, self.now)[self.site].room().jobs
            )
        assert room is not None
        return room

    def _start(self, lease: str) -> None:
        try:
            pilot_reports.start(self.engine, lease, lease_time=LEASE, now=self.now)
            self.started.add(lease)
        except StaleLease:
            self.gateway.phases.pop(lease, None)
        except IllegalTransition:
            pass

    def _hear(self, lease: str) -> None:
        try:
            answer = pilot_reports.heartbeat(self.engine, lease, lease_time=LEASE, now=self.now)
        except StaleLease:
            del self.gateway.phases[lease]
        else:
            if answer["commands"]:
                del self.gateway.phases[lease]
                self._report(lease)

    def _report(self, lease: str) -> None:
        with contextlib.suppress(StaleLease, IllegalTransition), database.writing(self.engine) as conn:
            pilot_reports.finish(conn, lease, PayloadResult(status="Done"), now=self.now)

    def _watermark(self) -> int:
        with database.writing(self.engine) as conn:
            return reservations.create_watermark(conn, self.site)

    def _advertise(self, said: reservations.Advertisement) -> bool:
        with database.writing(self.engine) as conn:
            return reservations.accept_advertisement(conn, self.site, said, now=self.now)

    @staticmethod
    def _one(data: Any, leases: dict[str, Any]) -> str:
        # In the order of the matches: leases are random, and Hypothesis repeats what it drew before.
        chosen: str = data.draw(st.sampled_from(list(leases)))
        return chosen


def _derive(engine: Engine, now: datetime) -> type[Throttled]:
    return type("Machine", (Throttled,), {"engine": engine, "now": now})


def test_a_job_that_is_rescheduled_on_its_way_counts_until_its_lease_ends(
    engine: Engine, now: datetime
) -> None:
    machine = _derive(engine, now)()
    machine.begin(policy=Policy.LEVEL0)
    machine.match(which=0, count=2)
    machine.all_arrive()
    first, second = machine.gateway.phases
    stored_rows.reschedule(engine, now, machine.jobs[first], maximum=1)
    assert not machine._ask(0, 1).claimed
    assert machine._advertise(machine.gateway.count(machine._watermark()))
    assert not machine._ask(0, 1).claimed, "the advertisement counts both, as no start had been stored"
    machine._start(first)
    assert list(machine.gateway.phases) == [second], "its pilot learns that it was taken away"
    machine._start(second)
    machine.now += 2 * LEASE
    assert machine._advertise(machine.gateway.count(machine._watermark()))
    assert machine._room() == 1


def _reschedule(machine: Throttled, lease: str) -> None:
    stored_rows.reschedule(machine.engine, machine.now, machine.jobs[lease])


def _kill(machine: Throttled, lease: str) -> None:
    """Its pilot is silent, so the agent closes the attempt."""
    stored_rows.kill(machine.engine, machine.now, machine.jobs[lease])
    machine.time_passes(2 * LEASE)


def _lose(machine: Throttled, lease: str) -> None:
    machine.lose()


TAKEN_AWAY: dict[str, Callable[[Throttled, str], None]] = {
    "rescheduled": _reschedule,
    "killed": _kill,
    "lost": _lose,
}


def _begin(engine: Engine, now: datetime) -> Throttled:
    """A throttle with room for two."""
    machine = _derive(engine, now)()
    machine.begin(policy=Policy.BROKERING)
    return machine


def _start_one(machine: Throttled) -> str:
    """The lease of a job that is matched, arrives and starts."""
    machine.match(which=0, count=1)
    machine.all_arrive()
    [lease] = machine.gateway.phases
    machine._start(lease)
    return lease


def _count_reserved(machine: Throttled) -> int:
    """What the counter has, which must be what the rows are, counted in each way."""
    with database.reading(machine.engine) as conn:
        [rule] = scope_rules.read_rules(conn, [machine.site.lower()])
        shown = reservations.list_reservations(conn, machine.site, 10)
        assert reservations.count_reservations(conn, [machine.site]).get(machine.site, 0) == rule.n
        assert len(shown) == rule.n
        assert not rule_counters.list_differences(conn, compiled_rules.counts)
    return rule.n


@pytest.mark.parametrize("closed_as", list(TAKEN_AWAY))
def test_a_job_that_is_taken_away_after_its_start_counts_until_an_advertisement_counted_since(
    engine: Engine, now: datetime, closed_as: str
) -> None:
    machine = _begin(engine, now)
    lease = _start_one(machine)
    TAKEN_AWAY[closed_as](machine, lease)
    query = select(attempts.c.closed_as).where(attempts.c.lease == lease)
    assert databases.scalar(engine, query) == closed_as
    machine.now += timedelta(days=2)
    assert (_count_reserved(machine), machine._room()) == (1, 1), "it may still run"
    with database.writing(engine) as conn:
        [rule] = scope_rules.read_rules(conn, [machine.site.lower()])
        rule_counters.mend(conn, rule, compiled_rules.counts)
    assert (_count_reserved(machine), machine._room()) == (1, 1), "counted again from the rows"
    machine.gateway.phases[lease] = POLLING
    assert machine._advertise(machine.gateway.count(machine._watermark()))
    assert (_count_reserved(machine), machine._room()) == (0, SUBMITTING_AT_MOST)


@pytest.mark.parametrize("closed_as", list(TAKEN_AWAY))
def test_an_advertisement_counted_before_the_start_of_a_job_that_is_taken_away_does_not_contain_it(
    engine: Engine, now: datetime, closed_as: str
) -> None:
    machine = _begin(engine, now)
    late = machine.gateway.count(machine._watermark())
    lease = _start_one(machine)
    TAKEN_AWAY[closed_as](machine, lease)
    assert machine._advertise(late)
    assert (_count_reserved(machine), machine._room()) == (1, 1)


def test_a_lost_job_that_comes_back_counts_once_until_it_ends(engine: Engine, now: datetime) -> None:
    machine = _begin(engine, now)
    lease = _start_one(machine)
    machine.lose()
    machine._hear(lease)
    query = select(attempts.c.closed_at, attempts.c.lost_at).where(attempts.c.lease == lease)
    with database.reading(engine) as conn:
        resumed = conn.execute(query).one()
    assert (resumed.closed_at, resumed.lost_at) == (None, machine.now)
    assert (_count_reserved(machine), machine._room()) == (1, 1)
    machine._report(lease)
    assert (_count_reserved(machine), machine._room()) == (0, SUBMITTING_AT_MOST)


def test_our_own_states_count_a_job_that_is_rescheduled_on_its_way_until_its_lease_ends(
    engine: Engine, now: datetime
) -> None:
    machine = _derive(engine, now)()
    machine.begin(policy=Policy.LEVEL0)
    derived = TREE.replace("Lifetime: 300000000", "Lifetime: 60\n        Stale: derived")
    machine.config = queued_jobs.grid(derived.format(site=machine.site, policy=Policy.LEVEL0), 2)
    machine.restart()
    machine.now += LEASE
    machine.match(which=0, count=2)
    taken, other = machine.on_their_way
    stored_rows.reschedule(engine, machine.now, machine.on_their_way[taken], maximum=1)
    machine.now += LEASE
    assert not machine._ask(0, 1).claimed
    machine._start(other)
    assert machine._room() == 1
    machine.now += LEASE / 5
    assert machine._room() == SUBMITTING_AT_MOST


def test_a_job_that_was_taken_away_on_its_way_does_not_complete_there(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        job_id = stored_rows.job_in(conn, now, JobStatus.COMPLETING)
        stored_rows.open_attempt(conn, job_id, now)
        conn.execute(update(attempts).values(site="A.B.ch", closed_at=now, closed_as=occupancy.TAKEN_AWAY))
        stored_rows.open_attempt(conn, job_id, now, epoch=2)
        found = occupancy.count_jobs(conn, "A.B.ch", now=now)
    assert found == occupancy.Occupancy(jobs=1, submitting=1, gathering=0)


@pytest.mark.parametrize("name", ["CurMatches", "curmatches"])
def test_an_advertised_number_of_matches_bounds_nothing_once_our_own_states_count(
    engine: Engine, now: datetime, name: str
) -> None:
    machine = _derive(engine, now)()
    machine.begin(policy=Policy.LEVEL0)
    derived = TREE.replace("Lifetime: 300000000", "Lifetime: 60\n        Stale: derived")
    machine.config = queued_jobs.grid(derived.format(site=machine.site, policy=Policy.EXPRESSION), 2)
    machine.restart()
    advertised = {name: 1, "MaxJobs": 3, "Requirements": "CurMatches < MaxJobs"}
    assert machine._advertise(reservations.Advertisement(attributes=advertised))
    assert [len(machine._ask(0, 1).claimed) for _ in range(3)] == [1, 1, 0]
    machine.now += LEASE
    assert [len(machine._ask(0, 1).claimed) for _ in range(3)] == [1, 0, 0]


def test_our_own_states_replace_advertised_numbers_in_any_spelling(engine: Engine, now: datetime) -> None:
    machine = _derive(engine, now)()
    machine.begin(policy=Policy.LEVEL0)
    derived = TREE.replace("Lifetime: 300000000", "Lifetime: 60\n        Stale: derived")
    machine.config = queued_jobs.grid(derived.format(site=machine.site, policy=Policy.EXPRESSION), 2)
    machine.restart()
    advertised = {"currentsubmittingjobs": 9, "Requirements": "currentsubmittingjobs < 2"}
    assert machine._advertise(reservations.Advertisement(attributes=advertised))
    assert not machine._ask(0, 1).claimed
    machine.now += LEASE
    assert [len(machine._ask(0, 1).claimed) for _ in range(3)] == [1, 1, 0]


def test_the_throttle_is_never_exceeded_and_never_closed_without_need(engine: Engine, now: datetime) -> None:
    run_state_machine_as_test(
        _derive(engine, now),
        settings=settings(
            max_examples=40 if engine.dialect.name == "sqlite" else 5,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],  # to shrink a failure takes minutes: remove this to see the shortest
        ),
    )
