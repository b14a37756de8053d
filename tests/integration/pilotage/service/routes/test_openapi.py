"""Requests that fit the description of the interface, and others, from every role, about what exists."""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import APIOperation, Case, GenerationMode

from tests.support.routes_by_role import QUEUE, TOKENS, list_routes_of_plugins
from tests.support.service import Service, running_on_sqlite

#: Requests to each route that fit its description, and that do not: each as an operator and as another role.
_FITTING = int(os.environ.get("PILOTAGE_SCHEMA_EXAMPLES", "3"))
_WRONG = max(1, _FITTING // 2)

schemathesis.checks.load_all_checks()
_CHECKS = schemathesis.checks.CHECKS.get_by_names(
    [
        "not_a_server_error",
        "response_schema_conformance",
        "content_type_conformance",
        "status_code_conformance",
    ]
)


@schemathesis.serializer("application/x-tar")
def _tar(_context: schemathesis.SerializationContext, value: object) -> object:
    return value if isinstance(value, bytes) else str(value).encode()


@dataclass(frozen=True)
class World:
    """A service with something of each kind, and its names in paths."""

    service: Service
    names: dict[str, object]


@pytest.fixture(scope="module")
def world(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running_on_sqlite(sqlite_template, tmp_path_factory.mktemp("service")) as service:
        yield World(service, _furnished(service))


def _furnished(service: Service) -> dict[str, object]:
    user = service.user()
    jobs = [{"Executable": "x", "JobName": f"<b>{number}"} for number in range(3)]
    [job_id, *_] = user.post("/api/v1/jobs", json={"jobs": jobs}).json()["job_ids"]
    site, ce, queue = QUEUE.split("/")
    resource = {"Site": site, "GridCE": ce, "Queue": queue, "CPUTime": 100_000}
    pilot = service.as_role("pilot", vo="cms", queue=QUEUE, stamp="p1")
    [match] = pilot.post("/api/v1/matcher/requestJob", json=resource).json()["matches"]
    pilot.post(f"/api/v1/leases/{match['lease']}/start", json={})
    pool = user.get(f"/api/v1/jobs/{job_id}").json()["submit_pool"]
    planned = {"place": site, "begins": "2999-01-01T00:00:00Z", "ends": "2999-01-02T00:00:00Z", "reason": "x"}
    downtime = service.as_role("operator").post("/api/v1/downtimes", json=planned).json()
    return {
        "downtime_id": downtime["downtime_id"],
        "job_id": job_id,
        "lease": match["lease"],
        "stamp": "p1",
        "pool_id": pool,
        "site": site,
        "ce": ce,
        "queue": queue,
    }


def test_no_request_makes_the_service_fail_or_answer_what_it_does_not_describe(world: World):
    world.service.parts.job_events.longest = 0.1
    check_operations(world, of_plugins=False)


def check_operations(world: World, *, of_plugins: bool) -> None:
    """Send requests to each operation of plug-ins, or to each other one."""
    theirs = list_routes_of_plugins()
    described = schemathesis.openapi.from_url(f"{world.service.url}/openapi.json", timeout=300)
    for operation in (found.ok() for found in described.get_all_operations()):
        if ((operation.method.upper(), operation.path) in theirs) is not of_plugins:
            continue
        _try(operation, GenerationMode.POSITIVE, _FITTING, world)
        if operation.body or operation.query or operation.path_parameters:
            _try(operation, GenerationMode.NEGATIVE, _WRONG, world)


def _try(operation: APIOperation, mode: GenerationMode, examples: int, world: World) -> None:
    others = itertools.cycle(world.service.token(role, **wishes) for role, wishes in TOKENS.items())
    operator = world.service.token("operator", user="root")

    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def answered(case: Case) -> None:
        _ask(case, next(others))
        if mode is GenerationMode.POSITIVE:
            case.path_parameters = {name: world.names[name] for name in case.path_parameters}
        _ask(case, operator)

    answered()


def _ask(case: Case, token: str) -> None:
    case.call_and_validate(headers={"Authorization": f"Bearer {token}"}, checks=_CHECKS, timeout=300)
