"""What a job costs through its life: processor time of the service and of PostgreSQL, and bytes.

Over HTTP, with one process of the service; by how many jobs wait beside. What the clients use is left out.
A job is submitted with 49 others, becomes Waiting, is matched, started, heard of six times and finished. Each
has a pilot of its own, as a pilot holds no more than its slot has room for.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import psutil
from sqlalchemy import Engine, text

from benchmarks import checks, http_load, lhcb, mixed, population, servers, services
from benchmarks.http_load import Conversation
from benchmarks.mixed import Held, Pilot
from benchmarks.results import Point, Result
from benchmarks.services import Service
from examples.servers.postgres import Postgres
from requirements.errors import PilotageError
from taskqueue.db import database

_CLASSES = 1_000
_BEATS = 6
_CONNECTIONS = 16
_A_CALL = 50
_WAITING_WITHIN = 300.0  # seconds


class StillNotWaiting(PilotageError):
    """Submitted jobs are not Waiting after `_WAITING_WITHIN` seconds."""


def run(*, quick: bool) -> Iterator[Result]:
    """By the number of jobs that wait beside."""
    jobs = 1_000 if quick else 5_000
    with servers.postgres() as server:
        for waiting in (10_000, 100_000) if quick else (10_000, 100_000, 1_000_000):
            with servers.fresh_database(server, f"cost_{waiting}") as url:
                engine = database.connect(url)
                population.fill(engine, classes=_CLASSES, waiting=waiting)
                with services.serving(url, lhcb.tree()) as service:
                    meter = Meter(server=server, service=service, engine=engine)
                    yield from _lives(meter, jobs, waiting)
                if found := checks.flaws(engine, jobs=waiting + jobs):
                    yield Result(values={"what": "flaws", "waiting": waiting}, flaws=found)
                engine.dispose()


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """What has been used until now."""

    server: Postgres
    service: Service
    engine: Engine

    def read(self) -> dict[str, float]:
        """Seconds and bytes."""
        with database.reading(self.engine) as conn:
            size, log = conn.execute(_BYTES).one()
        return {"service": self.service.cpu_seconds(), "server": self._server(), "size": size, "log": log}

    def _server(self) -> float:
        """Of PostgreSQL, with those of its processes that have ended."""
        pid = int((self.server.directory / "data" / "postmaster.pid").read_text().split()[0])
        postmaster = psutil.Process(pid)
        return float(
            sum(postmaster.cpu_times()[:4])
            + sum(sum(each.cpu_times()[:2]) for each in postmaster.children(recursive=True))
        )


_BYTES = text(
    "SELECT pg_database_size(current_database()), pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8"
)


def _lives(meter: Meter, jobs: int, waiting: int) -> Iterator[Result]:
    """The stages of so many lives, and all of them together."""
    service = meter.service
    pilots = list(itertools.islice(mixed.pilots(service), jobs))
    user = service.token("user", vo=lhcb.VO, user="lbprods", group="lhcb_prmgr")
    _driven(service, partial(_introduce, pilots))
    held: list[Held] = []

    def submit() -> None:
        _driven(service, partial(_submit, user, jobs // _A_CALL))
        _await_waiting(meter.engine)

    def match() -> None:
        found = _driven(service, partial(_take, pilots))
        held.extend(itertools.chain.from_iterable(found))

    stages: dict[str, Callable[[], object]] = {
        "submission until Waiting": submit,
        "match": match,
        "start": lambda: _driven(service, partial(_say, "start", {}, 1, held)),
        f"{_BEATS} heartbeats": lambda: _driven(
            service, partial(_say, "heartbeat", {"progress": "event 17 of 400"}, _BEATS, held)
        ),
        "finish": lambda: _driven(
            service, partial(_say, "finish", {"status": "Done", "exit_code": 0}, 1, held)
        ),
    }
    first = before = meter.read()
    for what, stage in stages.items():
        stage()
        after = meter.read()
        yield _line(what, waiting, jobs if what.startswith("sub") else len(held), before, after)
        before = after
    yield _line("a life", waiting, jobs, first, before)


def _line(what: str, waiting: int, jobs: int, before: dict[str, float], after: dict[str, float]) -> Result:
    each = {name: (after[name] - before[name]) / jobs for name in after}
    cpu = {name: 1000 * each[name] for name in ("service", "server")}
    return Result(
        values={
            "what": what,
            "waiting": waiting,
            "jobs": jobs,
            "CPU ms": round(sum(cpu.values()), 2),
            "service CPU ms": round(cpu["service"], 2),
            "PostgreSQL CPU ms": round(cpu["server"], 2),
            "bytes": round(each["size"]),
            "log bytes": round(each["log"]),
        },
        points=[Point(plot="cost", line=what, x=waiting, y=sum(cpu.values()))],
    )


def _driven(service: Service, script: http_load.Script) -> list[list[Held]]:
    load = http_load.drive(service.url, script, connections=_CONNECTIONS, seconds=600)
    if load.errors:
        raise http_load.RequestsFailed(f"{load.errors} requests failed: {load.describe_errors()}")
    return load.returned


def _await_waiting(engine: Engine) -> None:
    """Until the optimizers have nothing to do any more."""
    deadline = time.monotonic() + _WAITING_WITHIN
    while True:
        with database.reading(engine) as conn:
            left = conn.scalar(text("SELECT count(*) FROM jobs WHERE due_at IS NOT NULL"))
        if not left:
            return
        if time.monotonic() > deadline:
            raise StillNotWaiting(f"{left} jobs are with the optimizers after {_WAITING_WITHIN:.0f} s")
        time.sleep(0.05)


def _submit(user: str, calls: int, number: int) -> Conversation:
    for asked in lhcb.requirement_classes(calls, seed=1)[number::_CONNECTIONS]:
        yield mixed.submission(user, asked, _A_CALL)


def _introduce(pilots: Sequence[Pilot], number: int) -> Conversation:
    """Make the pilots of this connection known, and the index loaded."""
    for pilot in pilots[number::_CONNECTIONS]:
        yield mixed.poll(pilot)


def _take(pilots: Sequence[Pilot], number: int) -> Conversation:
    """A job for each pilot of this connection; what they hold then."""
    held: list[Held] = []
    for pilot in pilots[number::_CONNECTIONS]:
        answer = yield mixed.ask(pilot, "match")
        held += [(pilot[0], match["lease"]) for match in mixed.read_matches(answer)]
    return held


def _say(what: str, body: dict[str, object], times: int, held: Sequence[Held], number: int) -> Conversation:
    for token, lease in held[number::_CONNECTIONS]:
        for _ in range(times):
            yield mixed.request(what, "POST", f"/leases/{lease}/{what}", token, body)
