"""Pilots that take jobs over HTTP: tokens verified, attempt, lease, log row and limits with every job.

The service is `pilotage serve` as an installation runs it. At some sites the jobs of one type are limited, so
that each claim there counts them; the limit is not reached. Before each measurement one client makes bare
claims, so that a rate stands beside what the machine gave at that moment.
"""

import itertools
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from benchmarks import bare, clients, http_load, lhcb, mixed, servers, services
from benchmarks.clients import Clients
from benchmarks.http_load import Conversation, Load
from benchmarks.mixed import Pilot
from benchmarks.results import Point, Result
from benchmarks.services import Service
from benchmarks.targets import TARGETS
from examples.servers.postgres import Postgres

_CLIENTS = (1, 16, 32, 64)
#: Of bare claims before each measurement.
_BARE_SECONDS = 1.0
#: Those that the target is about.
_MANY = 16
#: Of the sites.
_LIMITED = 6
#: Pilots that take turns on one connection.
_PILOTS_EACH = 8
_WORKERS = (1, 2)


def run(server: Postgres, url: str, *, quick: bool) -> Iterator[Result]:
    """By processes of the service and clients; the target is about as many processes as do best."""
    seconds = 3.0 if quick else 15.0
    with servers.fresh_database(server, "bare_beside_http") as bare_url:
        bare.fill(bare_url)
        with clients.all_of(partial(bare.claims, bare_url), 1) as limit:
            limit.wait()
            measured = [_with(server, url, workers, seconds, limit) for workers in _WORKERS]
    best = max(measured, key=lambda some: max(each.targets.get(f"http {_CLIENTS[-1]}", 0) for each in some))
    for some in measured:
        yield from some if some is best else (replace(each, targets={}) for each in some)


def _with(server: Postgres, url: str, workers: int, seconds: float, limit: Clients) -> list[Result]:
    with services.serving(url, lhcb.tree(limited=_LIMITED), workers=workers) as service:
        # By tokens of gateways, as none of them ends its jobs.
        pilots = list(itertools.islice(mixed.gateways(service), _CLIENTS[-1] * _PILOTS_EACH))
        first = _drive(service, partial(_each_once, pilots), _CLIENTS[-1], 60)
        # Once more, for those processes that came up after the first.
        _drive(service, partial(_again_and_again, pilots), _CLIENTS[-1], 2)
        return [
            _cold(first, workers),
            *(_measured(server, service, pilots, count, workers, seconds, limit) for count in _CLIENTS),
        ]


def _cold(first: Load, workers: int) -> Result:
    return Result(
        values={
            "what": f"over HTTP, {_processes(workers)}, each pilot once, right after the start",
            "clients": _CLIENTS[-1],
            "per second": round(first.per_second),
            "p50 ms": first.quantile_ms(0.5),
            "p99 ms": first.quantile_ms(0.99),
            "seconds": round(first.seconds, 2),
        },
        targets={"http cold": first.seconds} if workers == 1 else {},
        note=f"{len(first.latencies)} pilots",
        flaws=_errors(first),
    )


def _measured(
    server: Postgres,
    service: Service,
    pilots: list[Pilot],
    connections: int,
    workers: int,
    seconds: float,
    limit: Clients,
) -> Result:
    bare_rate = limit.run(_BARE_SECONDS).per_second
    before = service.cpu_seconds(), servers.cpu_seconds(server)
    load = _drive(service, partial(_again_and_again, pilots), connections, seconds)
    used = service.cpu_seconds() - before[0], servers.cpu_seconds(server) - before[1]
    rate, p99 = load.per_second, load.quantile_ms(0.99)
    of_bare = round(rate / bare_rate, 2)
    processes = _processes(workers)
    service_cpu, postgres_cpu, client_cpu = (
        round(1e6 * cpu / max(1, len(load.latencies))) for cpu in (*used, load.cpu_seconds)
    )
    return Result(
        values={
            "what": f"over HTTP, {processes}",
            "clients": connections,
            "per second": round(rate),
            "p50 ms": load.quantile_ms(0.5),
            "p99 ms": p99,
            "of bare": of_bare,
            "service µs": service_cpu,
            "PostgreSQL µs": postgres_cpu,
            "client µs": client_cpu,
        },
        targets=_targets(connections, rate=rate, of_bare=of_bare, p99=p99, cpu=service_cpu),
        note=f"{processes}, {connections} clients",
        points=[Point(plot="match-clients", line=processes, x=connections, y=rate)],
        flaws=_errors(load),
    )


def _targets(connections: int, **measured: float) -> dict[str, float]:
    """The targets that a measurement with so many clients is about."""
    if connections < _MANY:
        return {}
    found = {
        f"http {connections}": measured["rate"],
        f"http of bare {connections}": measured["of_bare"],
        f"http p99 {connections}": measured["p99"],
        "http cpu" if connections == _CLIENTS[-1] else "": measured["cpu"],
    }
    return {name: value for name, value in found.items() if name in TARGETS}


def _processes(workers: int) -> str:
    return f"{workers} process{'es' * (workers > 1)} of the service"


def _errors(load: Load) -> list[str]:
    return [f"{load.errors} requests failed: {load.describe_errors()}"] if load.errors else []


def _drive(service: Service, script: http_load.Script, connections: int, seconds: float) -> Load:
    return http_load.drive(service.url, script, connections=connections, seconds=seconds)


def _request(pilot: Pilot) -> bytes:
    token, offer = pilot
    body = {**offer, "count": 1, "request_id": uuid.uuid4().hex}
    return http_load.request("POST", "/api/v1/matcher/requestJob", token=token, body=body)


def _each_once(pilots: list[Pilot], number: int) -> Conversation:
    """Makes the pilots known, and loads the index."""
    for pilot in pilots[number :: _CLIENTS[-1]]:
        yield _request(pilot)


def _again_and_again(pilots: list[Pilot], number: int) -> Conversation:
    for pilot in itertools.cycle(pilots[number :: _CLIENTS[-1]]):
        answer = yield _request(pilot)
        if answer.status == 200:
            mixed.read_matches(answer)
