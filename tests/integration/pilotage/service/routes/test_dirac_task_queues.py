"""Task queues as DIRAC users know them, over the public interface: what shares one, weights, picks, limits.

Not observable here, and so tested below the interface only: the weights of single jobs (`real_priority`, in
the tests of shares; their order is seen here), task queues of equal definition (we have one, which weighs
what they weigh together), and how often the database is asked for counts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from agents import priorities
from agents.priorities import PriorityState
from taskqueue.db import clock as database_clock
from tests.support.factories import scenarios
from tests.support.factories.scenarios import Grid
from tests.support.service import Service, running

SHARES = scenarios.load("share_scenarios.yaml")
ANYTHING = {"CPUTime": 10**7, "Tag": "ANY"}
SOMEWHERE = {"Site": "LCG.Free.ch"}  # nothing is limited there

#: A VO for each case of each share, with and without background task queues.
WEIGHED = {
    f"weighed{number}": (share, background, case)
    for number, (share, background, case) in enumerate(
        (share, background, case)
        for share in SHARES["priority"]["shares"]
        for background in (True, False)
        for case in SHARES["priority"]["cases"]
    )
}
VOS = [f"vo{number}" for number in range(60)]
LIMITS = """
      MatchingDelay:
        Burst.Site.ch: {JobType: {MC: 0.5}, Burst: {JobType: {MC: 3}}}
        Returned.Site.ch: {JobType: {MC: 10, Simulation: 10}}
        Named.Site.ch: {JobType: {MC: 10}, Burst: {JobType: {MC: 2}}}
        Changed.Site.ch: {JobType: {MC: 10}}
        Group.Site.ch: {JobGroup: {"00012345": 10}}
        Empty.Site.ch: {JobType: {MC: 10}}
      RunningLimit:
        Limited.Site.ch: {JobType: {MC: 10}, CEs: {}}
"""
GROUPS = "\n".join(
    f"    {vo}_myGroup: {{VO: {vo}, JobShare: {share}, AllowBackgroundTQs: {str(background).lower()}}}"
    for vo, (share, background, _) in WEIGHED.items()
)
SEGMENTS = "\n".join(
    f"  {vo}: {{JobScheduling: {{taskQueueCPUTimeIntervals: {times}}}}}"
    for vo, times in [("vo1", [1000, 2000]), *((vo, [50000, 100000, 150000]) for vo in WEIGHED)]
)
CONFIG = f"""
Resources:
  Sites: {{}}
  Computing: {{OSCompatibility: {{el9: [el8, el7], el8: [el7]}}}}
Registry:
  VO: {{{", ".join(f"{vo}: {{}}" for vo in (*VOS, *WEIGHED))}}}
  Groups:
{GROUPS}
Operations:
  Defaults:
    JobDescription: {{CPUTime: {{min: 1, max: 100000000}}}}
    JobScheduling:{LIMITS}
{SEGMENTS}
"""


@dataclass
class Clock:
    """The time by which jobs are matched."""

    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __call__(self) -> datetime:
        return self.now

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture(scope="module")
def clock(any_engine: Engine) -> Iterator[Clock]:
    """One for each database; PostgreSQL's own is not asked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database_clock, "read_time", lambda _, now: now)
        yield Clock()


@pytest.fixture(scope="module")
def service(any_engine: Engine, tmp_path_factory: pytest.TempPathFactory, clock: Clock) -> Iterator[Service]:
    with running(any_engine, tmp_path_factory.mktemp("service"), CONFIG, clock=clock) as service:
        yield service


@pytest.fixture(scope="module")
def operator(service: Service) -> httpx.Client:
    return service.operator()


@pytest.fixture(scope="module")
def unused(any_engine: Engine) -> Iterator[str]:
    """VOs that no other test on this database has."""
    return iter(VOS[2:])


@pytest.fixture
def grid(operator: httpx.Client, unused: Iterator[str]) -> Grid:
    return Grid(operator, next(unused))


# What shares a task queue.


@pytest.mark.parametrize(
    ("jobs", "groups"),
    [
        pytest.param(
            [
                {"Tags": ["MultiProcessor"]},
                {"Tags": ["SingleProcessor"]},
                {"Tags": ["SingleProcessor", "MultiProcessor"]},
                {"Tags": ["MultiProcessor", "GPU"]},
                {},
                {"Tags": ["MultiProcessor", "17Processors"]},
            ],
            [[0], [1], [2], [3], [4], [5]],
            id="tags",
        ),
        pytest.param(
            [
                {"Platforms": ["centos7"]},
                {"Tags": ["MultiProcessor"]},
                {"Platforms": ["centos7"], "Tags": ["MultiProcessor"]},
                {"Platforms": ["slc6"], "Tags": ["MultiProcessor"]},
            ],
            [[0], [1], [2], [3]],
            id="tags and platforms",
        ),
        pytest.param(
            [{"CPUTime": time} for time in (1, 360, 361, 86400, 86401, 99999999)],
            [[0, 1], [2], [3], [4], [5]],
            id="segments of CPU time",
        ),
        pytest.param(
            [
                {"Tags": ["a", "b"], "Sites": ["S1"]},
                {"Tags": ["b", "a", "b"], "Sites": ["S1"]},
                {"Tags": [], "Sites": ["ANY"], "Platforms": ["any"]},
                {},
            ],
            [[0, 1], [2], [3]],
            id="order and repetition do not matter; a stated any excludes defaults, so it is apart",
        ),
    ],
)
def test_jobs_that_ask_the_same_share_a_task_queue(
    grid: Grid, jobs: Sequence[Mapping[str, Any]], groups: Sequence[Sequence[int]]
) -> None:
    ids = [grid.submit(job)[0] for job in jobs]
    listed = grid.listed(ANYTHING)
    found = [sorted(each["job_ids"]) for each in sorted(listed, key=lambda each: each["task_queue"])]
    assert found == [[ids[number] for number in group] for group in groups], "in the order in which they came"


def test_segments_are_configured(operator: httpx.Client) -> None:
    grid = Grid(operator, "vo1")
    one, exact, above, beyond = grid.submit(*[{"CPUTime": time} for time in (1, 1000, 1001, 5000)])
    assert grid.offered({"CPUTime": 999}) == []
    assert grid.offered({"CPUTime": 1000}) == grid.offered({"CPUTime": 1999}) == [one, exact]
    assert grid.offered({"CPUTime": 2000}) == [one, exact, above, beyond]


def test_a_platform_is_run_by_those_that_are_compatible(grid: Grid) -> None:
    seven, nine = grid.submit({"Platforms": ["el7"]}, {"Platforms": ["el9"]})
    assert grid.offered({"CPUTime": 50000, "Platform": "EL7"}) == [seven]
    assert grid.offered({"CPUTime": 50000, "Platform": "el8"}) == [seven]
    assert grid.offered({"CPUTime": 50000, "Platform": ["el9"]}) == [seven, nine]
    assert grid.offered({"CPUTime": 50000, "Platform": "el6"}) == []


# From the first job to the last.


def _kill(grid: Grid, job_id: int) -> None:
    assert grid.client.post(f"/api/v1/jobs/{job_id}/kill").status_code == 200


def test_a_task_queue_is_there_until_its_last_job_is_gone(grid: Grid) -> None:
    [first] = grid.submit({"CPUTime": 50000})
    [before] = grid.listed(ANYTHING)
    [second] = grid.submit({"CPUTime": 50000})
    [listed] = grid.listed(ANYTHING)
    assert (listed["task_queue"], listed["job_ids"]) == (before["task_queue"], [first, second])
    assert (listed["owner"], listed["owner_group"]) == ("userName", f"{grid.vo}_myGroup")
    assert (listed["waiting"], listed["definition"]["cpu_time"]) == (2, 86400)
    _kill(grid, first)
    [listed] = grid.listed(ANYTHING)
    assert (listed["waiting"], listed["job_ids"]) == (1, [second])
    _kill(grid, second)
    assert grid.listed(ANYTHING) == []


def test_a_job_that_is_matched_leaves_its_task_queue(grid: Grid) -> None:
    ids = grid.submit({"CPUTime": 50000})
    assert grid.given({**SOMEWHERE, "CPUTime": 300000}) == ids
    assert grid.listed(ANYTHING) == []


@pytest.mark.parametrize(
    ("job", "code"),
    [
        ({"CPUTime": 0.5}, 400),
        ({"MinRAM": 10, "MaxRAM": 0}, 201),
        # A definition takes neither a number as text nor a text for a list; a description does.
        ({"MinRAM": "10", "CPUTime": "10", "Site": "A"}, 201),
    ],
)
def test_memory_and_time_have_to_make_sense(grid: Grid, job: Mapping[str, Any], code: int) -> None:
    body = {"jobs": [scenarios.description(grid.vo, job)]}
    assert grid.client.post("/api/v1/jobs", json=body).status_code == code


# Which job is handed out.


@pytest.mark.parametrize("case", SHARES["pick"], ids=lambda case: case["name"])
def test_a_request_gets_the_job_that_dirac_gives_it(grid: Grid, case: Mapping[str, Any]) -> None:
    """Where DIRAC answers with an error that there is no such job among what fits, we answer: nothing."""
    if "dirac" in case:
        assert case["name"] == "a request for one job that does not fit gets nothing"
    ids = dict(zip(case["jobs"], grid.submit(*case["jobs"].values()), strict=True))
    said = {name: ids[value] if name == "JobID" else value for name, value in case["resource"].items()}
    assert grid.given(said) == ([] if case["expect"] is None else [ids[case["expect"]]])


def test_the_users_priority_decides_within_a_task_queue(grid: Grid) -> None:
    ids = [grid.submit({"Priority": priority})[0] for priority in (0, 9, 1, 10, 9)]
    order = [grid.given({**SOMEWHERE, "CPUTime": 50000})[0] for _ in ids]
    assert order == [ids[each] for each in (3, 1, 4, 2, 0)]


# What task queues weigh.


@pytest.fixture(scope="module")
def weighed(service: Service, operator: httpx.Client) -> Service:
    for vo, (_, _, case) in WEIGHED.items():
        for each in case["task_queues"]:
            job = {"CPUTime": each["CPUTime"], "Priority": each["raw"]}
            Grid(operator, vo).submit(*[job] * each["Jobs"])
    config = service.parts.live.current
    priorities.cycle(service.engine, config, now=datetime.now(UTC), holder="test", memory=PriorityState())
    return service


@pytest.mark.parametrize("vo", WEIGHED)
def test_task_queues_weigh_what_they_weigh_in_dirac(
    weighed: Service, operator: httpx.Client, vo: str
) -> None:
    share, _, case = WEIGHED[vo]
    parts = {each["CPUTime"]: share * each["part"] for each in case["task_queues"]}
    found = {each["definition"]["cpu_time"]: each["priority"] for each in Grid(operator, vo).listed(ANYTHING)}
    assert found == pytest.approx(parts)


# How many run, and how often one is matched.


def _typed(grid: Grid, kind: str, count: int) -> list[int]:
    return grid.submit(*[{"JobTypes": [kind]}] * count)


def _asks(grid: Grid, site: str, count: int = 1, **said: object) -> list[int] | str:
    answer = grid.request({"CPUTime": 50000, "Site": site, **said}, count)
    return answer.get("reason") or sorted(match["job_id"] for match in answer["matches"])


def test_a_burst_comes_at_once_and_fills_again_by_and_by(grid: Grid, clock: Clock) -> None:
    ids = _typed(grid, "MC", 9)
    site = "Burst.Site.ch"
    assert [_asks(grid, site) for _ in range(4)] == [[ids[0]], [ids[1]], [ids[2]], "limits"]
    clock.later(0.5)
    assert [_asks(grid, site), _asks(grid, site)] == [[ids[3]], "limits"]
    clock.later(100)
    assert [_asks(grid, site) for _ in range(4)] == [[ids[4]], [ids[5]], [ids[6]], "limits"]


def test_a_match_takes_the_token_of_its_own_kind_only(grid: Grid) -> None:
    site = "Returned.Site.ch"
    assert _asks(grid, site) == "no_task_queue"
    [simulation, other] = _typed(grid, "Simulation", 2)
    assert [_asks(grid, site), _asks(grid, site)] == [[simulation], "limits"]
    reconstruction = _typed(grid, "MC", 1)
    assert _asks(grid, site) == reconstruction
    assert grid.offered({"CPUTime": 50000, "Site": site}) == []
    assert grid.offered({"CPUTime": 50000}) == [other]


def test_burst_is_no_attribute_of_jobs(grid: Grid) -> None:
    ids = _typed(grid, "MC", 3)
    site = "Named.Site.ch"
    assert [_asks(grid, site) for _ in range(3)] == [[ids[0]], [ids[1]], "limits"]


def test_a_limit_counts_what_was_matched_before_it_runs(grid: Grid) -> None:
    ids = _typed(grid, "MC", 12)
    site = "Limited.Site.ch"
    assert _asks(grid, site, 9) == ids[:9]
    assert grid.offered({"CPUTime": 50000, "Site": site}) == ids[9:]
    assert _asks(grid, site) == [ids[9]]
    assert grid.offered({"CPUTime": 50000, "Site": site}) == []
    assert _asks(grid, site) == "limits"


def test_a_delay_goes_by_any_attribute_of_the_job(grid: Grid) -> None:
    slow = grid.submit(*[{"JobTypes": ["MC"], "JobGroup": "00012345"}] * 2)
    site = "Group.Site.ch"
    assert [_asks(grid, site), _asks(grid, site)] == [[slow[0]], "limits"]


def test_a_request_without_a_match_costs_no_token(grid: Grid) -> None:
    [job_id] = _typed(grid, "MC", 1)
    site = "Empty.Site.ch"
    assert _asks(grid, site, BannedJobType="MC") == "no_task_queue"
    assert _asks(grid, site) == [job_id]


def test_another_delay_holds_at_once(grid: Grid, clock: Clock, service: Service) -> None:
    ids = _typed(grid, "MC", 3)
    site = "Changed.Site.ch"
    assert _asks(grid, site) == [ids[0]]
    service.configure(CONFIG.replace(f"{site}: {{JobType: {{MC: 10}}}}", f"{site}: {{JobType: {{MC: 1}}}}"))
    assert _asks(grid, site) == "limits"
    clock.later(1)
    assert _asks(grid, site) == [ids[1]]


# Several jobs for one pilot.


def test_each_match_says_what_its_job_may_use(grid: Grid) -> None:
    ranged, single, graphics = grid.submit(
        {"MinNumberOfProcessors": 2, "MaxNumberOfProcessors": 8, "MinRAM": 1000, "MinRAMPerCore": 500},
        {"MinRAM": 2000},
        {"GPUs": 1},
    )
    said = {**SOMEWHERE, "CPUTime": 50000, "NumberOfProcessors": 6, "MaxRAM": 8000, "GPUs": 1}
    shares = {
        match["job_id"]: {name: match.get(name) for name in ("processors", "ram", "gpus")}
        for match in grid.request(said, 10)["matches"]
    }
    assert shares == {
        ranged: {"processors": 4, "ram": 3000, "gpus": 0},
        single: {"processors": 1, "ram": 2000, "gpus": 0},
        graphics: {"processors": 1, "ram": None, "gpus": 1},
    }


def test_a_pilot_is_filled_and_not_beyond(grid: Grid) -> None:
    grid.submit(*[{"NumberOfProcessors": 4}] * 3, *[{}] * 20)
    answer = grid.request({**SOMEWHERE, "CPUTime": 50000, "NumberOfProcessors": 8}, 100)
    assert sum(match["processors"] for match in answer["matches"]) == 8
