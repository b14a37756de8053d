"""No interleaving lets more jobs of a kind in than limits and delays say, with those held as the truth."""

import contextlib
import itertools
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

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

from matcher.claim import claim_loop
from matcher.claim.matcher import Matcher
from requirements.requirement_class import RequirementClass
from taskqueue.db import database
from taskqueue.errors import IllegalTransition, StaleLease
from taskqueue.jobs import control
from taskqueue.leases import expiry
from taskqueue.leases.reports import PayloadResult
from taskqueue.schema.tables import matching_delays
from tests.support import scope_counters
from tests.support.factories import pilot_reports, queued_jobs, submitted_jobs

AT_SITE, AT_CE, OF_VO, BURST = 4, 2, 3, 2
CORES = 7  # of the jobs that AT_SITE bounds
IN_GRID, CURB, ABOVE = 3, 2, 4  # jobs at all sites together, and those of a limit with a ramp
SECONDS = 1000.0
TREE = """
Resources:
  Sites:
    {site}:
      CEs:
        one: {{RunningLimit: {{JobType: {{MC: 2}}}}, Queues: {{q: {{}}}}}}
        two: {{Queues: {{q: {{}}}}}}
    Far{site}:
      CEs: {{far: {{Queues: {{q: {{}}}}}}}}
Operations:
  Defaults:
    JobScheduling:
      RunningLimit:
        {site}: {{JobType: {{MC: {{count: 4, cores: 7}}}}}}
        AllSites: {{JobGroup: {{{grid}: 3, {ramp}: {{Curb: 2, Max: 4, Interval: 1000}}}}}}
      MatchingDelay: {{{site}: {{JobType: {{Slow: 1000}}, Burst: {{JobType: {{Slow: 2}}}}}}}}
  lhcb: {{JobScheduling: {{RunningLimit: {{{site}: {{JobGroup: {{g: 3}}}}}}}}}}
Registry: {{VO: {{lhcb: {{}}}}}}
"""
LEASE = timedelta(minutes=5)
KINDS = (("MC", "g"), ("MC", ""), ("Slow", ""), ("User", "g"), ("mc", "G"))
SIZES = {("MC", ""): (3, 3), ("mc", "G"): (1, 4)}  # the cores that jobs need, and can use
SITES = {"one": "", "two": "", "far": "Far"}  # prefixes, by CE
_numbers = itertools.count()


class Crash(Exception):
    """The process dies before its transaction ends."""


class Limited(RuleBasedStateMachine):
    """Two matchers, three CEs of two sites; jobs come, run, end, are lost, killed and taken back."""

    engine: Engine
    now: datetime

    @initialize()
    def begin(self) -> None:
        number = next(_numbers)
        self.site, self.grid, self.ramp = f"L{number}.x", f"w{number}", f"r{number}"
        self.config = queued_jobs.grid(TREE.format(site=self.site, grid=self.grid, ramp=self.ramp))
        both = frozenset({self.site, f"Far{self.site}"})
        self.asked = RequirementClass(vo="lhcb", cpu_time=3600, sites=both)
        self.held: dict[str, tuple[int, str]] = {}  # lease → job, CE: in the hands of a pilot
        self.kinds: dict[int, tuple[str, str]] = {}
        self.cores: dict[str, int] = {}  # by lease
        self.passed, self.slow = 0.0, 0  # seconds for the tokens, matches that took one
        self.ramped = 0  # matches from the curb on
        for _ in range(3):
            self.submit()
        self.restart()

    @rule()
    def restart(self) -> None:
        self.matchers = [
            Matcher(self.engine, lambda: self.config, lambda: self.now, Random(seed)) for seed in range(2)
        ]

    @rule()
    def submit(self) -> None:
        with database.writing(self.engine) as conn:
            for job_type, group in (*KINDS, ("Any", self.grid), ("Any", self.ramp)):
                least, most = SIZES.get((job_type, group), (1, 1))
                asked = replace(self.asked, processors_min=least, processors_max=most)
                [job_id] = queued_jobs.put(conn, self.now, 1, asked=asked, job_type=job_type, job_group=group)
                self.kinds[job_id] = (job_type.lower(), group.lower())

    @rule(which=st.integers(0, 1), ce=st.sampled_from(list(SITES)), count=st.integers(1, 6))
    def match(self, which: int, ce: str, count: int) -> None:
        before = max(CURB, self._count_group(self.ramp))
        look = queued_jobs.serve(self.matchers[which], self._request(ce, count))
        for job in look.claimed:
            self.held[job.lease] = (job.job_id, ce)
            self.cores[job.lease] = job.allotment.processors or 1
            self.slow += self.kinds[job.job_id][0] == "slow" and not SITES[ce]
        self.ramped += max(0, self._count_group(self.ramp) - before)
        assert look.refused == "limits" or look.claimed or look.emptied or not self._free(ce)

    @rule(count=st.integers(1, 3))
    def match_and_crash(self, count: int) -> None:
        def dies(*said: Any, **more: Any) -> None:
            claim_all(*said, **more)
            raise Crash

        claim_all, claim_loop.claim_all = claim_loop.claim_all, dies  # type: ignore[assignment]
        try:
            with contextlib.suppress(Crash):
                self.matchers[0].serve([self._request("one", count)])
        finally:
            claim_loop.claim_all = claim_all

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def start(self, data: Any) -> None:
        with contextlib.suppress(StaleLease), database.writing(self.engine) as conn:
            pilot_reports.start(conn, self._one(data), lease_time=LEASE, now=self.now)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), give_back=st.booleans())
    def end(self, data: Any, give_back: bool) -> None:
        lease = self._one(data)
        with contextlib.suppress(StaleLease, IllegalTransition), database.writing(self.engine) as conn:
            if give_back:
                pilot_reports.release(conn, lease, reason="", max_rescheduling=9, now=self.now)
            else:
                pilot_reports.finish(conn, lease, PayloadResult(status="Done"), now=self.now)
            del self.held[lease]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def kill(self, data: Any) -> None:
        """It counts until its pilot has ended it."""
        job_id, _ = self.held[self._one(data)]
        with database.writing(self.engine) as conn:
            control.kill_jobs(conn, [job_id], source="test", now=self.now)

    @rule()
    def leases_end(self) -> None:
        self.now += 2 * LEASE
        if self.engine.dialect.name == "sqlite":  # PostgreSQL has its own clock
            self.passed += (2 * LEASE).total_seconds()
        with database.writing(self.engine) as conn:
            silent = {"silent_since": {"lhcb": self.now}, "now": self.now}
            gone = {*expiry.expire_leases(conn, **silent), *expiry.close_killed(conn, **silent)}
        self.held = {lease: held for lease, held in self.held.items() if held[0] not in gone}

    @rule(seconds=st.sampled_from([100.0, 1000.0, 5000.0]))
    def tokens_come(self, seconds: float) -> None:
        self.passed += seconds
        with database.writing(self.engine) as conn:
            for row in conn.execute(select(matching_delays)).all():
                its = [column == row._mapping[column.name] for column in matching_delays.primary_key]
                earlier = row.at - timedelta(seconds=seconds)
                conn.execute(update(matching_delays).where(*its).values(at=earlier))

    @invariant()
    def never_too_many(self) -> None:
        if not hasattr(self, "held"):
            return
        assert self._number("mc") <= AT_SITE
        assert self._number("mc", "one") <= AT_CE
        of_mc = (
            lease
            for lease, (job_id, at) in self.held.items()
            if self.kinds[job_id][0] == "mc" and not SITES[at]
        )
        assert sum(self.cores[lease] for lease in of_mc) <= CORES
        assert scope_counters.agree(self.engine)
        at_site = [self.kinds[job_id][1] for job_id, ce in self.held.values() if not SITES[ce]]
        assert at_site.count("g") <= OF_VO
        assert self.slow <= BURST + (self.passed + 60) / SECONDS
        assert self._count_group(self.grid) <= IN_GRID
        assert self._count_group(self.ramp) <= ABOVE
        assert self.ramped <= 1 + (self.passed + 60) / SECONDS

    def _count_group(self, group: str) -> int:
        return sum(self.kinds[job_id][1] == group for job_id, _ in self.held.values())

    def _number(self, kind: str, ce: str | None = None) -> int:
        return sum(
            self.kinds[job_id][0] == kind and ce in (None, at) and not SITES[at]
            for job_id, at in self.held.values()
        )

    def _free(self, ce: str) -> bool:
        """Whether a job waits that nothing keeps out of a CE."""
        left = [self.kinds[job_id] for job_id in submitted_jobs.waiting(self.engine) if job_id in self.kinds]
        full = {self.grid: IN_GRID, self.ramp: CURB}
        groups = {group for group, most in full.items() if self._count_group(group) >= most}
        if SITES[ce]:
            return any(group not in groups for _, group in left)
        at_site = [self.kinds[job_id][1] for job_id, at in self.held.values() if not SITES[at]]
        if at_site.count("g") >= OF_VO:
            groups.add("g")
        full_mc = self._number("mc") >= AT_SITE or (ce == "one" and self._number("mc", "one") >= AT_CE)
        return any(
            kind != "slow" and not (kind == "mc" and full_mc) and group not in groups for kind, group in left
        )

    def _request(self, ce: str, count: int) -> Any:
        said: dict[str, Any] = {
            "Site": f"{SITES[ce]}{self.site}",
            "GridCE": ce,
            "Queue": "q",
            "NumberOfProcessors": 6,
        }
        return queued_jobs.request(count=count, **said)

    def _one(self, data: Any) -> str:
        chosen: str = data.draw(st.sampled_from(list(self.held)))
        return chosen


def test_limits_and_delays_are_never_exceeded_and_never_hold_back_others(
    engine: Engine, now: datetime
) -> None:
    machine = type("Machine", (Limited,), {"engine": engine, "now": now})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=10 if engine.dialect.name == "sqlite" else 5,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],  # to shrink a failure takes minutes: remove this to see the shortest
        ),
    )
