"""Claims in the event loop at places with running limits: the limits hold, whoever changes what meanwhile."""

import asyncio
import contextlib
import random
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select, text

from cs_config.options.place_limits import ATTRIBUTES
from cs_config.tree.configuration import Configuration
from matcher.claim.matcher import Matcher
from matcher.limits.compiled_rules import RuleFollower
from matcher.request.match_request import MatchCaller, MatchRequest, MatchResult
from matcher.wait_cause_recorder import WaitCauseRecorder
from requirements.requirement_class import RequirementClass
from taskqueue.db import database
from taskqueue.leases.reports import PayloadResult
from taskqueue.schema.tables import attempts, match_requests, scope_returns
from taskqueue.sites import scopes
from taskqueue.task_queues import wait_causes
from tests.support import databases, scope_counters
from tests.support.claimers import ClaimingProcess, claiming, run
from tests.support.factories import pilot_reports, queued_jobs, stored_rows
from tests.support.factories.queued_jobs import ELSEWHERE, LONG, SHORT, at, request

SITE = "A.B.ch"


def _config(
    limits: str, version: int = 1, *, of_vo: str = "", other_site: str = ELSEWHERE.site
) -> Configuration:
    operations = f"Operations: {{Defaults: {{JobScheduling: {{RunningLimit: {{{limits}}}}}}}{of_vo}}}\n"
    return queued_jobs.grid(queued_jobs.GRID.replace(ELSEWHERE.site, other_site) + operations, version)


@pytest.fixture
def engine(postgresql: Engine) -> Engine:
    return postgresql


def _process(
    engine: Engine, now: datetime, config: Configuration
) -> contextlib.AbstractContextManager[ClaimingProcess]:
    return claiming(engine, Matcher(engine, lambda: config, lambda: now, random.Random(1)))


def _put(engine: Engine, now: datetime, count: int, *, job_type: str = "MC", vo: str = "lhcb") -> list[int]:
    asked = replace(queued_jobs.EVERYWHERE, vo=vo, job_types=frozenset({job_type}))
    return queued_jobs.put(engine, now, count, asked=asked, job_type=job_type)


def _ask(number: int = 0, where: object = LONG, *, vo: str = "lhcb") -> MatchRequest:
    caller = MatchCaller(subject=f"pilot{number}", vos=frozenset({vo}))
    return request(**{"caller": caller, **at(where)})  # type: ignore[arg-type]


def _running(engine: Engine) -> int:
    return len(databases.scalars(engine, select(attempts.c.job_id).where(attempts.c.closed_at.is_(None))))


def _counted(engine: Engine) -> dict[str, int]:
    """What the rules of each scope count, less what was returned."""
    with database.reading(engine) as conn:
        return {rule.scope: counted.jobs for rule, counted in scope_counters.list_counts(conn)}


def _finish(engine: Engine, now: datetime, lease: str) -> None:
    pilot_reports.start(engine, lease, lease_time=queued_jobs.HOLDER.lease_time, now=now)
    pilot_reports.finish(engine, lease, PayloadResult(status="Done"), now=now)


def test_requests_at_limited_places_are_answered_in_the_loop_up_to_the_limit(
    engine: Engine, now: datetime
) -> None:
    _put(engine, now, 40)
    config = _config("A.B.ch: {JobType: {mc: 12}, CEs: {ce1: {JobType: {MC: 20}}}}")
    with _process(engine, now, config) as process:

        async def work() -> list[MatchResult]:
            await process.ask(_ask())
            return await asyncio.gather(*(process.ask(_ask(n)) for n in range(30)))

        answers = run(work, process)
    given = [match.job_id for answer in answers for match in answer.matches]
    assert len(given) == len(set(given)) == 11, "and one before"
    assert process.in_loop == 11
    assert {answer.reason for answer in answers if not answer.matches} == {"limits"}
    assert _running(engine) == 12
    assert _counted(engine) == {"a.b.ch": 12, "a.b.ch/ce1": 12}


def test_what_a_limit_keeps_out_is_recorded_while_its_place_stays_open(engine: Engine, now: datetime) -> None:
    _put(engine, now, 4)
    [kept_out] = _put(engine, now, 1, job_type="Merge")
    times = [now + timedelta(seconds=20 * number) for number in range(4)]
    clock = list(times)
    config = _config("A.B.ch: {JobType: {MC: 12, Merge: 0}}")
    matcher = Matcher(engine, lambda: config, lambda: clock[0], random.Random(1))
    causes = WaitCauseRecorder(engine, matcher)
    with claiming(engine, matcher) as process:

        async def work() -> None:
            for _ in times:
                answer = await process.ask(asked := _ask())
                assert answer.matches
                causes.count(asked, answer)
                del clock[: len(clock) > 1]

        run(work, process)
    causes.store()
    with database.reading(engine) as conn:
        task_queue = queued_jobs.task_queue_of(conn, kept_out)
        found = wait_causes.read_causes(conn, [task_queue], since=now - timedelta(days=1))[task_queue]
    assert [(each.cause, each.since, each.until) for each in found] == [("limits", now, times[-1])]


#: A limit on each attribute that keeps out the first task queue of `_put_two`, and not the second one.
REACHED = {
    "JobType": "MC",
    "JobGroup": "mc",
    "JobName": "mc",
    "Owner": "ann",
    "OwnerGroup": "lhcb_mc",
    "VO": "lhcb",
    "SubmitPool": "''",
}
POOL = "a" * 64


def _put_two(engine: Engine, now: datetime, config: Configuration) -> None:
    """Jobs of two task queues that differ in each attribute."""
    with database.writing(engine) as conn:
        queued_jobs.pool(conn, now, POOL, LONG, config=config, vo="cms")
        for vo, owner, job_type, pool in (("lhcb", "ann", "MC", None), ("cms", "bob", "Merge", POOL)):
            asked = RequirementClass(vo=vo, cpu_time=3600, job_types=frozenset({job_type}), submit_pool=pool)
            names = dict.fromkeys(["job_group", "job_name"], job_type.lower())
            of_all: dict[str, Any] = {"owner": owner, "group": f"{vo}_mc", "job_type": job_type, **names}
            queued_jobs.put(conn, now, 40, asked=asked, **of_all)


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_where_a_limit_is_reached_another_task_queue_is_served(
    engine: Engine, now: datetime, attribute: str
) -> None:
    config = _config(f"A.B.ch: {{{attribute}: {{{REACHED[attribute]}: 0}}}}")
    _put_two(engine, now, config)
    with _process(engine, now, config) as process:

        async def work() -> list[MatchResult]:
            asked = request(caller=MatchCaller(subject="x", vos=frozenset({"lhcb", "cms"})), **at(LONG))
            while not (await process.ask(asked)).matches:
                pass
            return await asyncio.gather(*(process.ask(asked) for _ in range(30)))

        answers = run(work, process)
    assert all(answer.matches for answer in answers)
    is_of_task_queue = attribute not in ("JobGroup", "JobName")
    # That none of 30 draws the first task queue has a chance of 1 in 2**30.
    assert (process.in_loop == 30) == is_of_task_queue, "else another job of that task queue may have room"
    assert scope_counters.agree(engine)


@pytest.mark.parametrize(
    ("other_site", "limits", "statements"),
    [("C.D.ch", "", 2), ("C.E.ch", "", 2), ("C.D.ch", ", AllSites: {JobType: {MC: 60}}", 1)],
    ids=["by-site", "by-any-site", "of-grid"],
)
def test_statements_side_by_side_lock_no_scope_together(
    engine: Engine, now: datetime, other_site: str, limits: str, statements: int
) -> None:
    _put(engine, now, 60)
    both = f"A.B.ch: {{JobType: {{MC: 30}}}}, {other_site}: {{JobType: {{MC: 30}}}}{limits}"
    elsewhere = replace(ELSEWHERE, site=other_site)
    with _process(engine, now, _config(both, other_site=other_site)) as process:

        async def work() -> list[MatchResult]:
            for where in (LONG, elsewhere):
                await process.ask(_ask(where=where))
            with engine.connect() as rival, rival.begin() as transaction:
                rival.execute(text("LOCK TABLE attempts IN EXCLUSIVE MODE"))
                asked = [
                    asyncio.create_task(process.ask(_ask(number, where)))
                    for number in range(20)
                    for where in (LONG, elsewhere)
                ]
                while await asyncio.to_thread(databases.count_lock_waits, engine) < statements:
                    await asyncio.sleep(0)
                for _ in range(20):
                    assert await asyncio.to_thread(databases.count_lock_waits, engine) == statements
                transaction.rollback()
            return await asyncio.gather(*asked)

        answers = run(work, process)
    assert all(answer.matches for answer in answers)
    assert process.in_loop == 40, "no statement found a scope locked"
    assert _running(engine) == 42


def test_a_statement_that_waits_for_a_lock_holds_up_no_other_site(engine: Engine, now: datetime) -> None:
    _put(engine, now, 20)
    with _process(engine, now, _config("A.B.ch: {JobType: {MC: 9}}, C.D.ch: {JobType: {MC: 9}}")) as process:

        async def work() -> None:
            for where in (LONG, ELSEWHERE):
                await process.ask(_ask(where=where))
            with engine.connect() as rival, rival.begin() as transaction:
                key = {"subject": "pilot1", "request_id": "r", "at": now, "matches": "[]"}
                rival.execute(insert(match_requests), key)
                stuck = asyncio.create_task(process.ask(replace(_ask(1), request_id="r")))
                while not await asyncio.to_thread(databases.count_lock_waits, engine):
                    await asyncio.sleep(0)
                assert len((await process.ask(_ask(2, ELSEWHERE))).matches) == 1
                assert not stuck.done()
                transaction.rollback()
            assert len((await stuck).matches) == 1

        run(work, process)
    assert process.in_loop == 2


def test_what_ended_is_subtracted_by_the_next_claim(engine: Engine, now: datetime) -> None:
    _put(engine, now, 20)
    with _process(engine, now, _config("A.B.ch: {JobType: {MC: 6}}")) as process:

        async def work() -> None:
            for number in range(5):
                await process.ask(_ask(number))
            assert process.in_loop == 4
            for lease in process.leases[:3]:
                _finish(engine, now, lease)
            answers = await asyncio.gather(*(process.ask(_ask(n)) for n in range(4)))
            assert all(answer.matches for answer in answers)
            assert process.in_loop == 8

        run(work, process)
    with database.reading(engine) as conn:
        assert not conn.execute(select(scope_returns)).all(), "applied and deleted"
    assert _counted(engine) == {"a.b.ch": 6}
    assert _running(engine) == 6


@pytest.mark.parametrize(
    "limits",
    [
        "A.B.ch: {JobType: {MC: 2}}",
        "A.B.ch: {JobType: {MC: 9}, CEs: {ce1: {JobType: {MC: 2}}}}",
        "A.B.ch: {JobType: {MC: 9}}, AllSites: {JobType: {MC: 2}}",
        "A.B.ch: {JobType: {MC: 9}, Owner: {somebody: 9}, JobGroup: {more: 2}}",
    ],
    ids=["lower", "of-ce", "of-grid", "reads-job"],
)
def test_rules_that_another_process_stores_hold_at_once(engine: Engine, now: datetime, limits: str) -> None:
    _put(engine, now, 10)
    with _process(engine, now, _config("A.B.ch: {JobType: {MC: 9}}")) as process:

        async def work() -> MatchResult:
            for number in range(2):
                await process.ask(_ask(number))
            assert process.in_loop == 1
            follower = RuleFollower(engine)
            while not follower.follow(_config(limits, version=2)):
                await asyncio.sleep(0.01)
            return await process.ask(_ask(3))

        answer = run(work, process)
    assert bool(answer.matches) == ("JobGroup" in limits)
    assert process.in_loop == (2 if answer.matches else 1)
    assert scope_counters.agree(engine)


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_a_statement_applies_limits_on_each_attribute_of_a_job(
    engine: Engine, now: datetime, attribute: str
) -> None:
    values = {
        "JobType": "mc",
        "JobGroup": "Some",
        "JobName": "one",
        "Owner": "ANN",
        "OwnerGroup": "Lhcb_User",
        "VO": "lhcb",
        "SubmitPool": "''",
    }
    for job_id in _put(engine, now, 9):
        stored_rows.force(
            engine, job_id, job_group="some", job_name="One", owner="ann", owner_group="lhcb_user"
        )
    config = _config(f"A.B.ch: {{{attribute}: {{{values[attribute]}: 4, other: 0}}}}")
    with _process(engine, now, config) as process:

        async def work() -> list[bool]:
            return [bool((await process.ask(_ask(n))).matches) for n in range(6)]

        assert run(work, process) == [True] * 4 + [False] * 2
    assert process.in_loop == 3
    assert scope_counters.agree(engine)


@pytest.mark.parametrize("spelling", ["KELVIN", "\N{KELVIN SIGN}elvin"], ids=["ascii", "beyond"])
def test_a_value_beyond_ascii_is_compared_step_by_step(engine: Engine, now: datetime, spelling: str) -> None:
    for job_id in _put(engine, now, 9):
        stored_rows.force(engine, job_id, job_group=spelling)
    with _process(engine, now, _config("A.B.ch: {JobGroup: {kelvin: 3}}")) as process:

        async def work() -> list[bool]:
            return [bool((await process.ask(_ask(n))).matches) for n in range(5)]

        assert run(work, process) == [True] * 3 + [False] * 2
    assert process.in_loop == (2 if spelling.isascii() else 0)
    assert scope_counters.agree(engine)


@pytest.mark.parametrize(
    ("of_others", "in_loop"),
    [
        ("MatchingDelay: {A.B.ch: {JobType: {MC: 600}}}", 0),
        ("RunningLimit: {A.B.ch: {JobType: {MC: {Curb: 1, Max: 9, Interval: 600}}}}", 0),
        ("MatchingDelay: {A.B.ch: {JobType: {Merge: 600}}}", 2),
    ],
    ids=["delay", "ramp", "of other jobs"],
)
def test_what_a_statement_cannot_apply_holds_for_a_process_that_does_not_know_it(
    engine: Engine, now: datetime, of_others: str, in_loop: int
) -> None:
    _put(engine, now, 10)
    with _process(engine, now, _config("A.B.ch: {Owner: {alice: 9}}")) as process:

        async def work() -> list[bool]:
            await process.ask(_ask())
            stated = f"Operations: {{Defaults: {{JobScheduling: {{{of_others}}}}}}}\n"
            follower, newer = RuleFollower(engine), queued_jobs.grid(queued_jobs.GRID + stated, version=2)
            while not follower.follow(newer):
                await asyncio.sleep(0.01)
            return [bool((await process.ask(_ask(n))).matches) for n in range(1, 4)]

        given = run(work, process)
    assert process.in_loop >= in_loop
    assert sum(given) == (3 if in_loop else 1), "the first takes the only token"
    assert scope_counters.agree(engine)


def test_limits_of_a_new_configuration_are_stored_before_the_next_claim(
    engine: Engine, now: datetime
) -> None:
    _put(engine, now, 10)
    configs = [_config("A.B.ch: {JobType: {MC: 9}}"), _config("A.B.ch: {JobType: {MC: 2}}", version=2)]
    with claiming(engine, Matcher(engine, lambda: configs[0], lambda: now, random.Random(1))) as process:

        async def work() -> list[bool]:
            given = [bool((await process.ask(_ask(n))).matches) for n in range(2)]
            del configs[0]
            return [*given, bool((await process.ask(_ask(2))).matches)]

        assert run(work, process) == [True, True, False]


def test_a_scope_that_another_transaction_has_locked_delays_no_other(engine: Engine, now: datetime) -> None:
    _put(engine, now, 20)
    limits = "A.B.ch: {JobType: {MC: 9}}, C.D.ch: {JobType: {MC: 9}}"
    with _process(engine, now, _config(limits)) as process:

        async def work() -> None:
            await process.ask(_ask())
            await process.ask(_ask(1, ELSEWHERE))
            with database.writing(engine) as conn:
                scopes.lock_scopes(conn, [SITE])
                both = await asyncio.gather(
                    *(process.claimer.claim(_ask(2, where), lambda: False) for where in (SHORT, ELSEWHERE))
                )
            assert both[0] is None, "the thread tries again, and waits in the end"
            assert both[1] is not None
            assert both[1].matches
            assert (await process.ask(_ask(3))).matches

        run(work, process)


def test_jobs_of_an_exempt_vo_are_counted_and_not_limited(engine: Engine, now: datetime) -> None:
    _put(engine, now, 5)
    _put(engine, now, 5, vo="cms")
    of_vo = ", cms: {JobScheduling: {RunningLimit: {A.B.ch: {JobType: {MC: 5}}}}}"
    with _process(engine, now, _config("A.B.ch: {JobType: {MC: 3}}", of_vo=of_vo)) as process:

        async def work() -> list[bool]:
            first = [bool((await process.ask(_ask(n, vo="cms"))).matches) for n in range(5)]
            return [*first, bool((await process.ask(_ask(6))).matches)]

        assert run(work, process) == [True] * 5 + [False]
    assert process.in_loop == 4


def test_two_processes_never_exceed_a_limit_while_jobs_end(engine: Engine, now: datetime) -> None:
    _put(engine, now, 400)
    most, draw = 12, random.Random(5)
    config = _config(f"A.B.ch: {{JobType: {{MC: {most}}}}}")
    with _process(engine, now, config) as one, _process(engine, now, config) as other:

        async def work() -> None:
            for _ in range(25):
                asked = [
                    asyncio.ensure_future((one, other)[n % 2].ask(_ask(n, LONG if n % 3 else SHORT)))
                    for n in range(8)
                ]
                held = [*one.leases, *other.leases]
                ended = draw.sample(held, k=min(len(held), draw.randrange(12)))
                for lease in ended:
                    await asyncio.to_thread(_finish, engine, now, lease)
                await asyncio.gather(*asked)
                for each in (one, other):
                    each.leases = [lease for lease in each.leases if lease not in ended]
                running = await asyncio.to_thread(_running, engine)
                assert running == len(one.leases) + len(other.leases)
                assert running <= most
                assert _counted(engine) == {"a.b.ch": running}

        run(work, one, other)
    assert one.in_loop + other.in_loop
