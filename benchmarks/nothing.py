"""Refusals a second over HTTP, beside an empty endpoint of the same server.

Idle pilots poll: each with its own token, which is verified, saying what its queue offers as our pilot does.
Of the jobs that wait, in ten thousand classes, none fits. The empty endpoint is `/healthz`: what the same
server answers without a token, a body or a question. The two take turns, so that both see the same machine;
the processor time is that of the service alone.
"""

import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from sqlalchemy import func, select

from benchmarks import http_load, population, servers, services
from benchmarks.http_load import Answer, Conversation, Load
from benchmarks.results import Point, Result
from benchmarks.services import Service
from taskqueue.db import database
from taskqueue.schema.tables import attempts

_CLIENTS = (16, 64)
#: The token of a pilot, and what it offers.
Pilot = tuple[str, dict[str, object]]

#: Less than any of the jobs needs.
_CPU_TIME = 9_000


def run(*, quick: bool) -> Iterator[Result]:
    """What pilots of ours say, and what says nothing of itself, by number of clients."""
    classes, pilots, seconds, rounds = (1_000, 200, 1.0, 3) if quick else (10_000, 2_000, 3.0, 5)
    with servers.postgres() as server, servers.fresh_database(server, "nothing") as url:
        engine = database.connect(url)
        population.fill(engine, classes=classes, waiting=max(20_000, classes))
        with services.serving(url, configuration()) as service:
            idle = _pilots(service, pilots)
            _drive(service, partial(_once, idle), _CLIENTS[0], 60.0)  # binds pilots, loads the index
            for what, script in (("nothing", _plain), ("nothing, named requests", _named)):
                for clients in _CLIENTS:
                    yield _measured(service, what, partial(script, idle), clients, seconds, rounds)
        with database.reading(engine) as conn:
            taken = conn.scalar(select(func.count()).select_from(attempts))
        engine.dispose()
    yield Result(
        values={"what": "jobs taken meanwhile", "clients": 0, "per second": taken or 0},
        flaws=[f"{taken} jobs were given to pilots that they do not fit"] if taken else [],
    )


def configuration() -> str:
    """A queue at each site of the population."""
    lines = ["Resources:", "  Sites:"]
    for site in population.SITES:
        lines += [f"    {site}:", "      CEs:", "        ce01:", "          Queues:"]
        lines += ["            long: {CPUTime: 1100000, MaxRAM: 4000}"]
    return "\n".join([*lines, "Registry:", f"  VO: {{{population.VO}: {{}}}}", ""])


def offer(site: str) -> dict[str, object]:
    """What a pilot says of its slot at the queue of a site."""
    place = {"Site": site, "GridCE": "ce01", "Queue": "long"}
    return {**place, "CPUTime": _CPU_TIME, "NumberOfProcessors": 1, "MaxRAM": 4_000, "Tag": ["GPU", "AVX2"]}


def _measured(
    service: Service, what: str, script: http_load.Script, clients: int, seconds: float, rounds: int
) -> Result:
    ours, empty = _Side(), _Side()
    for _ in range(rounds):
        empty.add(service, _empty, clients, seconds)
        ours.add(service, script, clients, seconds)
    failed = ours.failed + empty.failed
    of_empty, p99 = round(ours.rate / empty.rate, 2), ours.quantile_ms(0.99)
    return Result(
        values={
            "what": what,
            "clients": clients,
            "per second": round(ours.rate),
            "empty per second": round(empty.rate),
            "of empty": of_empty,
            "CPU µs": round(ours.cpu),
            "empty CPU µs": round(empty.cpu),
            "p50 ms": ours.quantile_ms(0.5),
            "p99 ms": p99,
        },
        targets={"nothing": of_empty, "nothing p99": p99},
        note=f"{what}, {clients} clients",
        points=[
            Point(plot="nothing", line=what, x=clients, y=ours.rate),
            Point(plot="nothing", line=f"empty endpoint beside {what}", x=clients, y=empty.rate),
        ],
        flaws=[f"{failed} requests failed"] if failed else [],
    )


@dataclass(slots=True)
class _Side:
    """What the rounds of one side brought."""

    loads: list[Load] = field(default_factory=list)
    cpu_seconds: float = 0.0  #: of the service

    def add(self, service: Service, script: http_load.Script, clients: int, seconds: float) -> None:
        """One round more."""
        before = service.cpu_seconds()
        self.loads.append(_drive(service, script, clients, seconds))
        self.cpu_seconds += service.cpu_seconds() - before

    @property
    def failed(self) -> int:
        """Requests without an answer that is a success."""
        return sum(load.errors for load in self.loads)

    @property
    def rate(self) -> float:
        """Answers a second, the median of the rounds."""
        return statistics.median(load.per_second for load in self.loads)

    @property
    def cpu(self) -> float:
        """Microseconds of the service for one answer."""
        return 1e6 * self.cpu_seconds / sum(len(load.latencies) for load in self.loads)

    def quantile_ms(self, share: float) -> float:
        """Milliseconds, the median of the rounds."""
        return round(statistics.median(load.quantile_ms(share) for load in self.loads), 2)


def _drive(service: Service, script: http_load.Script, clients: int, seconds: float) -> Load:
    return http_load.drive(service.url, script, connections=clients, seconds=seconds)


def _pilots(service: Service, count: int) -> list[Pilot]:
    """So many pilots, spread over the sites."""
    sites = itertools.islice(itertools.cycle(population.SITES), count)
    return [
        (service.token("pilot", vo=population.VO, queue=f"{site}/ce01/long"), offer(site)) for site in sites
    ]


def _empty(_number: int) -> Conversation:
    request = http_load.request("GET", "/healthz")
    while True:
        yield request


def _once(pilots: list[Pilot], number: int) -> Conversation:
    for pilot in pilots[number :: _CLIENTS[0]]:
        yield _poll(pilot)


def _plain(pilots: list[Pilot], number: int) -> Conversation:
    """One pilot after the other asks, without a name for its request."""
    for poll in itertools.cycle([_poll(pilot) for pilot in pilots[number :: _CLIENTS[-1]]]):
        _require_nothing((yield poll))


def _named(pilots: list[Pilot], number: int) -> Conversation:
    """The same, each request with a new name, so that a lost answer would cost nothing: as our pilots do."""
    for each in itertools.count():
        token, offered = pilots[(number + each * _CLIENTS[-1]) % len(pilots)]
        _require_nothing(
            (yield _poll((token, {**offered, "request_id": f"{number}.{each}", "said_before": False})))
        )


def _require_nothing(answer: Answer) -> None:
    assert b'"no_task_queue"' in answer.body, answer


def _poll(pilot: Pilot) -> bytes:
    token, body = pilot
    return http_load.request("POST", "/api/v1/matcher/requestJob", token=token, body=body)
