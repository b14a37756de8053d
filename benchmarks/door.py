"""Calls a second of DIRAC's JobAgents at the door, of one core.

200 agents with proxies, each on a node of its own, call as DIRAC 9 does: each call is a TLS connection of its
own, whose chain of certificates is verified. They poll beside many waiting jobs that do not fit, then they
take jobs and report on them. The processor time is that of the door's one process: clients and PostgreSQL
have the same two cores.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks import nothing, population, servers, services
from benchmarks.results import Result, quantile
from examples.servers.certificates import Authority, make_proxy
from examples.servers.dirac_wire import WireClient
from taskqueue.db import database

_AGENTS, _PROXIES = 200, 20
_REPORTS = 6
#: Less than any of the jobs needs, and enough for all.
_IDLE, _LONG = 9_000, 10_000_000


@dataclass(slots=True)
class _Calls:
    """What one thread has called."""

    seconds: list[float] = field(default_factory=list)
    jobs: list[int] = field(default_factory=list)
    failed: int = 0


#: Calls of an agent, one after the other, into the record.
_Script = Callable[[WireClient, int, _Calls], None]


def run(*, quick: bool) -> Iterator[Result]:
    """Polling without a match, and jobs with their reports."""
    classes, seconds = (1_000, 10.0) if quick else (10_000, 30.0)
    with servers.postgres() as server, servers.fresh_database(server, "door") as url:
        engine = database.connect(url)
        population.fill(engine, classes=classes, waiting=max(20_000, classes))
        engine.dispose()
        with _serving(url) as (process, clients):
            _drive(process, clients, _poll, 2.0)  # loads the index
            yield _line("polling, no job fits", *_drive(process, clients, _poll, seconds), target="door")
            yield _line(f"a job with {_REPORTS} reports", *_drive(process, clients, _take, seconds))


@contextmanager
def _serving(database_url: str) -> Iterator[tuple[psutil.Process, Sequence[WireClient]]]:
    """A door on a filled database, and clients of it."""
    with tempfile.TemporaryDirectory(prefix="pilotage-bench-") as name:
        home = Path(name)
        authority = Authority(home)
        (host, secret), pilot = authority.sign("host"), authority.sign("pia")
        (home / "resources.yaml").write_text(_configuration())
        arguments = [
            *("dirac-door", "--home", name, "--database-url", database_url, "--port", "0"),
            *("--tls-certificate", str(host), "--tls-key", str(secret)),
            *("--authorities", str(authority.link_by_hash())),
            *("--resources", str(home / "resources.yaml")),
        ]
        proxies = [make_proxy(*pilot, home / f"{number}.proxy", group="pilots") for number in range(_PROXIES)]
        with services.run_process(*arguments) as (url, process):
            yield (
                process,
                [
                    WireClient(
                        urls=[url],
                        proxy=proxies[number % _PROXIES],
                        authority=authority.certificate,
                        address=f"127.0.{1 + number // 100}.{1 + number % 100}",
                    )
                    for number in range(_AGENTS)
                ],
            )


def _configuration() -> str:
    return (
        nothing.configuration()
        + "  Users: {pia: {DN: /DC=test/CN=pia}}\n"
        + f"  Groups: {{pilots: {{VO: {population.VO}, Users: [pia], Properties: [GenericPilot]}}}}\n"
    )


def _drive(
    process: psutil.Process, clients: Sequence[WireClient], script: _Script, seconds: float
) -> tuple[list[_Calls], float, float]:
    """What all have called in so many seconds, how long it took, and the processor time of the door."""
    calls, end = [_Calls() for _ in clients], time.monotonic() + seconds

    def go_on(number: int) -> None:
        while time.monotonic() < end:
            try:
                script(clients[number], number, calls[number])
            except OSError:
                calls[number].failed += 1

    threads = [threading.Thread(target=go_on, args=(number,)) for number in range(len(clients))]
    began, used = time.monotonic(), sum(process.cpu_times()[:2])
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return calls, time.monotonic() - began, sum(process.cpu_times()[:2]) - used


def _poll(client: WireClient, number: int, calls: _Calls) -> None:
    _call(client, calls, "Matcher", "requestJob", _resource(number, _IDLE))


def _take(client: WireClient, number: int, calls: _Calls) -> None:
    answer = _call(client, calls, "Matcher", "requestJob", _resource(number, _LONG))
    if answer is None:
        return
    job_id = int(str(answer["JobID"]))
    calls.jobs.append(job_id)
    for status in ("Running", *[""] * (_REPORTS - 2), "Done"):
        report = {"Status": status, "MinorStatus": f"minor status {status}", "Source": "JobWrapper"}
        _call(client, calls, "JobStateUpdate", "setJobStatusBulk", job_id, {"2100-01-01 00:00:00": report})


def _resource(number: int, cpu_time: int) -> dict[str, object]:
    site = population.SITES[number % len(population.SITES)]
    offered = nothing.offer(site)
    return {**offered, "CPUTime": cpu_time, "PilotReference": f"https://ce01/{number}"}


def _call(client: WireClient, calls: _Calls, *arguments: object) -> dict[str, object] | None:
    """The value of an answer; None: there was no job."""
    began = time.perf_counter()
    answer = client.call(*map(str, arguments[:2]), *arguments[2:])
    calls.seconds.append(time.perf_counter() - began)
    if not answer["OK"] and answer["Errno"] != 1510:
        raise OSError(answer["Message"])
    value: dict[str, object] | None = answer.get("Value")
    return value


def _line(what: str, calls: Sequence[_Calls], seconds: float, cpu: float, *, target: str = "") -> Result:
    took = [each for one in calls for each in one.seconds]
    jobs = [each for one in calls for each in one.jobs]
    failed = sum(each.failed for each in calls)
    of_core = round(len(took) / cpu, 1)
    flaws = [f"{failed} calls failed"] if failed else []
    if doubled := len(jobs) - len(set(jobs)):
        flaws.append(f"{doubled} jobs were handed out twice")
    return Result(
        values={
            "what": what,
            "agents": len(calls),
            "calls/s": round(len(took) / seconds, 1),
            "calls/s of one core": of_core,
            "door CPU ms": round(1000 * cpu / max(1, len(took)), 2),
            "p50 ms": round(1000 * quantile(took, 0.5), 1),
            "p99 ms": round(1000 * quantile(took, 0.99), 1),
        },
        targets={target: of_core} if target else {},
        flaws=flaws,
    )
