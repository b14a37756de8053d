"""Our single claims beside DIRAC's `TaskQueueDB.matchAndGetJob`, on equal populations for equal pilots."""

from collections.abc import Iterator
from functools import partial
from statistics import median

from benchmarks import checks, clients, dirac, lhcb, matching, population, servers
from benchmarks.clients import Run
from benchmarks.results import Point, Result
from examples.servers.postgres import Postgres
from taskqueue.db import database

_QUEUES = (10, 1_000, 10_000)
_CLIENTS = (1, 4)
_WAITING = 20_000
_ROUNDS = 2
#: Jobs that we may take in a round: the smaller queues are not to be emptied.
_MOST = 1_500


def run(*, seconds: float) -> Iterator[Result]:
    """By task queues and by clients; only a row that says what is missing, if DIRAC is not there."""
    if how_to := dirac.missing():
        yield Result(values={"what": f"DIRAC TaskQueueDB: not measured ({how_to})"})
        return
    with servers.postgres() as server:
        for queues in _QUEUES:
            yield from _measured(server, queues, seconds)


def _measured(server: Postgres, queues: int, seconds: float) -> Iterator[Result]:
    classes, sizes = lhcb.requirement_classes(queues, tagged=0), lhcb.sizes(queues, _WAITING)
    with (
        servers.fresh_database(server, f"beside_dirac_{queues}") as url,
        dirac.filled(classes, sizes) as peer,
    ):
        engine = database.connect(url)
        population.fill(engine, classes=queues, waiting=_WAITING, tagged=0, pooled=False)
        with clients.all_of(partial(matching.singly, url, dirac.offers()), max(_CLIENTS)) as most:
            most.wait()
            for count in _CLIENTS:
                mine = most.first(count)
                ours: list[Run] = []
                theirs: list[Run] = []
                flaws: list[str] = []
                for _ in range(_ROUNDS):
                    ours.append(mine.run(seconds, _MOST))
                    run, found = peer.run(count, seconds)
                    theirs.append(run)
                    flaws += found
                yield from _compared(queues, count, ours, theirs, flaws)
        if found := checks.flaws(engine, jobs=_WAITING):
            yield Result(values={"what": f"flaws: {queues} task queues", "count": len(found)}, flaws=found)
        engine.dispose()


def _compared(
    queues: int, count: int, ours: list[Run], theirs: list[Run], flaws: list[str]
) -> Iterator[Result]:
    rates = {name: median(each.per_second for each in runs) for name, runs in _named(ours, theirs)}
    ratio = round(rates["ours"] / rates["DIRAC"], 1) if rates["DIRAC"] else 0.0
    for name, runs in _named(ours, theirs):
        yield Result(
            values={
                "what": "in process, single claims" if name == "ours" else "DIRAC TaskQueueDB.matchAndGetJob",
                "classes": queues,
                "waiting": _WAITING,
                "clients": count,
                "per second": round(rates[name]),
                "p50 ms": round(median(each.ms(0.5) for each in runs), 2),
                "p99 ms": round(median(each.ms(0.99) for each in runs), 2),
                **({"of DIRAC": ratio} if name == "ours" else {}),
            },
            targets={f"dirac {queues} {count}": ratio} if name == "ours" else {},
            flaws=flaws if name == "DIRAC" else [],
            points=[
                Point(
                    plot="match-dirac",
                    line=f"{name}, {count} client{'s' * (count > 1)}",
                    x=queues,
                    y=rates[name],
                )
            ],
        )


def _named(ours: list[Run], theirs: list[Run]) -> Iterator[tuple[str, list[Run]]]:
    yield "DIRAC", theirs
    yield "ours", ours
