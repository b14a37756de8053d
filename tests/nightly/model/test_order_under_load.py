"""Tiers of job types and a limit on cores under load: many requests at once, over HTTP, to two services."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from examples.servers.postgres import Postgres
from examples.servers.starting import wait_until
from tests.nightly.model import harness
from tests.nightly.model.harness import Requests

#: Requests at once.
CLIENTS = 16
#: Cores that jobs of the first type may have together.
CORES = 40
#: Jobs of each type, and of the first one also with four cores.
JOBS = 50
ORDER = (["MC"], ["WG", "Fast"], ["Merge"], ["User"])
RESOURCE = {
    "Site": "S@.x",
    "GridCE": "ce",
    "Queue": "q",
    "VO": "alpha",
    "CPUTime": 10**6,
    "NumberOfProcessors": 4,
    "Tag": ["MultiProcessor"],
}


@dataclass(frozen=True)
class _Given:
    """A job that a request got."""

    job_type: str
    lease: str
    cores: int
    sent: float  #: when the request was
    answered: float


@pytest.fixture
def two_services(postgres: Postgres, short_directory: Path) -> Iterator[Requests]:
    directory = Path(tempfile.mkdtemp(prefix="order-", dir=short_directory))
    with harness.services(directory, postgres) as requests:
        requests.begin_run()
        yield requests


def _call(services: Requests, method: str, path: str, body: Any, **more: Any) -> Any:
    answer = services.call(method, path, body, **more)
    assert answer.ok, f"{method} {path}: {answer}"
    return answer.body


def _configure(services: Requests) -> None:
    scheduling = {
        "JobPriorities": ["MC", "{WG: 3, Fast: 1}", "Merge"],
        "RunningLimit": {"S@.x": {"JobType": {"MC": {"count": 1000, "cores": CORES}}}},
    }
    values = {
        "Resources/Sites/S@.x/CEs/ce/Queues/q": {"CPUTime": 10**6},
        "Operations/alpha/JobScheduling": scheduling,
    }
    version = services.call("GET", "/config").body["version"]
    body = {"set": values, "message": "order"}
    _call(services, "PATCH", "/config", body, headers={"If-Match": str(version)})


def _submit(services: Requests) -> dict[int, str]:
    """The types of the jobs by id."""
    kinds = [(name, 1) for tier in reversed(ORDER) for name in tier] + [("MC", 4)]
    types: dict[int, str] = {}
    for name, cores in kinds:
        job = {"Executable": "x", "VO": "alpha", "Owner": name, "OwnerGroup": "alpha_user", "JobType": name}
        many = [{**job, **({"NumberOfProcessors": cores} if cores > 1 else {})}] * JOBS
        types |= dict.fromkeys(_call(services, "POST", "/jobs", {"jobs": many})["job_ids"], name)
    return types


def _ask(services: Requests, types: dict[int, str], number: int) -> _Given | None:
    sent = time.monotonic()
    matches = _call(services, "POST", "/matcher/requestJob", RESOURCE, service=number)["matches"]
    if not matches:
        return None
    [match] = matches
    job_type, cores = types[match["job_id"]], match["processors"]
    return _Given(job_type, match["lease"], cores, sent, time.monotonic())


def _ask_together(services: Requests, types: dict[int, str], number: int, *, left: int) -> list[_Given]:
    """So many requests, after both services have read all changes, by which so many jobs are left."""
    for service in range(2):
        wait_until(lambda at=service: _count_ordered(services, at) == left)  # type: ignore[misc]
    with ThreadPoolExecutor(CLIENTS) as threads:
        answers = threads.map(lambda each: _ask(services, types, each), range(number))
        return [each for each in answers if each is not None]


def _count_ordered(services: Requests, service: int) -> int:
    """Jobs that the resource may have, by one of the services; 0: its configuration is an earlier one."""
    body = _call(services, "POST", "/matcher/getMatchingTaskQueues", RESOURCE, service=service)
    queues = body["task_queues"]
    return sum(each["waiting"] for each in queues) if all(each["tier"] for each in queues) else 0


def _of(given: Sequence[_Given], types: Sequence[str]) -> list[_Given]:
    return [each for each in given if each.job_type in types]


@pytest.mark.timeout(1800)
def test_tiers_and_a_limit_on_cores_hold_while_many_ask(two_services: Requests) -> None:
    _configure(two_services)
    types = _submit(two_services)
    given = _ask_together(two_services, types, 4 * JOBS, left=len(types))
    assert sum(each.cores for each in _of(given, ["MC"])) == CORES
    for number, tier in enumerate(ORDER[2:], start=2):
        earlier = _of(given, [name for each in ORDER[1:number] for name in each])
        for late in _of(given, tier):
            left = [each for each in earlier if each.sent > late.answered]
            assert not left, f"{late} was given while {left[0]} waited"
    assert len(_of(given, ["WG", "Fast"])) == 2 * JOBS, "all of the second tier"
    assert _of(given, ["Merge"])

    for each in _of(given, ["MC"]):
        _call(two_services, "POST", f"/leases/{each.lease}/release", {})
    left = len(types) - len(given) + len(_of(given, ["MC"]))
    again = _ask_together(two_services, types, CORES // 4, left=left)
    assert {each.job_type for each in again} == {"MC"}, "first again"
    assert sum(each.cores for each in again) <= CORES
