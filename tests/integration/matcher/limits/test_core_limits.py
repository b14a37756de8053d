"""Running limits on cores: what runs has never more, whichever claim gives it, and smaller jobs pass."""

import asyncio
import random
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from subprocess import run as run_program

import pytest
from sqlalchemy import Engine, func, select, update

from cs_config.tree.configuration import Configuration
from matcher.claim.claim_request import ClaimResult
from matcher.claim.matcher import Matcher
from matcher.claim.snapshot import OpenPlaceCache
from matcher.explain import blockers
from matcher.limits import compiled_rules, running_limits
from matcher.limits.compiled_rules import RuleFollower
from matcher.request.match_request import MatchCaller, MatchResult
from taskqueue.db import database
from taskqueue.pilots import pilots
from taskqueue.pilots.pilots import FirstRequest
from taskqueue.schema.tables import attempts, scope_rules
from taskqueue.sites import scope_rules as rules
from tests.support import databases, earlier_release, scope_counters
from tests.support.claimers import claiming, run
from tests.support.factories import queued_jobs
from tests.support.factories.queued_jobs import LONG

ROOT = Path(__file__).parents[4]
LIMITS = "Operations: {{Defaults: {{JobScheduling: {{RunningLimit: {{A.B.ch: {limits}}}}}}}}}\n"


def _config(limits: str, version: int = 1) -> Configuration:
    return queued_jobs.grid(queued_jobs.GRID + LIMITS.format(limits=limits), version)


def _matcher(engine: Engine, now: datetime, limits: str) -> Matcher:
    return queued_jobs.matcher(engine, now, _config(limits))


def _put(
    engine: Engine,
    now: datetime,
    count: int,
    cores: tuple[int, int | None] = (1, 1),
    *,
    group: str = "",
    whole_node: bool = False,
) -> list[int]:
    asked = replace(
        queued_jobs.EVERYWHERE, processors_min=cores[0], processors_max=cores[1], whole_node=whole_node
    )
    return queued_jobs.put(engine, now, count, asked=asked, job_type="MC", job_group=group)


def _ask(matcher: Matcher, count: int = 1, cores: int | None = 8, **said: object) -> ClaimResult:
    stated = {**said} if cores is None else {**said, "NumberOfProcessors": cores}
    asked = queued_jobs.request(**{**queued_jobs.at(LONG), "count": count, **stated})  # type: ignore[arg-type]
    return queued_jobs.serve(matcher, asked)


def _ask_as_pilot(
    matcher: Matcher, stamp: str = "s", count: int = 1, cores: int | None = None
) -> ClaimResult:
    stated = {} if cores is None else {"NumberOfProcessors": cores}
    caller = MatchCaller(subject=f"pilot:{stamp}", vos=frozenset({"lhcb"}), stamp=stamp, queue=LONG)
    asked = queued_jobs.request(caller=caller, count=count, **queued_jobs.at(LONG), **stated)  # type: ignore[arg-type]
    return queued_jobs.serve(matcher, asked)


def _begin_pilots(engine: Engine, now: datetime, **cores: int) -> None:
    first = [
        FirstRequest(stamp=stamp, vo="lhcb", queue=LONG, processors=number) for stamp, number in cores.items()
    ]
    with database.writing(engine) as conn:
        pilots.bind_queues(conn, first, now=now)


def _count(engine: Engine, config: Configuration) -> None:
    """Put the limits in force, however many steps that takes on a busy machine."""
    follower = RuleFollower(engine)
    while not follower.follow(config):
        pass


def _sizes(*looks: ClaimResult) -> list[int | None]:
    return [job.allotment.processors for look in looks for job in look.claimed]


def test_jobs_run_up_to_the_cores_and_smaller_ones_pass(engine: Engine, now: datetime) -> None:
    _put(engine, now, 4, (8, 8))
    matcher = _matcher(engine, now, "{JobType: {MC: {cores: 20}}}")
    looks = [_ask(matcher) for _ in range(3)]
    assert _sizes(*looks) == [8, 8]
    assert looks[-1].refused == "limits"
    _put(engine, now, 6)
    looks += [_ask(matcher) for _ in range(6)]
    assert _sizes(*looks) == [8, 8, 1, 1, 1, 1]
    assert scope_counters.agree(engine)
    queued_jobs.release(engine, now, looks[0].claimed[0].lease)
    assert _sizes(*(_ask(matcher) for _ in range(4))) in ([8], [1, 1])
    assert scope_counters.agree(engine)


@pytest.mark.parametrize(
    ("bounds", "given"), [("{count: 2, cores: 100}", 2), ("{count: 9, cores: 12}", 3), ("{count: 2}", 2)]
)
def test_a_limit_on_jobs_and_one_on_cores_hold_together(
    engine: Engine, now: datetime, bounds: str, given: int
) -> None:
    _put(engine, now, 9, (4, 4), group="g")
    matcher = _matcher(engine, now, f"{{JobGroup: {{G: {bounds}}}}}")
    assert len(_sizes(*(_ask(matcher) for _ in range(5)))) == given


def test_a_job_counts_with_the_cores_that_it_is_given(engine: Engine, now: datetime) -> None:
    _put(engine, now, 9, (1, 6))
    matcher = _matcher(engine, now, "{JobType: {MC: {cores: 15}}}")
    assert _sizes(*(_ask(matcher, cores=8) for _ in range(3))) == [6, 6], "six would be more than are left"
    assert _sizes(*(_ask(matcher, cores=2) for _ in range(3))) == [2], "one with less room takes less"
    assert scope_counters.agree(engine)


def test_a_job_with_a_node_of_its_own_counts_with_all_of_it(engine: Engine, now: datetime) -> None:
    _put(engine, now, 3, whole_node=True)
    matcher = _matcher(engine, now, "{JobType: {MC: {cores: 20}}}")
    assert _sizes(*(_ask(matcher, cores=8, WholeNode=True) for _ in range(3))) == [8, 8]
    assert scope_counters.agree(engine)


def test_several_jobs_of_one_request_get_the_fewest_cores_and_hold_the_limit(
    engine: Engine, now: datetime
) -> None:
    _put(engine, now, 9, (2, None))
    matcher = _matcher(engine, now, "{JobType: {MC: {cores: 7}}}")
    assert _sizes(_ask(matcher, count=9, cores=32)) == [2, 2, 2]
    assert scope_counters.agree(engine)


@pytest.mark.parametrize("stated", [None, 8])
def test_a_pilot_with_jobs_gets_another_that_the_limit_has_room_for(
    engine: Engine, now: datetime, stated: int | None
) -> None:
    """The next job gets the rest of the slot, which is less than the pilot states."""
    _put(engine, now, 1, (6, 6))
    config = _config("{VO: {lhcb: {cores: 9}}}")
    matcher = queued_jobs.matcher(engine, now, config)
    _begin_pilots(engine, now, s=8)
    assert _sizes(_ask_as_pilot(matcher, cores=8)) == [6]
    _put(engine, now, 1, (1, 8))
    matcher = queued_jobs.matcher(engine, now, config)  # no place counts as open
    assert _sizes(_ask_as_pilot(matcher, cores=stated)) == [2]
    assert scope_counters.agree(engine)


def test_the_check_before_a_claim_refuses_for_a_limit_what_the_claim_would(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(17)
    for cores in ((1, 1), (1, 8), (2, None), (3, 4), (1, None)):
        _put(engine, now, 30, cores)
    _put(engine, now, 30, whole_node=True)
    sizes = {f"p{number}": draw.randrange(1, 9) for number in range(9)}
    _begin_pilots(engine, now, **sizes)
    refused = given = 0
    for step in range(120):
        config = _config(f"{{VO: {{lhcb: {{cores: {draw.randrange(4, 40)}}}}}}}", version=step + 1)
        matcher = queued_jobs.matcher(engine, now, config, step)
        stamp, count = draw.choice(list(sizes)), draw.choice((1, 1, 2, 9))
        cores = draw.choice((None, sizes[stamp], 8))
        look = _ask_as_pilot(matcher, stamp, count, cores)
        given += len(look.claimed)
        if look.refused == "limits":
            refused += 1
            with monkeypatch.context() as patched:  # the claim alone decides
                patched.setattr(OpenPlaceCache, "is_open", lambda *_: True)
                again = _ask_as_pilot(matcher, stamp, count, cores)
            # No reason: it would not fit beside the pilot's jobs, either.
            assert not again.claimed, (step, stamp, count, cores)
            assert again.refused in ("limits", None)
        elif look.claimed and draw.random() < 0.7:
            queued_jobs.release(engine, now, look.claimed[0].lease)
    assert refused > 10
    assert given > 10
    assert scope_counters.agree(engine)


def test_a_resource_without_stated_processors_gives_each_job_what_it_needs(
    engine: Engine, now: datetime
) -> None:
    _put(engine, now, 9)
    matcher = _matcher(engine, now, "{JobType: {MC: {cores: 3}}}")
    assert len(_ask(matcher, count=9, cores=None).claimed) == 3
    assert scope_counters.agree(engine)


def test_the_loop_gives_no_more_than_the_cores(postgresql: Engine, now: datetime) -> None:
    for cores in ((1, 1), (2, 4), (3, 3)):
        _put(postgresql, now, 20, cores)
    config = _config("{JobType: {MC: {count: 40, cores: 23}}, CEs: {ce1: {VO: {lhcb: {cores: 21}}}}}")
    matcher = queued_jobs.matcher(postgresql, now, config)
    with claiming(postgresql, matcher) as process:

        async def work() -> list[MatchResult]:
            asked = [queued_jobs.request(**queued_jobs.at(LONG), NumberOfProcessors=4) for _ in range(31)]  # type: ignore[arg-type]
            first = await process.ask(asked[0])
            return [first, *await asyncio.gather(*map(process.ask, asked[1:]))]

        answers = run(work, process)
        assert process.in_loop > 0
    has = databases.scalar(postgresql, select(func.sum(func.coalesce(attempts.c.processors, 1))))
    assert has in (20, 21), "a job of one core is left over only if none waits"
    assert {answer.reason for answer in answers if not answer.matches} == {"limits"}
    assert scope_counters.agree(postgresql)


def test_nothing_beyond_a_new_limit_is_given_before_its_rules_are_stored_and_counted(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first claim with a new configuration goes on where its rules could not all be counted yet."""
    _put(engine, now, 9, (4, 4))
    before = _config("{JobType: {Merge: 1}}")
    matcher = queued_jobs.matcher(engine, now, before)
    assert _sizes(_ask(matcher), _ask(matcher)) == [4, 4]
    after = _config("{JobType: {MC: {cores: 12}}, VO: {lhcb: 4}}", version=2)
    matcher = queued_jobs.matcher(engine, now, after)
    answers: list[bool] = []
    follow = RuleFollower.follow

    def record(self: RuleFollower, config: Configuration) -> bool:
        answers.append(follow(self, config))
        return answers[-1]

    with monkeypatch.context() as patched:
        patched.setattr(RuleFollower, "follow", record)
        patched.setattr(RuleFollower, "_count_new", lambda *_: False)
        look = _ask(matcher)
    assert set(answers) == {False}
    assert (look.claimed, look.in_other_hands) == ((), True), "the request stays until they are counted"
    _count(engine, after)
    assert _sizes(*(_ask(matcher) for _ in range(3))) == [4]
    assert scope_counters.agree(engine)


def test_a_limit_whose_cores_were_never_counted_gives_nothing_until_they_are(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put(engine, now, 9, (4, 4))
    assert _ask(_matcher(engine, now, "{JobType: {MC: 5}}")).claimed
    databases.execute(engine, update(scope_rules).values(cores=None))  # as the migration leaves it
    config = _config("{JobType: {MC: {count: 5, cores: 9}}}", version=2)
    matcher = queued_jobs.matcher(engine, now, config)
    with monkeypatch.context() as patched:
        patched.setattr(RuleFollower, "_count_new", lambda *_: False)
        assert _ask(matcher).in_other_hands
    _count(engine, config)
    assert _sizes(*(_ask(matcher) for _ in range(3))) == [4]


def test_a_process_of_the_last_release_gives_nothing_where_a_limit_bounds_cores(
    engine: Engine, database_url: str, now: datetime, tmp_path: Path
) -> None:
    _put(engine, now, 9)
    RuleFollower(engine).follow(_config("{JobType: {MC: {cores: 5}}}", version=5))
    with database.reading(engine) as conn:
        assert [rule.format for rule in rules.list_rules(conn)] == [rules.FORMAT_OF_CORES]
    (tmp_path / "trees.yaml").write_text(queued_jobs.GRID)
    program = earlier_release.unpack(tmp_path / "program")
    script = ROOT / "tests" / "support" / "scripts" / "earlier_matcher.py"
    trees = str(tmp_path / "trees.yaml")
    words = [sys.executable, "-P", str(script), database_url, trees, now.isoformat(), "1", "3"]
    run_program(words, env={"PYTHONPATH": str(program)}, check=True, capture_output=True)
    assert databases.count(engine, attempts) == 0


def test_the_state_of_a_limit_tells_its_jobs_and_cores(engine: Engine, now: datetime) -> None:
    _put(engine, now, 3, (8, 8))
    limits = "{JobType: {MC: {count: 40, cores: 20}}}"
    matcher = _matcher(engine, now, limits)
    for _ in range(2):
        _ask(matcher)
    for config in (
        _config(limits),
        _config("{JobType: {mc: {count: 40, cores: 17}}, VO: {lhcb: {cores: 16}}}"),
    ):
        with database.reading(engine) as conn:
            [states] = running_limits.read_conditions(conn, config, ["A.B.ch"], now).values()
        assert [state.excludes(8) for state in states] == [True] * len(states)
        assert all("has 2 jobs and 16 cores with" in state.why for state in states)
    assert {state.rule.about: state.full for state in states} == {"JobType mc": False, "VO lhcb": True}
    assert any(state.why.endswith("its RunningLimit is 40 and 17 cores") for state in states)


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ("{count: -1}", "-1 is not a number of jobs"),
        ("{cores: many}", "'many' is not a number of cores"),
        ("{cores: 1, Max: 2}", "MC/Max: allowed are count and cores, a limit with a ramp has neither"),
        ("{}", "MC: empty, allowed are count and cores, or Curb, Max, Interval"),
        ("{Cores: 1}", "did you mean cores?"),
    ],
)
def test_wrong_bounds_are_told(bounds: str, said: str) -> None:
    with pytest.raises(Exception, match="RunningLimit") as caught:
        _config(f"{{JobType: {{MC: {bounds}}}}}")
    assert said in str(caught.value)


def test_a_limit_on_jobs_is_stored_as_processes_of_1_0_read_it() -> None:
    [[one]] = compiled_rules.list_rules(_config("{JobType: {MC: 5}}")).values()
    [[same]] = compiled_rules.list_rules(_config("{JobType: {MC: {count: 5}}}")).values()
    assert one == same
    assert (one.format, one.definition) == (
        rules.FORMAT,
        '{"curb": null, "exempt": [], "interval": 0.0, "most": 5, "value": "MC"}',
    )


@pytest.mark.parametrize(
    "unknown", [pytest.param({"counted": False}, id="jobs"), pytest.param({"cores": None}, id="cores")]
)
def test_a_limit_that_is_not_counted_yet_is_named_as_closed(
    engine: Engine, now: datetime, unknown: dict[str, bool | None]
) -> None:
    """As for a claim, which takes nothing there."""
    config = _config("{JobType: {MC: {cores: 4}}}")
    follower = RuleFollower(engine)
    while not follower.follow(config):
        pass

    def read() -> tuple[bool, str]:
        with database.reading(engine) as conn:
            [limit] = running_limits.read_conditions(conn, config, ["A.B.ch"], now)["A.B.ch"]
            [at_queue] = [*blockers.list_closures_at_queue(conn, config, LONG, now, vos=None), ""][:1]
            return limit.excludes(1), at_queue

    assert read() == (False, "")
    databases.execute(engine, update(scope_rules).values(unknown))
    is_closed, text = read()
    assert is_closed
    assert text.endswith(
        "its RunningLimit is 4 cores: it takes none until these are counted, within a minute"
    )
