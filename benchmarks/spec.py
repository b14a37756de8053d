"""DiracX's match-making specification at the scale that it asks for: ten million jobs, a thousand sites.

Pilots of all sites ask over HTTP with documents of the specification, each time with another wall time left,
somewhat more often than the specification wants; a latency counts from the moment at which a request was due.
After that they ask as fast as they are answered. The prototype of DiracX's developers is measured as well if
`--prototype` names a directory that has it.
"""

import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path

import httpx
from sqlalchemy import Engine, func, select

from benchmarks import (
    checks,
    copies,
    documents,
    http_load,
    lhcb,
    population,
    prototype,
    servers,
    services,
)
from benchmarks.copies import Wanted
from benchmarks.http_load import Conversation, Load
from benchmarks.mixed import Pilot
from benchmarks.results import Result
from benchmarks.services import Service
from cs_config import validate
from examples.servers.postgres import Postgres
from taskqueue.db import database
from taskqueue.schema.tables import requirement_classes

_PATH = "/api/v1/matcher/requestJob"
#: Requests a second.
_RATE = 1_020
_CLIENTS = 64
#: As fast as they are answered.
_CROWD = 32
#: Share of the wall time of a node that is left at least when its pilot asks.
_LEFT = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much waits, and how long it is asked for."""

    classes: int
    waiting: int
    minutes: int
    minute: float  #: seconds
    nodes: int = len(documents.SITES) * documents.NODES_A_SITE  #: whose pilots ask


#: Processes of the service under load: the targets are about two cores.
_WORKERS = 2
_FULL = Scale(classes=10_000, waiting=10_000_000, minutes=10, minute=60)
_QUICK = Scale(classes=2_000, waiting=200_000, minutes=2, minute=10)


def run(*, quick: bool, prototype_tree: Path | None = None) -> Iterator[Result]:
    """The start, ten minutes of requests by minutes, as many as there can be, and the prototype."""
    yield from measure(_QUICK if quick else _FULL, prototype_tree)


def measure(scale: Scale, prototype_tree: Path | None) -> Iterator[Result]:
    """The same at any scale."""
    with servers.postgres() as server:
        with servers.fresh_database(server, "spec_empty") as url, _start(url) as started:
            empty = started
        with servers.fresh_database(server, "spec") as url:
            engine = database.connect(url)
            yield _fill(engine, scale)
            with _start(url) as full:
                yield from _compare(empty, full)
            with services.serving(url, documents.tree(), workers=_WORKERS) as service:
                yield from _sustain(server, service, scale)
            if found := checks.flaws(engine, jobs=scale.waiting):
                yield Result(values={"what": "flaws", "jobs": len(found)}, flaws=found)
            engine.dispose()
    yield from prototype.run(prototype_tree, jobs=scale.classes, seconds=scale.minute)


def _fill(engine: Engine, scale: Scale) -> Result:
    began = time.monotonic()
    described = documents.descriptions(scale.classes)
    firsts = population.submit(engine, validate.parse(documents.tree()), described)
    sizes = lhcb.sizes(scale.classes, scale.waiting)
    copies.store(
        engine,
        [Wanted(original=job, copies=size - 1) for job, size in zip(firsts, sizes, strict=True)],
    )
    population.settle(engine)
    with database.reading(engine) as conn:
        classes = conn.scalar(select(func.count()).select_from(requirement_classes)) or 0
    return Result(
        values={
            "what": "jobs wait in requirement classes",
            "jobs": scale.waiting,
            "classes": classes,
            "seconds": round(time.monotonic() - began, 1),
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A service after its first request for work."""

    service: Service
    serving: float  #: seconds until it serves
    first: float  #: seconds more until a first request is answered
    megabytes: float


@contextmanager
def _start(url: str) -> Iterator[Started]:
    began = time.monotonic()
    with services.serving(url, documents.tree()) as service:
        serving = time.monotonic()
        [(token, node)] = _pilots(service, documents.nodes()[:1])
        headers = {"Authorization": f"Bearer {token}"}
        httpx.post(f"{service.url}{_PATH}", json=node, headers=headers, timeout=300).raise_for_status()
        yield Started(
            service=service,
            serving=serving - began,
            first=time.monotonic() - serving,
            megabytes=service.peak_megabytes(),
        )


def _compare(empty: Started, full: Started) -> Iterator[Result]:
    """The start of both, and what the index of waiting jobs adds."""
    for what, each in (("start, nothing waits", empty), ("start, all wait", full)):
        yield Result(
            values={
                "what": what,
                "seconds": round(each.serving, 2),
                "first request s": round(each.first, 2),
                "memory MB": round(each.megabytes),
                "index MB": round(each.megabytes - empty.megabytes),
            }
        )


def _sustain(server: Postgres, service: Service, scale: Scale) -> Iterator[Result]:
    pilots = list(_pilots(service, documents.nodes()[: scale.nodes]))
    first = _drive(service, partial(_ask_once, pilots), _CROWD, 600)
    yield Result(
        values={
            "what": f"each of {len(pilots):,} nodes once, right after the start",
            "seconds": round(first.seconds, 1),
            "p99 ms": first.quantile_ms(0.99),
        },
        flaws=_errors(first),
    )
    for minute in range(scale.minutes + 1):
        load = partial(_drive, service, partial(_ask, pilots), _CLIENTS, scale.minute, _RATE)
        # In the first one each process reads the places that only others have read so far.
        name = f"minute {minute}" if minute else "the minute before: caches are cold"
        yield _measured(server, service, name, load, is_target=minute > 0)
    load = partial(_drive, service, partial(_ask, pilots), _CROWD, scale.minute)
    yield _measured(server, service, f"{_CROWD} clients, as fast as answered", load, is_target=False)


def _measured(
    server: Postgres, service: Service, what: str, drive: Callable[[], Load], *, is_target: bool
) -> Result:
    before = service.cpu_seconds(), servers.cpu_seconds(server)
    load = drive()
    used = service.cpu_seconds() - before[0], servers.cpu_seconds(server) - before[1]
    jobs, answers = sum(load.returned), max(1, len(load.latencies))
    rate, p99 = jobs / load.seconds, load.quantile_ms(0.99)
    service_cpu, postgres_cpu, client_cpu = (
        round(1e6 * seconds / answers) for seconds in (*used, load.cpu_seconds)
    )
    return Result(
        values={
            "what": what,
            "requests/s": round(load.per_second),
            "jobs/s": round(rate),
            "p50 ms": load.quantile_ms(0.5),
            "p99 ms": p99,
            "service µs": service_cpu,
            "PostgreSQL µs": postgres_cpu,
            "client µs": client_cpu,
        },
        targets={"spec": rate, "spec p99": p99} if is_target else {},
        note=what,
        flaws=_errors(load),
    )


def _errors(load: Load) -> list[str]:
    return [f"{load.errors} requests failed: {load.describe_errors()}"] if load.errors else []


def _drive(
    service: Service, script: http_load.Script, clients: int, seconds: float, per_second: float = 0
) -> Load:
    return http_load.drive(service.url, script, connections=clients, seconds=seconds, per_second=per_second)


def _pilots(service: Service, nodes: Iterable[Mapping[str, object]]) -> Iterator[Pilot]:
    """By tokens of gateways, as none of them ends its jobs."""
    for node in nodes:
        yield service.token("gateway", vo=lhcb.VO, site=str(node["site"])), dict(node)


def _ask_once(pilots: Sequence[Pilot], number: int) -> Conversation:
    """Each node asks once, so that each place is known."""
    for pilot in pilots[number::_CROWD]:
        yield _request(pilot, 1)


def _ask(pilots: Sequence[Pilot], _number: int) -> Conversation:
    """Pilots of any site, one after the other; how many jobs they took.

    No two minutes have the same requests: the service caches what it has read.
    """
    draw, jobs = random.Random(), 0
    try:
        while True:
            answer = yield _request(draw.choice(pilots), draw.uniform(_LEFT, 1))
            jobs += len(answer.json()["matches"]) if answer.status == HTTPStatus.OK else 0
    except http_load.Over:
        return jobs


def _request(pilot: Pilot, left: float) -> bytes:
    token, node = pilot
    wall_time = int(float(str(node["wall_time"])) * left)
    body = {**node, "wall_time": wall_time, "request_id": uuid.uuid4().hex}
    return http_load.request("POST", _PATH, token=token, body=body, headers=http_load.PATIENT)
