"""Matches a second by number of requirement classes, beside a bare claim on the same server.

The bare claim is one `FOR UPDATE SKIP LOCKED LIMIT 1` with its `UPDATE … RETURNING` through psycopg, each in
its own durable transaction: what any queue on PostgreSQL comes down to, without attempt, lease and log.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import psycopg
from sqlalchemy import Engine, func, select

from benchmarks import population, servers
from benchmarks.results import Result
from cs_config import validate
from matcher import presented
from matcher.claimer import Claimer
from matcher.matcher import Matcher
from matcher.requests import Caller, MatchRequest
from taskqueue import database
from taskqueue.tables import attempts

_CLAIM = """
    UPDATE bare SET taken = true WHERE id =
      (SELECT id FROM bare WHERE NOT taken ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING id
"""
_CLIENTS = (1, 16, 64)
_CALLER = Caller(subject="bench", vos=frozenset({population.VO}))


def run(*, quick: bool) -> Iterator[Result]:
    """The bare claim first, then ours."""
    claims = 500 if quick else 5_000
    with servers.postgres() as server:
        with servers.fresh_database(server, "bare") as url:
            bare = _bare(url, claims)
        yield Result(values={"what": "bare claim, psycopg", "classes": 0, "clients": 1, "per second": bare})
        for classes in (10, 1_000) if quick else (10, 1_000, 10_000):
            with servers.fresh_database(server, f"match_{classes}") as url:
                engine = database.connect(url, pool_size=20)
                rounds = len(_CLIENTS)
                population.fill(engine, classes=classes, waiting=max(20_000, classes, 4 * claims * rounds))
                _analyze(engine)
                for clients in _CLIENTS:
                    yield _measured(engine, classes, clients, claims, bare)
                engine.dispose()


def _bare(url: str, claims: int) -> int:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as conn:
        conn.execute("CREATE TABLE bare (id bigint PRIMARY KEY, taken boolean NOT NULL)")
        conn.execute("INSERT INTO bare SELECT n, false FROM generate_series(1, 100000) n")
        conn.execute("CREATE INDEX ON bare (id) WHERE NOT taken")
        conn.execute("VACUUM ANALYZE bare")
        began = time.perf_counter()
        for _ in range(claims):
            assert conn.execute(_CLAIM).fetchone() is not None
        return round(claims / (time.perf_counter() - began))


def _measured(engine: Engine, classes: int, clients: int, claims: int, bare: int) -> Result:
    empty = validate.parse("Registry: {VO: {lhcb: {}}}")
    matcher = Matcher(engine, lambda: empty, lambda: population.NOW)
    claimer = Claimer(engine, matcher)
    claimer.start()
    try:
        rate, latencies = _drive(claimer, clients, claims)
    finally:
        claimer.stop()
    doubled = _doubled(engine)
    return Result(
        values={
            "what": "match, in process",
            "classes": classes,
            "clients": clients,
            "per second": round(rate),
            "of bare": round(rate / bare, 2),
            "p50 ms": round(1000 * _quantile(latencies, 0.5), 1),
            "p99 ms": round(1000 * _quantile(latencies, 0.99), 1),
        },
        flaws=[f"{doubled} jobs were handed out twice"] if doubled else [],
    )


def _drive(claimer: Claimer, clients: int, claims: int) -> tuple[float, list[float]]:
    """Have so many clients ask one after the other; matches a second, and seconds of each."""

    def ask(seed: int) -> list[float]:
        draw = random.Random(seed)
        return [_timed(lambda: _ask(claimer, draw)) for _ in range(claims // clients)]

    _ask(claimer, random.Random(0))  # loads the index
    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        latencies = [each for client in pool.map(ask, range(clients)) for each in client]
    return len(latencies) / (time.perf_counter() - began), latencies


def _ask(claimer: Claimer, draw: random.Random) -> None:
    offered = presented.read(
        {
            "Site": draw.choice(population.SITES),
            "CPUTime": 1_100_000,
            "MaxRAM": 4_000,
            "NumberOfProcessors": 1,
        }
    )
    request = MatchRequest(presented=offered, caller=_CALLER, deadline=time.monotonic() + 30)
    answer = claimer.submit(request).future.result(60)
    assert answer.matches, answer


def _timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _doubled(engine: Engine) -> int:
    with database.reading(engine) as conn:
        counts = Counter(conn.execute(select(attempts.c.job_id)).scalars())
        total = conn.scalar(select(func.count()).select_from(attempts))
    return (total or 0) - len(counts)


def _analyze(engine: Engine) -> None:
    """Give the planner what autovacuum would soon: the table was filled a moment ago."""
    with engine.connect() as conn:
        conn.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("VACUUM ANALYZE")
