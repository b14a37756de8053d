"""Directors are offered, and pilots given, the jobs that DIRAC serves a resource."""

from collections.abc import Callable, Iterator, Mapping

import httpx
import pytest
from sqlalchemy import Engine

from tests.support.factories import scenarios
from tests.support.factories.scenarios import Grid, can_be_said, sayable
from tests.support.service import running

#: The numbers of jobs by their ids, for a VO and a set of jobs.
Jobs = Callable[[str, str], Mapping[int, int]]
DATA = scenarios.load("match_scenarios.yaml")
SCENARIOS = {each["name"]: each for each in DATA["scenarios"]}

#: Negative conditions as the running limits that make them: at S1, of nought. One of several fields at once,
#: and one of sites that jobs name, no limit can make: they stand in the tests of the rules only.
LIMITS = {
    "negative-jobtype": {"JobType": {"MCSim": 0}},
    "negative-jobtype-two-values": {"JobType": {"MCSim": 0, "User": 0}},
    "negative-list-of-dicts-is-or": {"JobType": {"MCSim": 0, "User": 0}},
    "negative-owner": {"Owner": {"bob": 0}},
}
ONLY_RULES = {"negative-two-fields-in-one-dict-is-not-both"}


def _vo(name: str) -> str:
    """Where negative conditions hold is a VO of its own: limits are of VOs."""
    return name.replace("-", "_") if name in LIMITS else SCENARIOS[name]["jobs"].lower()


LIMITED = "\n".join(
    f"  {_vo(name)}: {{JobScheduling: {{RunningLimit: {{S1: {limit}}}}}}}" for name, limit in LIMITS.items()
)
CONFIG = f"""
Resources: {{Sites: {{}}}}
Registry:
  VO: {{{", ".join(f"{vo}: {{}}" for vo in sorted({_vo(name) for name in SCENARIOS}))}}}
  Groups: {{j18_prod: {{VO: j18, Properties: [JobSharing]}}}}
Operations:
  Defaults: {{JobDescription: {{CPUTime: {{min: 1, max: 100000000}}}}}}
{LIMITED}
"""


@pytest.fixture(scope="module")
def operator(any_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running(any_engine, tmp_path_factory.mktemp("service"), CONFIG) as service:
        yield service.operator()


@pytest.fixture(scope="module")
def jobs(operator: httpx.Client) -> Jobs:
    """The numbers of the jobs of a set by their ids; they are submitted once."""
    submitted: dict[str, Mapping[int, int]] = {}

    def of(vo: str, named: str) -> Mapping[int, int]:
        if vo not in submitted:
            wanted = dict(sayable(DATA["jobs"][named]))
            ids = Grid(operator, vo).submit(*wanted.values())
            submitted[vo] = dict(zip(ids, wanted, strict=True))
        return submitted[vo]

    return of


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in ONLY_RULES])
def test_a_resource_is_offered_and_given_what_dirac_serves_it(
    name: str, any_engine: Engine, operator: httpx.Client, jobs: Jobs
) -> None:
    """Where DIRAC's answer is a defect (`dirac` in the data), the sane one is expected, as the data say."""
    scenario, vo = SCENARIOS[name], _vo(name)
    number_of = jobs(vo, scenario["jobs"])
    grid, said = Grid(operator, vo), dict(scenario["resource"])
    if name in LIMITS:
        said["Site"] = "S1"
    if scenario["expect"] == "error":
        assert grid.refused(said)
        return
    all_jobs = DATA["jobs"][scenario["jobs"]]
    expected = sorted(number for number in scenario["expect"] if can_be_said(all_jobs[number]))
    assert sorted(number_of[each] for each in grid.offered(said)) == expected
    if any_engine.dialect.name == "postgresql":  # giving back takes time, and once is enough
        assert sorted(number_of[each] for each in grid.given_and_returned(said)) == expected


def test_a_negative_condition_is_a_limit_of_nought_or_named_as_one_of_the_rules_only() -> None:
    negative = {name for name, each in SCENARIOS.items() if "negative_condition" in each}
    assert negative == LIMITS.keys() | ONLY_RULES


def test_what_no_description_can_say_is_left_out_and_no_more() -> None:
    left_out = {
        (name, number)
        for name, these in DATA["jobs"].items()
        for number, job in these.items()
        if not can_be_said(job)
    }
    # Two types in one job; a job that bans the only site that it names, which is refused.
    assert left_out == {("J12", 5), ("J19", 3), ("J13", 4)}


def test_a_job_that_bans_its_only_site_is_refused(operator: httpx.Client) -> None:
    job = {"Executable": "a", "VO": "j1", "Site": ["S1"], "BannedSites": ["s1"]}
    answer = operator.post("/api/v1/jobs", json={"jobs": [job]})
    assert answer.status_code == 400, answer.text
    [problem] = answer.json()["error"]["details"]["problems"]
    assert problem["path"] == "Site"
    assert "S1: BannedSites bans" in problem["message"]
