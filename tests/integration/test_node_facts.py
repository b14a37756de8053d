"""Jobs whose requirements only the nodes of a queue can decide: who gets them, and who does not."""

from datetime import datetime
from random import Random

import pytest
from sqlalchemy import Engine

from agents import pools as pool_agent
from cs_config.address import QueueAddress
from matcher import matcher as matching
from matcher.matcher import Matcher
from matcher.requests import MatchRequest
from optimizers import batch
from requirements.errors import InvalidResource, PilotageError
from taskqueue import database
from tests import submitted, waiting
from tests.submitted import submit
from tests.waiting import at, request

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
#: Source: gLite, "DIY approach".
BENCHMARK = (
    "other.GlueHostBenchmarkSI00 > 500 ? other.GlueCEPolicyMaxCPUTime > 1000"
    " : other.GlueCEPolicyMaxCPUTime > 2000"
)


class Grid:
    """A configuration that changes, with the matcher and the agents that follow it."""

    def __init__(self, engine: Engine, now: datetime, text: str = GRID) -> None:
        self.engine, self.now = engine, now
        self.config = submitted.grid(text)
        self.matcher = Matcher(engine, lambda: self.config, lambda: now, Random(1))

    def submit(self, requirements: object) -> int:
        jobs = [{"Executable": "a.sh", "Requirements": requirements}]
        ids = submit(self.engine, self.config, self.now, *jobs)
        batch.optimize(self.engine, self.config, ids, now=self.now)
        return ids[0]

    def change(self, text: str) -> None:
        """A new version, before any agent has seen it."""
        self.config = submitted.grid(text, self.config.version + 1)

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
        given = matching.answer(asked, look)
        return given.reason or [match.job_id for match in given.matches]


@pytest.fixture
def grid(engine: Engine, now: datetime) -> Grid:
    return Grid(engine, now)


def test_a_job_goes_to_the_node_that_has_what_it_asks(grid: Grid) -> None:
    job = grid.submit({"OS": "el8"})
    assert grid.ask(at(MIXED), OS="el9") == "node"
    assert grid.ask(at(MIXED), OS="el8") == [job]


def test_without_facts_nothing_is_given_that_they_decide(grid: Grid) -> None:
    job = grid.submit({"OS": "el9"})
    assert grid.ask(at(MIXED)) == "node"
    assert grid.ask(at(MIXED), Fast=True) == "node"
    assert grid.ask(at(PLAIN)) == [job]


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
    with database.writing(engine) as conn:
        [job] = waiting.put(conn, now)
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


def pool_of(grid: Grid, job_id: int) -> str:
    pool = submitted.job(grid.engine, job_id).submit_pool
    assert pool is not None
    return pool


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ("el8", "NodeFacts: is str, allowed is a record"),
        ({"OS": {"a": 1}}, "NodeFacts/OS: a record"),
        ({"OS": float("nan")}, "NodeFacts/OS: nan is not a number"),
        ({"OS": "a", "os": "b"}, "NodeFacts/os: named twice"),
        ({"": 1}, "NodeFacts: '' is no name of a fact"),
        ({"x" * 101: 1}, "is no name of a fact"),
        ({f"x{n}": 1 for n in range(201)}, "NodeFacts: 201 facts, allowed are 200"),
        ({"OS": "x" * 20_000}, "NodeFacts: 20002 characters, allowed are 16384"),
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
