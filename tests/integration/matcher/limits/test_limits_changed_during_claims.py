"""Limits that change while a claim is between its first read and its end: it is counted, none is exceeded."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest
from sqlalchemy import Engine

from cs_config.tree.configuration import Configuration
from matcher.claim.claim_loop import StepwiseClaimer
from matcher.claim.claim_request import ClaimResult
from matcher.claim.matcher import Matcher
from matcher.limits.compiled_rules import RuleFollower
from matcher.request.match_request import MatchCaller
from requirements.resource import Allotment, Location
from taskqueue.db import database
from taskqueue.db.compiled_sql import AutocommitRunner
from taskqueue.leases import attempts
from taskqueue.leases.batched_claim import BatchClaim, BatchClaimResult
from taskqueue.leases.opening import LeaseHolder
from tests.support import databases, scope_counters, wait
from tests.support.claimers import claim_together
from tests.support.factories import queued_jobs
from tests.support.factories.queued_jobs import LONG

LIMITS = "Operations: {{Defaults: {{JobScheduling: {{RunningLimit: {{A.B.ch: {limits}}}}}}}}}\n"
NONE, ONE = "{}", "{JobType: {MC: 1}}"
#: Limits before and after, and the jobs of two cores that run beside the held one in the end.
CHANGES = {
    "new": (NONE, ONE, 0),
    "new on cores": (NONE, "{JobType: {MC: {cores: 5}}}", 1),
    "one more": ("{VO: {lhcb: 9}}", "{VO: {lhcb: 9}, JobType: {MC: 1}}", 0),
    "smaller": ("{JobType: {MC: 9}}", ONE, 0),
    "now on cores": ("{JobType: {MC: 9}}", "{JobType: {MC: {count: 9, cores: 5}}}", 1),
    "larger": (ONE, "{JobType: {MC: 3}}", 2),
    "another": (ONE, "{VO: {lhcb: 2}}", 1),
    "removed": (ONE, NONE, 4),
}
KEY = ("pilot", "k")

Claim = Callable[[Engine, datetime, Configuration, int], int]


def _config(limits: str, version: int) -> Configuration:
    return queued_jobs.grid(queued_jobs.GRID + LIMITS.format(limits=limits), version)


def _ask(engine: Engine, now: datetime, config: Configuration, key: str | None = None) -> ClaimResult:
    caller = MatchCaller(subject=KEY[0], vos=frozenset({"lhcb"}))
    asked = {**queued_jobs.at(LONG), "NumberOfProcessors": 2}
    [look] = Matcher(engine, lambda: config, lambda: now, Random(1)).serve(
        [queued_jobs.request(caller=caller, request_id=key, **asked)]
    )
    assert isinstance(look, ClaimResult)
    return look


def _put(engine: Engine, now: datetime) -> int:
    """Five jobs of two cores; the id of their task queue."""
    with database.writing(engine) as conn:
        asked = replace(queued_jobs.EVERYWHERE, processors_min=2, processors_max=2)
        [first, *_] = queued_jobs.put(conn, now, 5, asked=asked, job_type="MC")
        return queued_jobs.task_queue_of(conn, first)


def _claim_step_by_step(engine: Engine, now: datetime, config: Configuration, task_queue: int) -> int:
    del task_queue
    return len(_ask(engine, now, config, KEY[1]).claimed)


def _claim_in_a_statement(engine: Engine, now: datetime, config: Configuration, task_queue: int) -> int:
    del config
    return int(_send(engine, now, task_queue, KEY[1]).claimed is not None)


def _send(engine: Engine, now: datetime, task_queue: int, key: str) -> BatchClaimResult:
    """The outcome of a statement that claims one job."""
    claim = BatchClaim(
        task_queue_id=task_queue,
        place=Location(site=LONG.site, ce=LONG.ce, queue=LONG.queue),
        holder=LeaseHolder(subject=KEY[0], stamp=None, lease_time=timedelta(minutes=5)),
        lease=key,
        allotment=Allotment(processors=2),
        request_id=key,
    )
    with contextlib.closing(AutocommitRunner(engine)) as server:
        [outcome] = claim_together(server, [claim], now=now)
    return outcome


@contextlib.contextmanager
def _hold(engine: Engine, now: datetime, claim: Callable[[], int]) -> Iterator[list[int]]:
    """A claim that has read the rules, and waits for another connection; its jobs once that has ended.

    The other one has reserved the key of the claim's answer, and takes it back in the end.
    """
    given: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        with engine.connect() as rival:
            attempts.reserve_keys(rival, [KEY], now=now)
            claimed = pool.submit(claim)
            wait.until(lambda: claimed.done() or databases.count_lock_waits(engine) == 1)
            yield given
            rival.rollback()
        given.append(claimed.result())


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("claim", [_claim_step_by_step, _claim_in_a_statement])
def test_a_claim_that_read_other_limits_is_counted(
    postgresql: Engine, now: datetime, claim: Claim, change: str
) -> None:
    before, after = (_config(limits, number + 1) for number, limits in enumerate(CHANGES[change][:2]))
    task_queue = _put(postgresql, now)
    follower = RuleFollower(postgresql)
    wait.until(lambda: follower.follow(before))
    with _hold(postgresql, now, lambda: claim(postgresql, now, before, task_queue)) as given:
        assert not follower.follow(after), "neither stored nor counted before the claim has ended"
        assert not _ask(postgresql, now, after).claimed, "nothing is given by rules that are not in force"
    assert given == [1]
    wait.until(lambda: follower.follow(after))
    assert scope_counters.agree(postgresql)
    assert sum(len(_ask(postgresql, now, after).claimed) for _ in range(5)) == CHANGES[change][2]
    assert scope_counters.agree(postgresql)


#: Limits before and after, and what a statement finds full once the held claim has the first job.
FULL = {
    "smaller": ("{JobType: {MC: 9}}", ONE, ("JobType",)),
    "larger": (ONE, "{JobType: {MC: 2}}", ()),
    "another": (ONE, "{VO: {lhcb: 1}, Owner: {alice: 9}}", ("VO",)),
    "both": (ONE, "{VO: {lhcb: 1}, JobType: {MC: 1}}", ("JobType", "VO")),
    "of cores": (ONE, "{JobType: {MC: {cores: 3}}}", ()),
    "with cores": (ONE, "{JobType: {MC: {count: 1, cores: 2}}}", ("JobType",)),
    "a ramp": (ONE, "{JobType: {MC: {Curb: 0, Max: 1, Interval: 600}}}", ()),
    "removed": (ONE, NONE, ()),
}


@pytest.mark.parametrize("change", FULL)
@pytest.mark.parametrize("claim", [_claim_step_by_step, _claim_in_a_statement])
def test_only_a_limit_in_force_is_found_full(
    postgresql: Engine, now: datetime, claim: Claim, change: str
) -> None:
    before, after = (_config(limits, number + 1) for number, limits in enumerate(FULL[change][:2]))
    task_queue, full = _put(postgresql, now), FULL[change][2]
    follower = RuleFollower(postgresql)
    wait.until(lambda: follower.follow(before))
    with _hold(postgresql, now, lambda: claim(postgresql, now, before, task_queue)) as given:
        during = _send(postgresql, now, task_queue, "during")
        follower.follow(after)
        changed = _send(postgresql, now, task_queue, "changed")
        for each in (during, changed):
            assert each.is_undecided, "the scope is locked: whether the held claim will use the room is open"
            assert not each.full
    assert given == [1]
    wait.until(lambda: follower.follow(after))
    found = _send(postgresql, now, task_queue, "found")
    assert tuple(sorted(found.full)) == full
    assert found.is_undecided == (not found.claimed)
    if full:
        assert not _ask(postgresql, now, after).claimed, "step by step it is the same"
    assert scope_counters.agree(postgresql)


@pytest.mark.parametrize("change", CHANGES)
def test_limits_that_change_between_the_check_and_the_claim_hold(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    before, after = (_config(limits, number + 1) for number, limits in enumerate(CHANGES[change][:2]))
    _put(engine, now)
    follower = RuleFollower(engine)
    wait.until(lambda: follower.follow(before))
    begin, more = StepwiseClaimer.claim, CHANGES[change][2]

    def change_first(claimer: StepwiseClaimer, *given: Any, **more: Any) -> Any:
        wait.until(lambda: follower.follow(after))
        return begin(claimer, *given, **more)

    with monkeypatch.context() as patched:
        patched.setattr(StepwiseClaimer, "claim", change_first)
        given = [len(_ask(engine, now, before).claimed) for _ in range(6)]
    assert sum(given) == 1 + more, "by the newer limits"
    assert scope_counters.agree(engine)
