"""Jobs whose requirements only the nodes of a queue can decide: who gets them, and who does not."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from agents import pools as pool_agent
from cs_config.tree.address import QueueAddress
from matcher import demand
from matcher.claim import in_doubt_claims
from matcher.claim import matcher as matching
from matcher.claim.claim_loop import Results
from matcher.claim.claim_request import ClaimRequest, ClaimResult
from matcher.claim.matcher import Matcher
from matcher.request import node_checks
from matcher.request.match_request import MatchCaller, MatchRequest, Unserved
from matcher.request.node_checks import NodeChecks
from optimizers.chain import batch
from requirements import evaluator
from requirements.canonical import Requirements
from requirements.classad.expression import parse_expression
from requirements.errors import InvalidResource, PilotageError
from requirements.record import Declarations, parse_record
from requirements.resource import Location
from taskqueue.db import database
from taskqueue.leases import assignment
from taskqueue.pools import mapping
from taskqueue.sites import reservations
from taskqueue.sites.reservations import Advertisement
from tests.support import databases
from tests.support.factories import queued_jobs, stored_rows, submitted_jobs
from tests.support.factories.queued_jobs import at, request
from tests.support.factories.submitted_jobs import submit

GRID = """
Resources:
  Sites:
    A.B.ch:
      MaxRAM: 4000
      CEs:
        ce:
          Queues:
            mixed:
              maxCPUTime: 1500
              NodeAttributes: {GlueHostBenchmarkSI00: unknown, OS: [el8, el9], Fast: [true, false]}
            plain: {OS: el9}
            other: {NodeAttributes: {OS: [el9, el7]}}
"""
MIXED = QueueAddress(site="A.B.ch", ce="ce", queue="mixed")
PLAIN = QueueAddress(site="A.B.ch", ce="ce", queue="plain")
NOTHING = Declarations()
#: Source: gLite, "DIY approach".
BENCHMARK = (
    "other.GlueHostBenchmarkSI00 > 500 ? other.GlueCEPolicyMaxCPUTime > 1000"
    " : other.GlueCEPolicyMaxCPUTime > 2000"
)


class Grid:
    """A configuration that changes, with the matcher and the agents that follow it."""

    def __init__(self, engine: Engine, now: datetime, text: str = GRID) -> None:
        self.engine, self.now = engine, now
        self.config = submitted_jobs.grid(text)
        self.matcher = Matcher(engine, lambda: self.config, lambda: self.now, Random(1))

    def change_before_claim(self, text: str) -> list[ClaimResult]:
        """Let configuration and mapping change between the next look and its claim; what that claim finds."""
        claims, found = self.matcher._claims, list[ClaimResult]()
        claim = claims.claim

        def change_first(requests: Sequence[ClaimRequest], *, now: datetime) -> Results:
            claims.claim = claim  # type: ignore[method-assign]
            self.change(text)
            self.refresh()
            results = claim(requests, now=now)
            found.extend(each for each in results.values() if isinstance(each, ClaimResult))
            return results

        claims.claim = change_first  # type: ignore[method-assign]
        return found

    def submit(self, requirements: object, vo: str = "lhcb") -> int:
        jobs = [{"Executable": "a.sh", "Requirements": requirements}]
        ids = submit(self.engine, self.config, self.now, *jobs, submitter=replace(submitted_jobs.ANN, vo=vo))
        batch.optimize(self.engine, self.config, ids, now=self.now)
        return ids[0]

    def change(self, text: str) -> None:
        """A new version, before any agent has seen it."""
        self.config = submitted_jobs.grid(text, self.config.version + 1)

    def refresh(self) -> None:
        assert pool_agent.cycle(self.engine, self.config, now=self.now, holder="me") is not None

    def ask(self, place: dict[str, object], **facts: object) -> list[int] | str:
        """The jobs that a pilot with these facts gets, or why none."""
        asked = request(NodeFacts=facts, **place) if facts else request(**place)
        return self.answer(asked)

    def answer(self, asked: MatchRequest) -> list[int] | str:
        [look] = self.matcher.serve([asked])
        if isinstance(look, PilotageError):
            raise look
        given = matching.build_answer(asked, look)
        return given.reason or [match.job_id for match in given.matches]


@pytest.fixture
def grid(engine: Engine, now: datetime) -> Grid:
    return Grid(engine, now)


def test_a_job_goes_to_the_node_that_has_what_it_asks(grid: Grid) -> None:
    job = grid.submit({"OS": "el8"})
    assert grid.ask(at(MIXED), OS="el9") == "node"
    assert grid.ask(at(MIXED), OS="el8") == [job]


def test_jobs_that_have_gone_need_no_other_node(grid: Grid) -> None:
    job, other = grid.submit({"OS": "el8"}), grid.submit({"OS": "el8", "Fast": True})
    for each in (job, other):
        assert grid.ask(at(MIXED), OS="el9") == "node"
        stored_rows.kill(grid.engine, grid.now, each)
    assert grid.ask(at(MIXED), OS="el9") == "no_task_queue"
    elsewhere = grid.submit({"OS": "el9", "MaxRAM": 2000})
    assert grid.ask(at(MIXED), OS="el9") == [elsewhere]
    assert grid.ask(at(MIXED), OS="el9") == "no_task_queue"


def test_idle_pilots_of_one_batch_read_once_whether_jobs_still_wait(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "_FRESH", math.inf)  # however long the machine takes between two batches
    for memory in (1000, 2000):
        grid.submit({"OS": "el8", "MaxRAM": memory})
    statements = databases.record_statements(grid.engine)
    read = []
    for pilots in (1, 20):
        asked = [request(NodeFacts={"OS": "el9"}, **at(MIXED)) for _ in range(pilots)]
        grid.matcher.serve(asked[:1])
        statements.clear()
        assert {each.refused for each in grid.matcher.serve(asked) if isinstance(each, ClaimResult)} == {
            "node"
        }
        read.append(len([text for text in statements if "FROM task_queues" in text]))
    assert read[0] == read[1] > 0


def test_a_job_that_its_queue_does_not_admit_waits_for_no_other_node(engine: Engine, now: datetime) -> None:
    grid = Grid(
        engine,
        now,
        GRID.replace(
            "            mixed:",
            "            mixed:\n              Requirements: other.NumberOfProcessors >= 2",
        ),
    )
    grid.submit({"OS": "el8"})
    assert grid.ask(at(MIXED), OS="el9") == "no_task_queue"


def test_checks_of_a_vo_take_a_share_of_processor_time_and_go_on_where_they_ended(grid: Grid) -> None:
    jobs = {grid.submit({"OS": "el8", "MaxRAM": 1000 + number}) for number in range(5)}
    of_other = grid.submit({"OS": "el8"}, vo="atlas")
    times, used = {"now": 0.0}, itertools.count(0, node_checks.BURST * 0.4)  # of each check
    checks = NodeChecks(clock=lambda: times["now"], used=lambda: next(used))
    grid.matcher._memory.places._checks = checks
    other = MatchCaller(subject="other", vos=frozenset({"atlas"}))

    given = [grid.ask(at(MIXED), OS="el8") for _ in range(4)]
    assert given[3] == "node"  # three were checked
    assert grid.answer(request(caller=other, NodeFacts={"OS": "el8"}, **at(MIXED))) == [of_other]
    times["now"] = node_checks.BURST / node_checks.SHARE
    given += [grid.ask(at(MIXED), OS="el8") for _ in range(3)]
    assert {each[0] for each in given if isinstance(each, list)} == jobs
    assert given[6] == "no_task_queue"


def test_without_facts_nothing_is_given_that_they_decide(grid: Grid) -> None:
    job = grid.submit({"OS": "el9"})
    assert grid.ask(at(MIXED)) == "node"
    assert grid.ask(at(MIXED), Fast=True) == "node"
    assert grid.ask(at(PLAIN)) == [job]


FORWARDING = GRID.replace(
    "            plain:",
    """              Forwarding:
                Vocabulary: Slurm
                Attributes:
                  OS: {features: {el8: rocky8, el9: rocky9}}
            plain:""",
)


def test_who_submits_to_the_batch_system_gets_jobs_whose_flags_say_all_of_it(grid: Grid) -> None:
    grid.change(FORWARDING)
    grid.refresh()
    grid.submit('other.OS == "el8" && other.Fast')  # nothing says Fast
    job = grid.submit({"OS": "el8"})
    anywhere = grid.submit({"MaxRAM": 2000})
    place = {**at(MIXED), "SubmitFlags": True}
    found = []
    for number in range(3):
        asked = replace(request(**place), request_id=f"r{number}")
        for _ in range(2):  # a repetition gets the same
            [look] = grid.matcher.serve([asked])
            assert not isinstance(look, PilotageError)
        found.append([(match.job_id, match.flags) for match in look.claimed] or look.refused)
        assert {match.owner for match in look.claimed} <= {"ann"}
    assert sorted(found[:2]) == [[(job, ("--constraint=rocky8",))], [(anywhere, ())]]
    assert found[2] == "node"


@pytest.mark.parametrize(
    "later",
    [
        GRID,
        FORWARDING.replace("rocky8", "rocky8, el9: rocky8").replace(", el9: rocky9", ""),
        FORWARDING.replace("mixed:", "new:"),
    ],
)
def test_a_repetition_gets_no_job_without_the_flags_that_it_needs(grid: Grid, later: str) -> None:
    grid.change(FORWARDING)
    grid.refresh()
    job = grid.submit({"OS": "el8"})
    anywhere = grid.submit({"MaxRAM": 2000})
    asked = replace(request(**at(MIXED), SubmitFlags=True, JobID=job), request_id="r")
    assert grid.answer(asked) == [job]
    grid.change(later)
    for _ in range(2):
        again, other = grid.matcher.serve([asked, request(**at(PLAIN))])
        assert isinstance(again, PilotageError) or not again.claimed
        assert isinstance(other, ClaimResult)
        if other.claimed:
            assert [match.job_id for match in other.claimed] == [anywhere]
    assert submitted_jobs.job(grid.engine, job).status == "Waiting"
    grid.change(FORWARDING)
    grid.refresh()
    assert grid.answer(asked) == [job]


@pytest.mark.parametrize("has_others", [False, True])
def test_flags_that_cannot_be_read_cost_no_job(
    grid: Grid, monkeypatch: pytest.MonkeyPatch, has_others: bool
) -> None:
    grid.change(FORWARDING)
    grid.refresh()
    jobs = {grid.submit({"OS": "el8"}), grid.submit({"OS": "el9"})}
    submits, other = request(**at(MIXED), SubmitFlags=True), request(**at(PLAIN))

    def fail(*_: object) -> None:
        raise OperationalError("SELECT", {}, Exception("the connection is lost"))

    with monkeypatch.context() as patch:
        patch.setattr(mapping, "read_pools_and_owners", fail)
        if has_others:
            lost, found = grid.matcher.serve([submits, other])
            assert isinstance(lost, Unserved)
            assert isinstance(found, ClaimResult)
            jobs -= {match.job_id for match in found.claimed}
            assert len(jobs) == 1
        else:
            with pytest.raises(OperationalError):
                grid.matcher.serve([submits])
    for each in grid.matcher.doubts.due():
        with database.writing(grid.engine) as conn:
            assert in_doubt_claims.release_if_claimed(conn, each.request, each.leases, now=grid.now)
    assert {submitted_jobs.job(grid.engine, each).status for each in jobs} == {"Waiting"}


def test_the_claim_of_who_submits_checks_the_configuration_again(grid: Grid) -> None:
    grid.change(FORWARDING)
    grid.refresh()
    grid.submit({"OS": "el8"})
    found = grid.change_before_claim(GRID)
    assert grid.ask({**at(MIXED), "SubmitFlags": True}) in ("node", "no_task_queue")
    assert [each.claimed for each in found] == [()]


def test_a_value_that_no_node_has_makes_the_queue_not_eligible(grid: Grid) -> None:
    grid.submit({"OS": "el7"})
    assert grid.ask(at(MIXED), OS="el7") == "no_task_queue"


def test_the_example_of_the_benchmark(grid: Grid) -> None:
    job = grid.submit(BENCHMARK)
    assert grid.ask(at(MIXED), GlueHostBenchmarkSI00=400) == "node"
    assert grid.ask(at(MIXED), GlueHostBenchmarkSI00=501) == [job]


def test_facts_do_not_overrule_what_the_queue_says(grid: Grid) -> None:
    grid.submit({"MaxRAM": 8000})
    grid.submit({"MaxRAM": 8000, "OS": "el9"})
    assert grid.ask(at(MIXED), MaxRAM=16000, OS="el9") == "no_task_queue"
    assert grid.ask(at(PLAIN), MaxRAM=16000, OS="el9") == "no_task_queue"


def test_what_the_node_does_not_state_is_unknown_not_absent(grid: Grid) -> None:
    grid.submit("isUndefined(other.GlueHostBenchmarkSI00)")
    assert grid.ask(at(MIXED), OS="el9") == "node"
    assert grid.ask(at(MIXED), GlueHostBenchmarkSI00=None) != "node"


def test_a_job_without_requirements_asks_for_no_facts(grid: Grid, engine: Engine, now: datetime) -> None:
    [job] = queued_jobs.put(engine, now)
    grid.submit({"OS": "el8"})
    assert grid.ask(at(MIXED)) == [job]
    assert grid.ask(at(MIXED)) == "node"


def test_a_pilot_without_a_queue_must_do_at_every_queue_of_its_place(grid: Grid) -> None:
    job = grid.submit({"OS": "el8"})
    pool = pool_of(grid, job)
    place: dict[str, object] = {"Site": "A.B.ch", "SubmitPool": [pool]}
    assert grid.ask(place) == "node"
    assert grid.ask(place, OS="el9") == "node"
    assert grid.ask({**place, "GridCE": "ce"}, OS="el8") == [job]
    both = grid.submit('other.OS == "el9" || other.Fast')
    place = {"Site": "A.B.ch", "SubmitPool": [pool_of(grid, both)]}
    assert grid.ask(place, Fast=True, OS="el8") == "node"
    assert grid.ask(place, OS="el9") == [both]


def test_a_claim_without_a_queue_asks_for_the_check_at_every_queue(grid: Grid) -> None:
    job = grid.submit({"OS": "el9"})
    with database.writing(grid.engine) as conn:
        task_queue = queued_jobs.task_queue_of(conn, job)
        site, version = Location(site="A.B.ch"), grid.config.version

        def left(place: Location) -> bool:
            return bool(assignment.find_nonempty(conn, [task_queue], place=place))

        assert not left(site)
        assert not left(replace(site, ce="ce", checked=version + 1))
        assert left(replace(site, checked=version))
        assert left(replace(site, ce="ce", queue="plain"))
        assert not left(replace(site, ce="ce", queue="mixed"))
        assert assignment.take_jobs(conn, [task_queue], 1, place=site, now=grid.now) == []
        [taken] = assignment.take_jobs(
            conn, [task_queue], 1, place=replace(site, checked=version), now=grid.now
        )
        assert taken.job_id == job
        conn.rollback()


def pool_of(grid: Grid, job_id: int) -> str:
    pool = submitted_jobs.job(grid.engine, job_id).submit_pool
    assert pool is not None
    return pool


@pytest.mark.parametrize(
    "meanwhile",
    [
        GRID.replace("OS: [el8, el9]", "OS: unknown"),
        GRID.replace("CEs:", "Name: another\n      CEs:", 1),
        GRID + "Operations: {Defaults: {JobDescription: {OS: {type: string, resource: Distribution}}}}",
        GRID.replace("OS: [el8, el9], ", "").replace("maxCPUTime: 1500", "OS: el9"),
    ],
)
def test_a_configuration_that_changes_between_look_and_claim_gives_nothing_away(
    grid: Grid, meanwhile: str
) -> None:
    grid.submit({"OS": "el8"})
    found = grid.change_before_claim(meanwhile)
    grid.ask(at(MIXED), OS="el8")  # the second try knows the new configuration
    assert [each.claimed for each in found] == [()]


def test_a_pool_that_becomes_undecided_between_look_and_claim_is_not_given_away(grid: Grid) -> None:
    job = grid.submit({"OS": "el9"})
    text = GRID.replace("plain: {OS: el9}", "plain: {NodeAttributes: {OS: [el9, el8]}}")
    found = grid.change_before_claim(text)
    assert grid.ask(at(PLAIN), OS="el8") == "node", "as the second try finds"
    assert [each.claimed for each in found] == [()]
    assert grid.ask(at(PLAIN), OS="el9") == [job]


def test_a_change_of_anything_else_costs_a_try_only(grid: Grid) -> None:
    job = grid.submit({"OS": "el8"})
    assert grid.ask(at(MIXED), OS="el9") == "node"
    grid.change(GRID + "Operations: {Defaults: {Pools: {RefreshInterval: 901}}}")
    assert grid.ask(at(MIXED), OS="el8") == "node"
    grid.refresh()
    assert grid.ask(at(MIXED), OS="el8") == [job]


def test_a_matcher_that_is_behind_gives_away_what_is_decided_only(grid: Grid) -> None:
    first, _ = grid.submit({"OS": "el9"}), grid.submit({"OS": "el8"})
    behind = grid.config
    grid.change(GRID.replace("unknown", "[400, 500]"))
    grid.refresh()
    grid.config = behind
    assert grid.ask(at(MIXED), OS="el8") == "node"
    assert grid.ask(at(PLAIN)) == [first]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ("el8", "NodeFacts: is str, allowed is a record"),
        ({"OS": {"a": 1}}, "NodeFacts/OS: a record"),
        ({"OS": float("nan")}, "NodeFacts/OS: nan is not a number"),
        ({"OS": "a", "os": "b"}, "NodeFacts/os: named twice"),
        ({"": 1}, "NodeFacts: '' is not a valid name of a fact"),
        ({"x" * 101: 1}, "is not a valid name of a fact"),
        ({f"x{n}": 1 for n in range(201)}, "NodeFacts: 201 facts, allowed are 200"),
        ({"OS": [""] * 1000, "Fast": True}, "NodeFacts: 1001 values, allowed are 1000"),
        ({"OS": "x" * 4_097}, "NodeFacts/OS: has 4097 characters, allowed are 4096"),
        ({"OS": ["x" * 4_000] * 5}, "NodeFacts: 20002 characters, allowed are 16384"),
    ],
)
def test_facts_that_are_none_are_refused_by_name(facts: object, said: str) -> None:
    with pytest.raises(InvalidResource) as refused:
        request(NodeFacts=facts)
    assert said in str(refused.value)


def test_unknown_facts_do_no_harm(grid: Grid) -> None:
    job = grid.submit({"OS": "el8"})
    asked = request(NodeFacts={"OS": "el8", "Moon": "full"}, **at(MIXED))
    assert asked.presented.warnings == ()
    assert grid.answer(asked) == [job]


#: Asked in all the ways in which a batch system was once told the wrong thing.
ASKED: tuple[object, ...] = (
    BENCHMARK,
    {"OS": ["el8", "el7"], "Fast": True},
    'other.OS == "el8" || other.GlueHostBenchmarkSI00 == 501',
    "!(other.GlueHostBenchmarkSI00 > 450.5)",
    'other.OS != "el9" && other.MaxRAM > 2000',
    'other.Fast ? other.OS == "el9" : other.GlueHostBenchmarkSI00 > 450.5',
    'other.OS =!= "el8"',
    "other.Fast == true && other.GlueHostBenchmarkSI00 > 200 * 2",
    "isUndefined(other.GlueHostBenchmarkSI00) || other.Fast",
)
_UNSTATED = object()
FACTS = [
    {name: value for name, value in zip(names, values, strict=True) if value is not _UNSTATED}
    for names in [("GlueHostBenchmarkSI00", "OS", "Fast")]
    for values in itertools.product(
        (400, 501, None, _UNSTATED), ("el8", "EL9", _UNSTATED), (True, False, _UNSTATED)
    )
]


def test_whoever_gets_a_job_has_all_that_it_asks_and_who_has_it_gets_it(grid: Grid) -> None:
    """Over all facts: with all stated exactly those who have it, with some only where no other matters."""
    by_pool = {pool_of(grid, grid.submit(asked)): asked for asked in ASKED}
    given = {}
    for number, facts in enumerate(FACTS):
        listed = demand.get_matching_task_queues(
            grid.matcher,
            request(NodeFacts={**facts, "Number": number}, **at(MIXED)).presented,
            MatchCaller(subject="pilot", vos=frozenset({"lhcb"})),
        )
        given[number] = {each.task_queue.requirement_class.submit_pool for each in listed}
    for number, facts in enumerate(FACTS):
        fitting = [set(_fitting(grid, by_pool, whole)) for whole in _completions(facts)]
        certain = set.intersection(*fitting)
        assert given[number] <= certain, facts
        if len(facts) == 3:
            assert given[number] == certain, facts
    assert {len(pools) for pools in given.values()} > {0, 1, 2, 3}


def test_what_is_claimed_has_all_that_it_asks(grid: Grid) -> None:
    by_pool = {}
    for asked in ASKED * 4:
        by_pool[pool_of(grid, grid.submit(asked))] = asked
    claimed = 0
    for facts in FACTS:
        got = grid.ask(at(MIXED), **facts, Moon="full")
        for job in got if isinstance(got, list) else ():
            claimed += 1
            for whole in _completions(facts):
                assert pool_of(grid, job) in _fitting(grid, by_pool, whole)
    assert claimed > len(FACTS) / 2


def _completions(facts: dict[str, object]) -> list[dict[str, object]]:
    """What a node that states these facts may be."""
    unknown = {"GlueHostBenchmarkSI00": (400, 501, None), "OS": ("el8", "el9"), "Fast": (True, False)}
    left = {name: values for name, values in unknown.items() if name not in facts}
    return [{**facts, **dict(zip(left, values, strict=True))} for values in itertools.product(*left.values())]


def _fitting(grid: Grid, by_pool: dict[str, object], facts: dict[str, object]) -> list[str]:
    """By the rules alone: the pools that a queue with exactly these parameters would be eligible for."""
    parameters = {
        **grid.config.ad(MIXED, "lhcb"),
        **{name: value for name, value in facts.items() if isinstance(value, str | bool | int)},
    }
    return [pool for pool, asked in by_pool.items() if evaluator.eligible(_read(asked), parameters, NOTHING)]


def _read(asked: object) -> Requirements:
    if isinstance(asked, str):
        return parse_expression(asked)
    assert isinstance(asked, dict)
    return parse_record(asked, NOTHING)


ADVERTISING = """
Resources:
  Sites:
    A.B.ch:
      NodeAttributes: {SAMStation: advertised, FreeDisk: advertised}
      CEs:
        ce:
          Queues:
            mixed: {NodeAttributes: {OS: [el8, el9]}}
            plain: {SAMStation: stated}
"""


def advertise(grid: Grid, scope: str, **attributes: object) -> None:
    new = Advertisement(attributes=attributes)
    with database.writing(grid.engine) as conn:
        assert reservations.accept_advertisement(conn, scope, new, now=grid.now)


@pytest.fixture
def advertising(engine: Engine, now: datetime) -> Grid:
    return Grid(engine, now, ADVERTISING)


def test_a_job_that_requires_what_a_site_advertises_is_given_while_that_is_valid(advertising: Grid) -> None:
    grid = advertising
    job = grid.submit('other.SAMStation == "dzero" && other.FreeDisk > 100')
    assert grid.ask(at(MIXED)) == "no_task_queue"
    advertise(grid, "A.B.ch", SAMStation="dzero", FreeDisk=50)
    assert grid.ask(at(MIXED)) == "no_task_queue"
    advertise(grid, "A.B.ch", SAMStation="dzero", FreeDisk=500)
    grid.now += timedelta(seconds=901)
    assert grid.ask(at(MIXED)) == "no_task_queue"
    advertise(grid, "A.B.ch", SAMStation="DZero", FreeDisk=500)
    assert grid.ask(at(PLAIN)) == "no_task_queue"  # the configuration states another value
    assert grid.ask(at(MIXED)) == [job]


def test_a_place_that_is_not_kept_is_read_ahead_of_one_claim_only(advertising: Grid) -> None:
    grid = advertising
    job = grid.submit("other.FreeDisk > 100")
    asked = replace(request(**at(MIXED)), cache_key="pilot")
    for _ in range(2):
        assert not grid.matcher.knows_place(asked)
        grid.matcher.read_place(asked)
        assert grid.matcher.knows_place(asked)
        assert grid.matcher.prepare_in_memory(asked) is None
        grid.change(ADVERTISING)
    advertise(grid, "A.B.ch", FreeDisk=500)
    grid.refresh()
    assert grid.answer(asked) == [job]


def test_an_expired_value_is_undefined(advertising: Grid) -> None:
    advertise(advertising, "A.B.ch", FreeDisk=50)
    job = advertising.submit("isUndefined(other.FreeDisk) || other.FreeDisk > 100")
    assert advertising.ask(at(MIXED)) == "no_task_queue"
    advertising.now += timedelta(seconds=901)
    assert advertising.ask(at(MIXED)) == [job]


def test_the_innermost_advertisement_decides_and_no_pilot_overrules_it(advertising: Grid) -> None:
    job = advertising.submit({"SAMStation": "dzero"})
    advertise(advertising, "A.B.ch", SAMStation="dzero")
    advertise(advertising, "a.b.CH/ce/mixed", samstation="cdf")
    assert advertising.ask(at(MIXED), SAMStation="dzero") == "no_task_queue"
    advertise(advertising, "A.B.ch/ce/mixed", CurrentJobs=1)
    assert advertising.ask(at(MIXED), SAMStation="cdf") == [job]


def test_a_node_has_to_fulfil_the_rest_of_what_is_advertised(advertising: Grid) -> None:
    job = advertising.submit({"SAMStation": "dzero", "OS": "el8"})
    advertise(advertising, "A.B.ch", SAMStation="dzero")
    assert advertising.ask(at(MIXED), OS="el9") == "node"
    assert advertising.ask(at(MIXED), OS="el8") == [job]


def test_an_advertisement_for_one_vo_replaces_no_fact_for_another(engine: Engine, now: datetime) -> None:
    text = """
Resources:
  Sites:
    A.B.ch:
      NodeAttributes: {SAMStation: unknown}
      VOs: {lhcb: {NodeAttributes: {SAMStation: advertised}}}
      CEs: {ce: {Queues: {mixed: {}}}}
"""
    grid = Grid(engine, now, text)
    advertise(grid, "A.B.ch", SAMStation="cdf")
    caller = MatchCaller(subject="pilot", vos=frozenset({"lhcb", "cms"}))
    for vo in ("lhcb", "cms"):
        grid.submit({"SAMStation": "cdf"}, vo)
    for fact, vos in (("dzero", {"lhcb"}), ("cdf", {"lhcb", "cms"})):
        asked = request(NodeFacts={"SAMStation": fact}, **at(MIXED)).presented
        listed = demand.get_matching_task_queues(grid.matcher, asked, caller)
        assert {each.task_queue.requirement_class.vo for each in listed} == vos, fact


def test_advertised_names_cost_nothing_where_no_job_requires_them(advertising: Grid) -> None:
    advertising.submit({"OS": "el8"})
    assert advertising.ask(at(MIXED), OS="el9") == "node"
    places = advertising.matcher._memory.places
    assert [each.lasting for each in places._cached.values()] == [True]


def test_a_place_is_kept_while_the_advertised_values_stay(
    advertising: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    advertising.submit({"SAMStation": "dzero"})
    read: list[object] = []
    list_mapped = mapping.list_mapped_pools

    def count(*arguments: Any) -> Any:
        read.append(arguments)
        return list_mapped(*arguments)

    monkeypatch.setattr(mapping, "list_mapped_pools", count)
    for number, value in enumerate(("cdf", "cdf", "atlas"), 1):
        advertise(advertising, "A.B.ch", SAMStation=value, FreeDisk=number)
        assert advertising.ask(at(MIXED)) == advertising.ask(at(MIXED)) == "no_task_queue"
        assert len(read) == max(1, number - 1)
    advertising.now += timedelta(seconds=901)
    assert advertising.ask(at(MIXED)) == advertising.ask(at(MIXED)) == "no_task_queue"
    assert len(read) == 3
