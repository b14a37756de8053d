"""Matches a second at sites with limits, by how many jobs run there, beside the rate without limits.

Six of sixty sites have a limit that is never reached, and in the end one that is. The same requests go to a
database with limits and to one without, in turn, after a first turn that does not count; what runs is copied
inside the database.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from sqlalchemy import Engine, text

from benchmarks import checks, clients, copies, lhcb, matching, population, servers
from benchmarks.clients import Maker, Run
from benchmarks.match import Side
from benchmarks.results import Point, Result
from taskqueue.db import database

_LIMITED = 6
_TOGETHER = 64
_ROUNDS = 3
#: More than are taken: a side that runs short of jobs shows nothing.
_CLASSES, _WAITING = 1_000, 500_000
_RUNNING = (0, 10_000, 56_000)
_HELD = text("""
    SELECT min(job_id) FROM attempts WHERE closed_at IS NULL AND site = ANY(:sites) GROUP BY site
""")
_BACKENDS = text("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")


def run(*, quick: bool) -> Iterator[Result]:
    """All sites together, and the limited ones only, with 0, 10,000 and 56,000 jobs running at each.

    In the end at the limited ones no more jobs of the most frequent type may run.
    """
    seconds = 2.0 if quick else 5.0
    with servers.postgres() as server, ExitStack() as stack:
        urls = {
            what: stack.enter_context(servers.fresh_database(server, f"growth_{what}"))
            for what in ("limited", "free")
        }
        engines = {what: stack.enter_context(_filled(url)) for what, url in urls.items()}
        before = 0
        for running in _RUNNING[:2] if quick else _RUNNING:
            for what, engine in engines.items():
                _add_running(engine, urls[what], running - before, what)
            before = running
            for where in ("all sites", "limited sites"):
                yield from _measure(urls, engines, running, seconds, where)
        yield from _measure(urls, engines, before, seconds, "full sites")
        for what, engine in engines.items():
            flaws = _flaws(engine)
            yield Result(values={"what": f"jobs doubled or lost, {what}", "count": len(flaws)}, flaws=flaws)


def _flaws(engine: Engine) -> list[str]:
    with database.reading(engine) as conn:
        jobs = conn.scalar(text("SELECT count(*) FROM jobs")) or 0
    return checks.flaws(engine, jobs=jobs)


@contextmanager
def _filled(url: str) -> Iterator[Engine]:
    engine = database.connect(url)
    population.fill(engine, classes=_CLASSES, waiting=_WAITING)
    yield engine
    engine.dispose()


def _tree(what: str, where: str = "") -> str:
    if what == "free":
        return lhcb.tree()
    return lhcb.tree(limited=_LIMITED, is_full=where == "full sites")


def _offers(where: str) -> Sequence[Mapping[str, object]]:
    return [each for each in lhcb.queues() if where == "all sites" or each["Site"] in lhcb.SITES[:_LIMITED]]


def _add_running(engine: Engine, url: str, more: int, what: str) -> None:
    """Let so many more jobs run at each of the limited sites."""
    if not more:
        return
    with matching.singly(url, _offers("limited sites"), 0, tree=_tree(what)) as work:
        work(20.0, 60)
    with database.writing(engine) as conn:
        conn.execute(text("SET LOCAL statement_timeout = 0"))
        held = conn.execute(_HELD, {"sites": list(lhcb.SITES[:_LIMITED])}).scalars().all()
        copies.make(conn, [copies.Wanted(original=each, copies=more) for each in held], running=True)
        if what == "limited":
            copies.count_running(conn)
    population.settle(engine)


def _measure(
    urls: Mapping[str, str], engines: Mapping[str, Engine], running: int, seconds: float, where: str
) -> Iterator[Result]:
    with ExitStack() as stack:
        sides = {
            what: Side(what, stack.enter_context(clients.all_of(_client(url, what, where), 1)))
            for what, url in urls.items()
        }
        cpu = dict.fromkeys(sides, 0.0)
        for side in sides.values():
            side.clients.wait()
            side.clients.run(seconds)  # the rules of each place are read once, and not measured
        for _ in range(_ROUNDS):
            for what, side in sides.items():
                began = _backend_seconds(engines[what])
                side.runs.append(side.clients.run(seconds))
                cpu[what] += _backend_seconds(engines[what]) - began
        for what, side in sides.items():
            ratio = round(side.rate / max(1.0, sides["free"].rate), 2)
            yield Result(
                values={
                    "what": f"{where}, {what}",
                    "running at each": running,
                    **side.values(),
                    "PostgreSQL µs": round(1e6 * cpu[what] / max(1, _jobs(side.runs))),
                    "ratio": ratio,
                },
                targets={f"limited, {where}": ratio} if what == "limited" else {},
                note=f"{running:,} jobs running at each limited site",
                points=[Point(plot="growth", line=f"{where}, {what}", x=running, y=side.rate)],
            )


def _client(url: str, what: str, where: str) -> Maker:
    return partial(matching.together, url, _offers(where), _TOGETHER, tree=_tree(what, where))


def _jobs(runs: Sequence[Run]) -> int:
    return sum(len(each.latencies) for each in runs)


def _backend_seconds(engine: Engine) -> float:
    """CPU time of the server processes of a database."""
    with database.reading(engine) as conn:
        pids = conn.execute(_BACKENDS).scalars().all()
    ticks = sum(
        sum(map(int, (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[11:13]))
        for pid in pids
    )
    return ticks / os.sysconf("SC_CLK_TCK")
