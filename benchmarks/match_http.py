"""Pilots that take jobs over HTTP: tokens verified, attempt, lease, log row and limits with every job.

The service is `pilotage serve` as an installation runs it. At some sites the jobs of one type are limited, so
that each claim there counts them; the limit is not reached.
"""

import itertools
import json
import math
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from benchmarks import http_load, lhcb, services
from benchmarks.http_load import Conversation
from benchmarks.results import Point, Result
from benchmarks.services import Service

_CLIENTS = (1, 16, 32, 64)
#: Those that the target is about.
_MANY = 16
#: Of the sites.
_LIMITED = 6
#: Pilots that take turns on one connection.
_PILOTS_EACH = 8
_WORKERS = (1, 2)

#: The token of a pilot, and what it offers.
Pilot = tuple[str, dict[str, object]]


def run(url: str, *, quick: bool) -> Iterator[Result]:
    """By processes of the service and clients; the target is about as many processes as do best."""
    clients, seconds = ((_CLIENTS[0], _MANY, _CLIENTS[-1]), 3.0) if quick else (_CLIENTS, 15.0)
    measured = [_with(url, workers, clients, seconds) for workers in _WORKERS]
    best = max(measured, key=lambda some: min(each.targets.get("http", math.inf) for each in some))
    for some in measured:
        yield from some if some is best else (replace(each, targets={}) for each in some)


def _with(url: str, workers: int, clients: Sequence[int], seconds: float) -> list[Result]:
    with services.serving(url, lhcb.tree(limited=_LIMITED), workers=workers) as service:
        pilots = _pilots(service, _CLIENTS[-1] * _PILOTS_EACH)
        _drive(service, partial(_each_once, pilots), _CLIENTS[-1], 60)
        # Once more, for those processes that came up after the first.
        _drive(service, partial(_again_and_again, pilots), _CLIENTS[-1], 2)
        return [_measured(service, pilots, count, workers, seconds) for count in clients]


def _measured(service: Service, pilots: list[Pilot], clients: int, workers: int, seconds: float) -> Result:
    before = service.cpu_seconds()
    load = _drive(service, partial(_again_and_again, pilots), clients, seconds)
    cpu = service.cpu_seconds() - before
    rate, p99 = load.per_second, load.quantile_ms(0.99)
    processes = f"{workers} process{'es' * (workers > 1)} of the service"
    return Result(
        values={
            "what": f"over HTTP, {processes}",
            "clients": clients,
            "per second": round(rate),
            "p50 ms": load.quantile_ms(0.5),
            "p99 ms": p99,
            "CPU µs": round(1e6 * cpu / max(1, len(load.latencies))),
        },
        targets={"http": rate, "http p99": p99} if clients >= _MANY else {},
        note=f"{processes}, {clients} clients",
        points=[Point(plot="match-clients", line=processes, x=clients, y=rate)],
        flaws=[f"{load.errors} requests failed: {dict(load.statuses)}"] if load.errors else [],
    )


def _drive(service: Service, script: http_load.Script, clients: int, seconds: float) -> http_load.Load:
    return http_load.drive(service.url, script, connections=clients, seconds=seconds)


def _pilots(service: Service, count: int) -> list[Pilot]:
    """So many pilots, spread over the queues."""
    queues = itertools.islice(itertools.cycle(lhcb.queues()), count)
    return [
        (service.token("pilot", vo=lhcb.VO, queue=f"{q['Site']}/{q['GridCE']}/{q['Queue']}"), dict(q))
        for q in queues
    ]


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
        if answer.status == 200 and not json.loads(answer.body)["matches"]:
            raise LookupError(f"nothing for {pilot[1]}: {answer.body!r}")
