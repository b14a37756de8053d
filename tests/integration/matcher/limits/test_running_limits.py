"""Running limits, matching delays and bans: exact, also with several matchers."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any, NoReturn

import pytest
from sqlalchemy import Engine, select, update

from cs_config import validate
from cs_config.errors import ConfigError
from cs_config.tree.configuration import Configuration
from matcher import demand
from matcher.claim import claim_loop
from matcher.claim import matcher as matching
from matcher.claim.claim_request import ClaimResult
from matcher.claim.matcher import Matcher
from matcher.limits import compiled_rules, job_groups, running_limits
from matcher.limits.compiled_rules import RuleFollower
from matcher.limits.running_limits import RunningLimitState
from matcher.request.match_request import MatchCaller, MatchRequest
from requirements.errors import InvalidResource
from requirements.requirement_class import RequirementClass
from taskqueue.db import database
from taskqueue.jobs import control, jobs
from taskqueue.leases import expiry
from taskqueue.schema.tables import attempts, matching_delays, task_queues, waiting_jobs
from taskqueue.sites import closures
from tests.support import concurrency, databases
from tests.support.factories import queued_jobs, stored_rows, submitted_jobs
from tests.support.factories.queued_jobs import ELSEWHERE, LONG, SHORT

LIMITS = """
Operations:
  Defaults:
    JobScheduling:
      {options}
  cms: {{JobScheduling: {{MaxRescheduling: 5}}}}
"""


def _matcher(
    engine: Engine, now: datetime, options: str, seed: int = 1, *, tree: str = queued_jobs.GRID
) -> Matcher:
    return _with_open_limits(engine, now, queued_jobs.grid(tree + LIMITS.format(options=options)), seed)


def _with_open_limits(engine: Engine, now: datetime, config: Configuration, seed: int = 1) -> Matcher:
    """A matcher whose limits are in force, however many steps that takes on a busy machine."""
    follower = RuleFollower(engine)
    while not follower.follow(config.at_moment(now)):
        pass
    return Matcher(engine, lambda: config, lambda: now, Random(seed))


def _throttled(engine: Engine, now: datetime, throttle: str) -> Matcher:
    """A matcher of a grid whose site A.B.ch has this throttle."""
    text = queued_jobs.GRID.replace("VO: [lhcb, cms]", f"VO: [lhcb, cms]\n      Throttle: {throttle}")
    return _with_open_limits(engine, now, queued_jobs.grid(text))


def _put(engine: Engine, now: datetime, count: int, **values: Any) -> list[int]:
    types = frozenset({values["job_type"]} if values.get("job_type", "").lower() == "test" else ())
    asked = replace(queued_jobs.EVERYWHERE, job_types=types)
    return queued_jobs.put(engine, now, count, asked=asked, **values)


def _ask(matcher: Matcher, count: int = 1, where: object = LONG) -> ClaimResult:
    return queued_jobs.serve(matcher, queued_jobs.request(**queued_jobs.at(where), count=count))  # type: ignore[arg-type]


def _ask_until_free(matcher: Matcher, count: int) -> ClaimResult:
    """As the claim thread does where another matcher has the place locked."""
    while (look := _ask(matcher, count)).in_other_hands:
        pass
    return look


def _pass(engine: Engine, seconds: float) -> None:
    """So much time passes for the tokens."""
    with database.writing(engine) as conn:
        for row in conn.execute(select(matching_delays)).all():
            conn.execute(update(matching_delays).values(at=row.at - timedelta(seconds=seconds)))


@contextmanager
def _read_only() -> Iterator[None]:
    """Whoever claims in here breaks the test."""

    def claims(*_: object, **__: object) -> NoReturn:
        raise AssertionError("that was a write")

    claim_all, claim_loop.claim_all = claim_loop.claim_all, claims  # type: ignore[assignment]
    try:
        yield
    finally:
        claim_loop.claim_all = claim_all


def _ids(look: ClaimResult) -> list[int]:
    return [each.job_id for each in look.claimed]


@pytest.mark.parametrize(
    ("attribute", "column"),
    [("JobType", "job_type"), ("JobGroup", "job_group"), ("JobName", "job_name"), ("Owner", "owner")],
)
def test_jobs_of_a_kind_run_up_to_the_limit_and_others_pass_them(
    engine: Engine, now: datetime, attribute: str, column: str
) -> None:
    limited = _put(engine, now, 5, **{column: "many"})
    free = _put(engine, now, 1, **{column: "other"})
    matcher = _matcher(engine, now, f"RunningLimit: {{A.B.ch: {{{attribute}: {{many: 2}}}}}}")
    assert set(_ids(_ask(matcher, 9))) == {*limited[:2], *free}
    look = _ask(matcher)
    assert (look.claimed, look.refused, look.in_other_hands) == ((), "limits", False)


@pytest.mark.parametrize("closed", ["limits", "banned"])
def test_a_closed_place_is_no_reason_if_nothing_waits(engine: Engine, now: datetime, closed: str) -> None:
    ids = _put(engine, now, 3, job_type="MC")
    matcher = _matcher(engine, now, "RunningLimit: {A.B.ch: {JobType: {MC: 1}}}")
    assert len(_ask(matcher, 9).claimed) == 1
    if closed == "banned":
        stored_rows.ban(engine, now, reason="power cut")
    assert _ask(matcher).refused == closed
    with database.writing(engine) as conn:
        for each in ids[1:]:
            assert control.kill_jobs(conn, [each], source="test", now=now)
    look = _ask(matcher)
    assert (look.claimed, look.refused) == ((), None)


def test_what_ends_makes_room_and_what_is_killed_counts_until_it_has_ended(
    engine: Engine, now: datetime
) -> None:
    _put(engine, now, 5, job_type="MC")
    matcher = _matcher(engine, now, "RunningLimit: {A.B.ch: {JobType: {MC: 2}}}")
    first, second = _ask(matcher, 9).claimed
    stored_rows.kill(engine, now, first.job_id)
    assert _ask(matcher).refused == "limits"
    queued_jobs.release(engine, now, second.lease)
    assert len(_ask(matcher, 9).claimed) == 1


def test_a_limit_of_a_ce_counts_that_ce(engine: Engine, now: datetime) -> None:
    _put(engine, now, 5, job_type="MC")
    options = "RunningLimit: {A.B.ch: {JobType: {MC: 3}, CEs: {ce1: {JobType: {MC: 1}}}}}"
    tree = queued_jobs.GRID.replace("long: {VO: [cms]}", "long: {}")
    matcher = _matcher(engine, now, options, tree=tree)
    assert len(_ask(matcher, 9).claimed) == 1
    assert len(_ask(matcher, 9, SHORT).claimed) == 0
    [unsaid] = matcher.serve([queued_jobs.request(Site="A.B.CH", count=9)])
    assert isinstance(unsaid, InvalidResource), "it may be at ce1"
    look = queued_jobs.serve(matcher, queued_jobs.request(Site="A.B.CH", GridCE="ce2", count=9))
    assert len(look.claimed) == 2


OWN = """VO: [lhcb, cms]
      RunningLimit: {JobType: {MC: 3}, VO: {lhcb: 5}}
      MatchingDelay: {Owner: {slow: 60}, Burst: {Owner: {slow: 2}}}"""


def test_limits_that_a_site_writes_itself_hold_for_all_vos_beside_those_of_the_operations(
    engine: Engine, now: datetime
) -> None:
    """A limit of a VO replaces the same one of all VOs, but never the site's."""
    _put(engine, now, 9, job_type="mc")
    _put(engine, now, 9, owner="slow")
    _put(engine, now, 9, owner="bob")
    tree = queued_jobs.GRID.replace("VO: [lhcb, cms]", OWN, 1)
    of_vo = "lhcb: {JobScheduling: {RunningLimit: {A.B.ch: {JobType: {MC: 9}}}}}"
    wider = f"RunningLimit: {{A.B.ch: {{JobType: {{MC: 2}}}}}}\n  {of_vo}"
    matcher = _matcher(engine, now, wider, tree=tree)
    ids = _ids(_ask(matcher, 30))
    taken = [submitted_jobs.job(engine, each) for each in ids]
    assert len(taken) == 5
    assert sum(each.job_type == "mc" for each in taken) <= 3
    assert sum(each.owner == "slow" for each in taken) <= 2
    assert _ask(matcher).refused == "limits"


def test_a_site_and_all_vos_have_each_their_counter_of_one_kind(engine: Engine, now: datetime) -> None:
    _put(engine, now, 9, job_type="MC")
    tree = queued_jobs.GRID.replace("ce1:", "ce1:\n          RunningLimit: {JobType: {MC: 3}}", 1)
    both = "RunningLimit: {A.B.ch: {CEs: {ce1: {JobType: {MC: 4}}}}}"
    assert len(_ask(_matcher(engine, now, both, tree=tree), 9).claimed) == 3
    assert len(_ask(_matcher(engine, now, both, tree=tree.replace("MC: 3", "MC: 9")), 9).claimed) == 1


def test_delays_of_a_site_and_of_all_vos_have_each_their_tokens(engine: Engine, now: datetime) -> None:
    _put(engine, now, 9, owner="slow")
    own = "VO: [lhcb, cms]\n      MatchingDelay: {Owner: {slow: 100}, Burst: {Owner: {slow: 3}}}"
    matcher = _matcher(
        engine,
        now,
        "MatchingDelay: {A.B.ch: {Owner: {slow: 10}}}",
        tree=queued_jobs.GRID.replace("VO: [lhcb, cms]", own, 1),
    )
    assert len(_ask(matcher, 9).claimed) == 1
    for _ in range(2):
        _pass(engine, 10)
        assert len(_ask(matcher, 9).claimed) == 1
    _pass(engine, 10)
    assert _ask(matcher, 9).refused == "limits"
    _pass(engine, 100)
    assert len(_ask(matcher, 9).claimed) == 1


def test_nobody_writes_past_a_limit_in_other_letters(engine: Engine, now: datetime) -> None:
    ids = _put(engine, now, 2, job_type="merge") + _put(engine, now, 2, job_type="MERGE")
    matcher = _matcher(engine, now, "RunningLimit: {a.b.CH: {JobType: {Merge: 3}}}")
    assert _ids(_ask(matcher, 9)) == ids[:3]
    assert _ask(matcher).refused == "limits"


def test_polling_at_a_full_place_writes_nothing(engine: Engine, now: datetime) -> None:
    limits = "{JobType: {MC: 0}, JobGroup: {g1: 0}, Owner: {bob: 0}}"
    matcher = _matcher(engine, now, f"RunningLimit: {{A.B.ch: {limits}}}")
    _put(engine, now, 1, job_type="MC")
    _put(engine, now, 1, job_group="G1")
    _put(engine, now, 1, owner="bob")
    queued_jobs.put(
        engine, now, 1, asked=RequirementClass(vo="lhcb", cpu_time=60, job_types=frozenset({"MC"}))
    )
    with _read_only():
        assert _ask(matcher).refused == "limits"
    [free] = _put(engine, now, 1, job_group="g2")
    assert _ids(_ask(matcher, 9)) == [free]


def test_polling_where_an_expression_lets_no_job_in_writes_nothing(engine: Engine, now: datetime) -> None:
    asks = "{Policy: expression, Requirements: 'TARGET.JobGroup == \"g2\"', Stale: derived}"
    matcher = _throttled(engine, now, asks)
    _put(engine, now, 3, job_group="g1")
    with _read_only():
        assert _ask(matcher).refused == "throttled"
    [wanted] = _put(engine, now, 1, job_group="g2")
    assert _ids(_ask(matcher, 9)) == [wanted]


GROUP_2 = "{Policy: expression, Requirements: 'TARGET.JobGroup == \"g2\"', Stale: derived}"
CHEF = "{Policy: expression, Requirements: 'TARGET.Owner == \"chef\"', Stale: derived}"


@pytest.mark.parametrize("asks", [GROUP_2, CHEF], ids=["group", "owner"])
def test_what_a_poll_reads_does_not_grow_with_the_jobs_that_an_expression_refuses(
    engine: Engine, now: datetime, asks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is asked beside, now and then, is not counted.
    monkeypatch.setattr(matching, "_FRESH", math.inf)
    monkeypatch.setattr(compiled_rules, "_AGAIN", math.inf)
    matcher = _throttled(engine, now, asks)
    statements = databases.record_statements(engine)

    def cost() -> int:
        with _read_only():
            _ask(matcher)
            statements.clear()
            assert _ask(matcher).refused == "throttled"
        return len(statements)

    _put(engine, now, 150, job_group="g1")
    few = cost()
    _put(engine, now, 600, job_group="g1")
    assert cost() == few
    [wanted] = _put(engine, now, 1, job_group="g2", owner="chef")
    assert _ids(_ask(matcher, 9)) == [wanted]
    assert _ask(matcher).refused == "throttled"


def test_a_job_is_asked_itself_where_its_name_tells_it_from_others_of_its_kind(
    engine: Engine, now: datetime
) -> None:
    asks = "{Policy: expression, Requirements: 'TARGET.JobName == \"last\"', Stale: derived}"
    matcher = _throttled(engine, now, asks)
    _put(engine, now, 210, job_name="first")
    [wanted] = _put(engine, now, 1, job_name="last")
    assert _ids(_ask(matcher, 9)) == [wanted]


def test_jobs_of_groups_whose_descriptions_are_too_long_to_be_cached_are_checked_by_the_claim(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_groups, "_LONGEST", 200)
    monkeypatch.setattr(job_groups, "_PIECE", 1)
    matcher = _throttled(engine, now, GROUP_2)
    for group in range(5):
        _put(engine, now, 10, job_group=f"a{group}")
    with database.writing(engine) as conn:
        [wanted] = queued_jobs.put(conn, now, 1, body={"Executable": "x" * 200})
        stored_rows.force(conn, wanted, job_group="g2")
        [task_queue_id] = conn.execute(select(task_queues.c.task_queue_id)).scalars()
        for _ in range(2):
            known, are_all = job_groups.find_cache(engine).waiting_in(conn, task_queue_id)
            assert (len(known), are_all) == (5, False)
    assert _ids(_ask(matcher, 9)) == [wanted]
    assert _ask(matcher).refused == "throttled"


def test_a_kind_that_was_refused_is_asked_again_after_each_match(engine: Engine, now: datetime) -> None:
    """The more there are at the site, the more it takes: an odd site, but its own."""
    requirements = 'TARGET.JobGroup == "g2" || CurMatches > 0'
    asks = f"{{Policy: expression, Requirements: '{requirements}', Stale: derived}}"
    matcher = _throttled(engine, now, asks)
    others = _put(engine, now, 120, job_group="g1")
    [wanted] = _put(engine, now, 1, job_group="g2")
    assert _ids(_ask(matcher, 3)) == [wanted, *others[:2]]


def test_polling_without_a_token_or_at_a_limit_of_ones_vo_writes_nothing(
    engine: Engine, now: datetime
) -> None:
    _put(engine, now, 2, job_group="g1")
    own = "  lhcb: {JobScheduling: {RunningLimit: {A.B.ch: {JobGroup: {g1: 1}}}}}\n"
    config = queued_jobs.grid(queued_jobs.GRID + LIMITS.format(options="MaxRescheduling: 3") + own)
    matcher = _with_open_limits(engine, now, config)
    slow = _matcher(engine, now, "MatchingDelay: {A.B.ch: {JobGroup: {g1: 1000}}}")
    assert len(_ask(slow, 9).claimed) == 1
    assert _ask(slow).refused == "limits"  # it was open a moment ago: this one tried
    with _read_only():
        assert _ask(slow).refused == "limits"
        assert _ask(matcher).refused == "limits"


def test_a_task_queue_that_is_empty_is_not_called_limited(engine: Engine, now: datetime) -> None:
    _put(engine, now, 1, job_group="g1")
    matcher = _matcher(engine, now, "RunningLimit: {A.B.ch: {JobGroup: {g1: 1}}}")
    assert len(_ask(matcher).claimed) == 1
    look = _ask(matcher)
    assert (look.refused, look.in_other_hands) == (None, False)


def test_a_job_that_is_let_in_and_in_anothers_hands_is_waited_for(postgresql: Engine, now: datetime) -> None:
    _put(postgresql, now, 1, job_group="full")
    [free] = _put(postgresql, now, 1, job_group="free", owner="bob")
    matcher = _matcher(postgresql, now, "RunningLimit: {A.B.ch: {JobGroup: {full: 0}}}")
    with database.writing(postgresql) as conn:
        conn.execute(select(waiting_jobs).where(waiting_jobs.c.job_id == free).with_for_update())
        look = _ask(matcher)
    assert (look.claimed, look.in_other_hands) == ((), True)
    assert _ids(_ask(matcher)) == [free]


def test_limits_at_one_place_cost_another_nothing(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is asked beside, now and then, is not counted.
    monkeypatch.setattr(matching, "_FRESH", math.inf)
    monkeypatch.setattr(compiled_rules, "_AGAIN", math.inf)
    options = "RunningLimit: {A.B.ch: {JobType: {MC: 1}}}"
    statements = databases.record_statements(engine)

    def list_statements() -> list[str]:
        matcher = _matcher(engine, now, options)
        matcher.refresh()
        statements.clear()
        assert len(_ask(matcher, 1, ELSEWHERE).claimed) == 1
        return statements.copy()

    _put(engine, now, 3, job_group="free")
    alone = list_statements()
    only_there = RequirementClass(vo="lhcb", cpu_time=3600, sites=frozenset({"A.B.ch"}))
    queued_jobs.put(engine, now, 50, asked=only_there)
    _put(engine, now, 3, job_type="MC")
    assert len(_ask(_matcher(engine, now, options)).claimed) == 1
    assert list_statements() == alone


def test_directors_are_told_only_what_the_place_lets_in(engine: Engine, now: datetime) -> None:
    _put(engine, now, 2, job_group="full")
    free = _put(engine, now, 2, job_group="free")
    [test] = _put(engine, now, 1, job_type="Test", owner="eve")
    matcher = _matcher(engine, now, "RunningLimit: {A.B.ch: {JobGroup: {full: 0}}}")

    def listed() -> list[int]:
        asked = queued_jobs.request(**queued_jobs.at(LONG))
        found = demand.get_matching_task_queues(matcher, asked.presented, asked.caller)
        assert [each.waiting for each in found] == [len(each.job_ids) for each in found]
        return [job_id for each in found for job_id in each.job_ids]

    assert listed() == [*free, test]
    stored_rows.ban(engine, now, reason="power cut")
    assert listed() == [test]
    [other] = _put(engine, now, 1, job_type="test", owner="eve")
    assert listed() == [test, other]


def test_matchers_at_once_give_no_more_than_the_limit(engine: Engine, now: datetime) -> None:
    _put(engine, now, 40, job_type="MC")
    matchers = [
        _matcher(engine, now, "RunningLimit: {A.B.ch: {JobType: {MC: 7}}}", seed) for seed in range(4)
    ]
    looks = concurrency.at_once(4, lambda number: [_ask_until_free(matchers[number], 2) for _ in range(4)])
    assert sum(len(look.claimed) for each in looks for look in each) == 7


def test_a_delay_gives_one_token_an_interval_and_a_burst_after_a_pause(engine: Engine, now: datetime) -> None:
    _put(engine, now, 20, job_type="MC")
    options = "MatchingDelay: {A.B.ch: {JobType: {MC: 1000}, Burst: {JobType: {MC: 3}}}}"
    given = []
    for seconds in (0, 0, 500, 500, 2500, 90000):
        _pass(engine, seconds)
        given.append(len(_ask(_matcher(engine, now, options), 9).claimed))
    assert given == [3, 0, 0, 1, 2, 3]


def test_another_delay_holds_at_once(engine: Engine, now: datetime) -> None:
    first, second, _ = _put(engine, now, 3, job_type="MC")
    given = []
    for seconds, delay in ((0, 100_000), (0, 1000), (1000, 1000)):  # on PostgreSQL time passes by itself, too
        _pass(engine, seconds)
        given += _ids(_ask(_matcher(engine, now, f"MatchingDelay: {{A.B.ch: {{JobType: {{MC: {delay}}}}}}}")))
    assert given == [first, second]


def test_clocks_of_matchers_that_differ_make_no_tokens(postgresql: Engine, now: datetime) -> None:
    _put(postgresql, now, 20, job_type="MC")
    options = "MatchingDelay: {A.B.ch: {JobType: {MC: 1000}}}"
    given = [
        len(_ask(_matcher(postgresql, now + timedelta(hours=hours), options), 9).claimed)
        for hours in (0, 9, -9, 9, -9)
    ]
    _pass(postgresql, 1000)
    given.append(len(_ask(_matcher(postgresql, now - timedelta(hours=9), options), 9).claimed))
    assert given == [1, 0, 0, 0, 0, 1]


def test_a_delay_ends_in_its_time_when_the_clock_was_ahead_and_is_set_back(
    engine: Engine, now: datetime
) -> None:
    _put(engine, now, 20, job_type="MC")
    options = "MatchingDelay: {A.B.ch: {JobType: {MC: 1000}}}"
    given = []
    for seconds in (0, -86400, 1000):
        _pass(engine, seconds)
        given.append(len(_ask(_matcher(engine, now, options), 9).claimed))
        with database.writing(engine) as conn:
            expiry.correct_future_times(conn, now=now)
    assert given == [1, 0, 1]


def test_a_delay_holds_for_all_matchers_together_and_a_token_that_is_not_used_is_kept(
    engine: Engine, now: datetime
) -> None:
    ids = _put(engine, now, 4, job_type="MC") + _put(engine, now, 1, job_type="User")
    options = "MatchingDelay: {A.B.ch: {JobType: {MC: 1000, User: 1000}}}"
    looks = concurrency.at_once(3, lambda number: _ask(_matcher(engine, now, options, number), 3))
    taken = sorted(job_id for look in looks for job_id in _ids(look))
    assert taken == [ids[0], ids[-1]]


def test_a_banned_site_gets_tests_only_until_it_is_allowed_or_the_time_has_come(
    engine: Engine, now: datetime
) -> None:
    plain = _put(engine, now, 2, job_type="User")
    tests = _put(engine, now, 1, job_type="Test")
    end = now + timedelta(hours=1)
    stored_rows.ban(engine, now, reason="power cut", until=end)
    matcher = _matcher(engine, now, "MaxRescheduling: 3")
    assert _ids(_ask(matcher, 9)) == tests
    look = _ask(matcher, 9)
    assert (look.claimed, look.refused) == ((), "banned")
    assert len(_ask(_matcher(engine, end, "MaxRescheduling: 3")).claimed) == 1
    with database.writing(engine) as conn:
        assert closures.lift_ban(conn, "A.B.ch")
        assert not closures.lift_ban(conn, "A.B.ch")
        assert jobs.get_job(conn, plain[-1]).status == "Waiting"
    assert _ids(_ask(matcher, 9)) == plain[1:]


def test_a_limit_of_a_vo_stands_for_the_common_one(engine: Engine, now: datetime) -> None:
    _put(engine, now, 5, job_type="MC")
    common = "RunningLimit: {A.B.ch: {JobType: {MC: 1}}}"
    own = (
        LIMITS.format(options=common)
        + "  lhcb: {JobScheduling: {RunningLimit: {A.B.ch: {JobType: {MC: 3}}}}}\n"
    )
    config = queued_jobs.grid(queued_jobs.GRID + own)
    matcher = _with_open_limits(engine, now, config)
    assert len(_ask(matcher, 9).claimed) == 3


def _of_both_vos(engine: Engine, now: datetime, count: int) -> None:
    """Jobs of both VOs whose task queues tell their type."""
    with database.writing(engine) as conn:
        for vo in ("cms", "lhcb"):
            asked = replace(queued_jobs.EVERYWHERE, vo=vo, job_types=frozenset({"MC"}))
            queued_jobs.put(conn, now, count, asked=asked, group=f"{vo}_user", job_type="MC")


def _asked_by(vo: str) -> MatchRequest:
    return queued_jobs.request(caller=MatchCaller(subject=vo, vos=frozenset({vo})), **queued_jobs.at(LONG))


@pytest.mark.parametrize("together", [False, True])
def test_what_a_vo_with_its_own_limit_takes_counts_for_the_others(
    engine: Engine, now: datetime, together: bool
) -> None:
    _of_both_vos(engine, now, 5)
    own = "  cms: {JobScheduling: {RunningLimit: {A.B.ch: {JobType: {MC: 5}}}}}\n"
    text = LIMITS.replace("  cms: {{JobScheduling: {{MaxRescheduling: 5}}}}\n", "")
    common = "RunningLimit: {A.B.ch: {JobType: {MC: 2}}}"
    config = queued_jobs.grid(queued_jobs.GRID + text.format(options=common) + own)
    matcher = _with_open_limits(engine, now, config)
    asked = [_asked_by(vo) for vo in ("cms", "cms", "lhcb")]
    looks = matcher.serve(asked) if together else [look for each in asked for look in matcher.serve([each])]
    assert [len(look.claimed) for look in looks if isinstance(look, ClaimResult)] == [1, 1, 0]


def test_a_task_queue_that_a_limit_keeps_out_here_is_drawn_elsewhere(engine: Engine, now: datetime) -> None:
    mc, user = (replace(queued_jobs.EVERYWHERE, job_types=frozenset({each})) for each in ("MC", "User"))
    with database.writing(engine) as conn:
        [*_, last] = queued_jobs.put(conn, now, 3, asked=mc, job_type="MC")
        limited = queued_jobs.task_queue_of(conn, last)
        queued_jobs.put(conn, now, 20, asked=user, owner="bob", job_type="User")
    matcher = _matcher(engine, now, "RunningLimit: {A.B.ch: {JobType: {MC: 0}}}")
    looks = [_ask(matcher) for _ in range(10)]
    assert all(look.claimed for look in looks)
    assert not any(limited in look.emptied for look in looks)


def test_a_limit_on_all_sites_counts_the_whole_grid(engine: Engine, now: datetime) -> None:
    """New limits count what runs already, wherever; jobs of other kinds, and of other VOs, pass."""
    limited = _put(engine, now, 5, owner="many")
    assert _ids(_ask(_matcher(engine, now, "{}"), 1, ELSEWHERE)) == limited[:1]
    matcher = _matcher(engine, now, "RunningLimit: {allsites: {Owner: {many: 3}}}")
    assert _ids(_ask(matcher, 2)) == limited[1:3]
    [free] = _put(engine, now, 1, owner="bob")
    matcher.notify()
    assert _ids(_ask(matcher, 9, ELSEWHERE)) == [free]
    assert _ask(matcher, 9).refused == _ask(matcher, 9, ELSEWHERE).refused == "limits"
    # Also of a pilot that states no site: its jobs count in the grid, whatever site it is at.
    unplaced = matcher.serve([queued_jobs.request(count=9)])
    assert [each.refused for each in unplaced if isinstance(each, ClaimResult)] == ["limits"]


def test_matchers_at_all_sites_at_once_give_no_more_than_the_limit(engine: Engine, now: datetime) -> None:
    _put(engine, now, 40, job_group="x")
    options = "RunningLimit: {AllSites: {VO: {lhcb: 7}}, A.B.ch: {VO: {lhcb: 5}}}"
    matchers = [_matcher(engine, now, options, seed) for seed in range(4)]

    def ask(number: int) -> int:
        place = (LONG, ELSEWHERE)[number % 2]
        found = 0
        for _ in range(4):
            while (look := _ask(matchers[number], 2, place)).in_other_hands:
                pass
            found += len(look.claimed)
        return found

    assert sum(concurrency.at_once(4, ask)) == 7


def test_batches_of_requests_from_all_sites_keep_a_limit_of_the_grid(engine: Engine, now: datetime) -> None:
    _of_both_vos(engine, now, 9)
    matcher = _matcher(engine, now, "RunningLimit: {AllSites: {VO: {lhcb: 3}}}")
    places = (LONG, ELSEWHERE, SHORT) * 6
    looks = matcher.serve([queued_jobs.request(**queued_jobs.at(place)) for place in places])
    claimed = [job.vo for look in looks if isinstance(look, ClaimResult) for job in look.claimed]
    assert claimed.count("lhcb") == 3


def test_a_limit_of_one_vo_on_all_sites_does_not_slow_the_claims_of_another(
    engine: Engine, now: datetime
) -> None:
    _of_both_vos(engine, now, 9)
    own = "  cms: {JobScheduling: {RunningLimit: {AllSites: {JobGroup: {'': 1}, JobName: {x: 1}}}}}\n"
    text = LIMITS.replace("  cms: {{JobScheduling: {{MaxRescheduling: 5}}}}\n", "")
    matcher = _with_open_limits(
        engine, now, queued_jobs.grid(queued_jobs.GRID + text.format(options="{}") + own)
    )
    looks = matcher.serve([_asked_by("lhcb")] * 2)
    assert [len(look.claimed) for look in looks if isinstance(look, ClaimResult)] == [1, 1]
    look = queued_jobs.serve(matcher, replace(_asked_by("lhcb"), count=4))
    assert len(look.claimed) == 4
    assert set(databases.scalars(engine, select(attempts.c.counted_by))) == {None}


def test_the_number_of_a_limit_in_force_is_its_counter(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put(engine, now, 5, job_type="MC")
    config = queued_jobs.grid(
        queued_jobs.GRID + LIMITS.format(options="RunningLimit: {AllSites: {JobType: {mC: 3}}}")
    )

    def read_number() -> int:
        with database.reading(engine) as conn:
            [state] = running_limits.read_conditions(conn, config, ["AllSites"], now)["AllSites"]
        assert isinstance(state, RunningLimitState)
        return state.there

    assert len(_ask(_matcher(engine, now, "{}"), 1).claimed) == 1
    assert read_number() == 1  # not stored yet: counted from the rows
    assert len(_ask(_with_open_limits(engine, now, config), 1).claimed) == 1
    monkeypatch.delattr(running_limits.occupancy, "count_by_value")
    assert read_number() == 2


def test_a_limit_with_a_ramp_is_free_up_to_the_curb_and_slow_up_to_the_maximum(
    engine: Engine, now: datetime
) -> None:
    _put(engine, now, 20, job_type="MC")
    options = "RunningLimit: {A.B.ch: {JobType: {MC: {Curb: 4, Max: 7, Interval: 1000}}}}"
    given = []
    for seconds in (0, 0, 500, 500, 90000, 90000, 90000):
        _pass(engine, seconds)
        given.append(len(_ask(_matcher(engine, now, options), 9).claimed))
    assert given == [5, 0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "RunningLimit: {S: {VO: {x: {Curb: 4, Max: 3, Interval: 1}}}}",
            "S/VO/x/Curb: 4 is more than Max, 3",
        ),
        ("RunningLimit: {S: {VO: {x: {Curb: 4, Mx: 3}}}}", "S/VO/x/Mx: did you mean Max?"),
        ("RunningLimit: {S: {VO: {x: {Max: 3}}}}", "Curb and Interval missing"),
        ("RunningLimit: {AllSites: {CEs: {ce: {VO: {x: 3}}}}}", "all sites together have no CE"),
        ("RunningLimit: {S: {JobTyp: {MC: 1}}}", "did you mean JobType"),
        ("RunningLimit: {S: {JobType: {MC: many}}}", "S/JobType/MC: 'many' is not a number of jobs"),
        ("RunningLimit: {S: {JobType: 3}}", "S/JobType: a section is needed"),
        ("MatchingDelay: {S: {JobType: {MC: slow}}}", "is not a number of seconds"),
        ("MatchingDelay: {S: {JobType: {MC: 1}, Burst: {JobType: {MC: 0}}}}", "allowed are 1 to 1000000"),
    ],
)
def test_wrong_limits_are_told(options: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        validate.parse(LIMITS.format(options=options))
