"""What the last release and this one answer to the same descriptions on the same grid.

Each has a service and a database of its own. States, ids of pools, eligible queues and explanations are
equal.
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from examples.servers.starting import wait_until
from tests.conftest import ROOT
from tests.support import earlier_release
from tests.support.installation import Installation

pytestmark = pytest.mark.timeout(1800)
EARLIER, THIS = "earlier", "this"
VOS = ("biomed", "cms", "lhcb", "osgvo")
#: Random descriptions, and those whose explanations are compared beside the examples.
DESCRIPTIONS, EXPLAINED = 10_000, 150
#: Descriptions of one request.
BATCH = 250
#: Sites whose nodes differ, beside those of the examples.
SITES = """
LCG.Mixed.org:
  VO: [biomed, cms, lhcb, osgvo]
  OS: el9
  CEs:
    ce:
      Tag: [MultiProcessor]
      Queues:
        one: {CPUTime: 90000, NodeAttributes: {OS: [el8, el9], Memory: unknown}}
        two: {CPUTime: 90000, NumberOfProcessors: 8, NodeAttributes: {CPUModel: unknown, GPUs: [0, 1, 4]}}
        three: {CPUTime: 90000, MaxRAM: 4000, NodeAttributes: {Scratch: unknown, Country: unknown}}
"""
QUEUES = [f"LCG.Mixed.org/ce/{queue}" for queue in ("one", "two", "three")]
#: Parameters of the grid, and what jobs may want of them beside their values there.
NUMBERS = ("GPUs", "GlueHostBenchmarkSI00", "MaxRAM", "NumberOfProcessors", "maxWallClockTime")
TEXTS = ("Architecture", "CPUModel", "Country", "OS", "SoftwareTag")
OTHER_NUMBERS = {"Memory": [1, 2000, 4000, 8000, 2500.5], "Scratch": [0, 50, 500]}


def read_grid() -> Mapping[str, Any]:
    """The sites of both examples and `SITES`, for `VOS`."""
    files = (ROOT / "examples" / name / "resources.yaml" for name in ("osg", "slurm"))
    grid, slurm = (yaml.safe_load(file.read_text()) for file in files)
    grid["Resources"]["Sites"] |= slurm["Resources"]["Sites"] | yaml.safe_load(SITES)
    grid["Registry"]["VO"] |= slurm["Registry"]["VO"]
    grid["Operations"]["Defaults"]["Limits"] = {"RequestsPerSecond": 100_000}
    return dict(grid)


@dataclass
class Drawing:
    """Draws descriptions with the values of a grid."""

    dice: random.Random
    numbers: Mapping[str, Sequence[float]]
    texts: Mapping[str, Sequence[str]]

    repeats_names: bool  #: within one expression

    def description(self) -> dict[str, Any]:
        job: dict[str, Any] = {"Executable": "x"}
        draw = self.dice.random
        if draw() < 0.9:
            job["Requirements"] = self.record() if draw() < 0.5 else self.condition(2, self.names())
        for name, values in (
            ("CPUTime", (600, 80_000, 90_000, 500_000)),
            ("Site", ("LCG.Mixed.org", "OSG.CERN.ch", "ANY", ["OSG.MIT.us", "OSG.CERN.ch"])),
            ("BannedSites", ("LCG.North.org", ["OSG.MIT.us"])),
            ("NumberOfProcessors", (2, 8)),
            ("Tags", ("MultiProcessor", ["GPU", "big"])),
            ("MinRAM", (2000, 16_000)),
            ("Priority", (0, 10)),
        ):
            if draw() < 0.15:
                job[name] = self.dice.choice(values)
        return job

    def record(self) -> dict[str, Any]:
        named: dict[str, Any] = {}
        for _ in range(self.dice.randint(1, 3)):
            name = self.dice.choice([*self.numbers, *self.texts])
            value = self.value(name)
            named[name] = (
                [value, self.value(name)] if name in self.texts and self.dice.random() < 0.3 else value
            )
        return named

    def value(self, name: str) -> Any:
        return self.dice.choice(self.numbers.get(name) or self.texts[name])

    def names(self) -> Iterator[str]:
        all_names = [*self.numbers, *self.texts]
        if self.repeats_names:
            while True:
                yield self.dice.choice(all_names)
        yield from self.dice.sample(all_names, len(all_names))

    def condition(self, depth: int, names: Iterator[str]) -> str:
        draw = self.dice.random()
        if depth == 0 or draw < 0.3:
            return self.comparison(next(names))
        if draw < 0.4:
            return f"!({self.condition(depth - 1, names)})"
        if draw < 0.5:
            parts = (self.condition(depth - 1, names) for _ in range(3))
            return "({} ? {} : {})".format(*parts)
        parts = [self.condition(depth - 1, names) for _ in range(2)]
        return f"({self.dice.choice((' && ', ' || ')).join(parts)})"

    def comparison(self, name: str) -> str:
        operator = self.dice.choice(("==", "!=", "<", "<=", ">", ">=", "=?=", "=!="))
        written = json.dumps(self.value(name))
        match self.dice.randrange(12):
            case 0:
                return f"isUndefined(other.{name})"
            case 1 if name in self.texts:
                return f"member({written}, other.{name})"
            case 2 if name in self.texts:
                return f'regexp("^[a-m]", other.{name}, "i")'
            case 3 if name in self.numbers:
                return f"other.{name} * 2 {operator} {written}"
        return f"{self.dice.choice(('other.', 'TARGET.', ''))}{name} {operator} {written}"


def draw_descriptions(
    grid: Mapping[str, Any], number: int, *, repeat_names: bool = False
) -> list[dict[str, Any]]:
    values: dict[str, set[Any]] = {}
    _collect(grid["Resources"]["Sites"], values)
    found = {name: sorted(values[name])[:: max(1, len(values[name]) // 12)] for name in (*NUMBERS, *TEXTS)}
    numbers = {name: found[name] for name in NUMBERS} | OTHER_NUMBERS
    texts = {name: found[name] for name in TEXTS}
    drawing = Drawing(random.Random(1), numbers, texts, repeats_names=repeat_names)
    return [drawing.description() for _ in range(number)]


def list_queues_with_unknown(grid: Mapping[str, Any]) -> set[str]:
    """The queues where something of the nodes is unknown."""
    return {
        f"{site}/{ce}/{queue}"
        for site, at_site in grid["Resources"]["Sites"].items()
        for ce, at_ce in at_site["CEs"].items()
        for queue, values in at_ce["Queues"].items()
        if "unknown" in values.get("NodeAttributes", {}).values()
    }


def _collect(node: Any, values: dict[str, set[Any]]) -> None:
    for name, value in node.items() if isinstance(node, dict) else ():
        _collect(value, values)
        wanted = int if name in NUMBERS else str if name in TEXTS else ()
        listed = value if isinstance(value, list) else [value]
        values.setdefault(name, set()).update(each for each in listed if isinstance(each, wanted))


@dataclass
class Service:
    """A service of one release."""

    clients: Mapping[str, httpx.Client]  #: of a user of each VO
    operator: httpx.Client

    def submit(self, vo: str, jobs: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The id of each job, or the error for one that is refused, which refuses its batch."""
        answer = self.clients[vo].post("/jobs", json={"jobs": jobs})
        if answer.is_success:
            return list(answer.json()["job_ids"])
        if len(jobs) == 1:
            return [(answer.status_code, answer.json()["error"])]
        half = len(jobs) // 2
        return self.submit(vo, jobs[:half]) + self.submit(vo, jobs[half:])

    def list_all(self, kind: str) -> Iterator[Any]:
        """All jobs or pools."""
        after: Mapping[str, Any] = {}
        while True:
            page = self._get(kind, limit=500, **after)
            yield from page[kind]
            if page["next"] is None:
                return
            after = {"after": page["next"]}

    def is_decided(self) -> bool:
        """Whether the optimizers have seen all jobs."""
        return not self._get("jobs", status="Received", limit=1)["jobs"]

    def explain(self, path: str) -> Any:
        """Without `forwarding`, which is more exact in this release, and has expressions as written."""
        return self._get(f"{path}/explain")

    def _get(self, path: str, **query: Any) -> Any:
        return self.operator.get(f"/{path}", params=query).raise_for_status().json()


@pytest.fixture(scope="module")
def grid() -> Mapping[str, Any]:
    return read_grid()


@pytest.fixture(scope="module")
def services(
    tmp_path_factory: pytest.TempPathFactory, grid: Mapping[str, Any]
) -> Iterator[dict[str, Service]]:
    program = earlier_release.unpack(tmp_path_factory.mktemp("program"))
    with ExitStack() as stack:
        environments: Mapping[str, Mapping[str, str]] = {EARLIER: {"PYTHONPATH": str(program)}, THIS: {}}
        yield {
            release: _start(stack, tmp_path_factory.mktemp(release), grid, environment)
            for release, environment in environments.items()
        }


def _start(stack: ExitStack, home: Path, grid: Mapping[str, Any], environment: Mapping[str, str]) -> Service:
    resources = home / "resources.yaml"
    resources.write_text(yaml.safe_dump(grid))
    database = f"sqlite:///{home / 'pilotage.db'}"
    own = {**environment, "PILOTAGE_HOME": str(home), "PILOTAGE_DATABASE_URL": database}
    installation = Installation(home, own, stack)
    installation.run("db", "upgrade")
    url = installation.serve("serve", "--resources", str(resources))

    def connect(role: str, *options: str) -> httpx.Client:
        return installation.client(url, installation.token(role, *options))

    return Service({vo: connect("user", "--vo", vo, "--user", "alice") for vo in VOS}, connect("operator"))


def test_jobs_pools_and_explanations_are_those_of_the_earlier_release(
    services: dict[str, Service], grid: Mapping[str, Any]
) -> None:
    _submit_all(services, draw_descriptions(grid, DESCRIPTIONS))
    jobs = _ask_both(services, lambda service: {job["job_id"]: job for job in service.list_all("jobs")})
    _compare(jobs)
    _compare(
        _ask_both(services, lambda service: {pool["pool_id"]: pool for pool in service.list_all("pools")})
    )
    some = [*jobs[THIS]][:: DESCRIPTIONS // EXPLAINED]
    _compare(_ask_both(services, lambda service: {each: service.explain(f"jobs/{each}") for each in some}))
    queues = [f"resources/queues/{queue}" for queue in QUEUES]
    _compare(_ask_both(services, lambda service: {each: service.explain(each) for each in queues}))


def test_two_comparisons_of_one_attribute_exclude_only_queues_where_it_is_unknown(
    services: dict[str, Service], grid: Mapping[str, Any]
) -> None:
    """1.0.0 judged them apart; it never excluded a queue for it that is eligible."""
    _submit_all(services, draw_descriptions(grid, DESCRIPTIONS // 5, repeat_names=True))

    queues = _ask_both(
        services, lambda service: {pool["pool_id"]: set(pool["queues"]) for pool in service.list_all("pools")}
    )
    assert queues[THIS].keys() == queues[EARLIER].keys()
    unknown = list_queues_with_unknown(grid)
    for pool, eligible in queues[THIS].items():
        assert eligible <= queues[EARLIER][pool]
        assert queues[EARLIER][pool] - eligible <= unknown


@pytest.mark.parametrize(
    "file", sorted((ROOT / "examples").glob("osg/jobs/*.jdl")), ids=lambda file: file.name
)
def test_the_examples_are_explained_as_by_the_earlier_release(
    services: dict[str, Service], file: Path
) -> None:
    [vo] = re.findall(r'VO = "(\w+)"', file.read_text())

    def explain(service: Service) -> dict[Any, Any]:
        body = {"jdl": re.sub(r"(VO|Owner) = .*;|InputSandbox = .*;", "", file.read_text())}
        answer = service.clients[vo].post("/explain", params={"forwarding": True}, json=body)
        return {file.name: answer.raise_for_status().json()}

    _compare(_ask_both(services, explain))


def _ask_both(
    services: Mapping[str, Service], ask: Callable[[Service], dict[Any, Any]]
) -> dict[str, dict[Any, Any]]:
    return {release: ask(service) for release, service in services.items()}


def _submit_all(services: Mapping[str, Service], descriptions: Sequence[Mapping[str, Any]]) -> None:
    """Submit to each release, which accept and refuse the same, and wait until all jobs are decided."""
    answers: dict[str, list[Any]] = {release: [] for release in services}
    for number, first in enumerate(range(0, len(descriptions), BATCH)):
        for release, service in services.items():
            batch = descriptions[first : first + BATCH]
            answers[release] += service.submit(VOS[number % len(VOS)], batch)
    assert answers[THIS] == answers[EARLIER]
    for service in services.values():
        wait_until(service.is_decided)


def _compare(answers: Mapping[str, Mapping[Any, Any]]) -> None:
    """Each difference is shown, for the first few objects that have one."""
    assert answers[THIS].keys() == answers[EARLIER].keys()
    pairs = {key: (_strip(answers[EARLIER][key]), _strip(answers[THIS][key])) for key in answers[THIS]}
    different = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    assert not different, f"{len(different)} differ: {dict(islice(different.items(), 3))}"


#: Lists that 1.0.0 has in another order: what a job could use and is closed comes first now.
_ORDERED: Mapping[str, Callable[[list[Any]], list[Any]]] = {
    "now": sorted,
    "reasons": lambda reasons: sorted(reasons, key=lambda each: each["requirement"] == "Enabled"),
}
#: Names that 1.0.0 did not have, and `changes`.
_NEW = frozenset({"changes", "closed", "exit_code", "headline", "is_held", "open_queues", "start"})


def _strip(answer: Any) -> Any:
    """Without times, new fields, and what would help, which this release looks for by other means."""
    if isinstance(answer, dict):
        return {
            name: _ORDERED.get(name, list)(_strip(value)) if isinstance(value, list) else _strip(value)
            for name, value in answer.items()
            if not name.endswith("_at") and name not in _NEW
        }
    if isinstance(answer, list):
        # 1.0.0 also left to the node what all nodes fulfil, and counted drained queues, which are named now.
        other = (" only at the node: ", "(Enabled: false)")
        told = (each for each in answer if not (isinstance(each, str) and any(map(each.__contains__, other))))
        return list(map(_strip, told))
    if isinstance(answer, str):  # 1.0.0 wrote the plural behind any number, and not what `member` cannot read
        one = answer.replace("the 1 eligible ones leave", "the 1 eligible one leaves")
        return one.replace(", which is no list", "")
    return answer
