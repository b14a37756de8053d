"""Matches a second by requirement classes, waiting jobs and clients, beside a bare claim and beside DIRAC.

In process a client is a process that claims one job a transaction; `64 together` are requests of one process
that wait at the same time, as in the service. What is compared takes turns.
"""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

from sqlalchemy import Engine, update

from benchmarks import bare, checks, clients, lhcb, match_dirac, match_http, matching, population, servers
from benchmarks.clients import Clients, Run
from benchmarks.results import Point, Result
from examples.servers.postgres import Postgres
from matcher.index.requirement_class_index import ClassIndex
from matcher.request import match_request
from requirements.resource import Resource
from taskqueue.db import database
from taskqueue.schema.tables import task_queues

_TOGETHER = 64
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Size:
    """How many jobs wait in how many classes."""

    classes: int
    waiting: int

    def __str__(self) -> str:
        return f"{self.classes:,} classes, {self.waiting:,} waiting"


#: By classes.
_WIDTHS = tuple(Size(classes, 100_000) for classes in (10, 1_000, 10_000, 50_000))
#: By waiting jobs.
_DEPTHS = tuple(Size(1_000, waiting) for waiting in (10_000, 100_000, 1_000_000, 10_000_000))
#: With Scarcity and without: short turns, since a few per cent are to be seen.
_SCARCE = Size(1_000, 100_000)
_SHORT_ROUNDS = 15
#: As the agent stores them; task queues of one class have the same.
COUNT_SLOTS = update(task_queues).values(supply=1 + task_queues.c.class_id * 7_919 % 1_000)
#: Over HTTP, and against the bare claim.
_MAIN = Size(10_000, 1_000_000)


def run(*, quick: bool) -> Iterator[Result]:
    """In process by classes and by waiting jobs, against the bare claim, over HTTP, against DIRAC."""
    seconds = 1.0 if quick else 3.0
    yield from _selected()
    with servers.postgres() as server:
        widths = (_WIDTHS[0], *_WIDTHS[2:]) if quick else _WIDTHS
        yield from _grown(server, widths, seconds, "match-classes", "growth classes")
        depths = _DEPTHS[:2] if quick else _DEPTHS
        yield from _grown(server, depths, seconds, "match-waiting", "growth jobs")
        yield from _with_scarcity(server, seconds / _ROUNDS)
        with servers.fresh_database(server, "match_main") as url:
            engine = _filled(url, _MAIN)
            yield from _beside_bare(server, url, seconds)
            yield from match_http.run(server, url, quick=quick)
            yield from _flaws(engine, _MAIN)
            engine.dispose()
    yield from match_dirac.run(seconds=seconds)


def _selected() -> Iterator[Result]:
    """CPU time until the classes that a resource may run are known: of places that come for the first time,
    and of known ones whose time and memory left are others each time."""
    index, draw = ClassIndex(), random.Random(0)
    for number, asked in enumerate(lhcb.requirement_classes(_WIDTHS[-1].classes)):
        index.add(number, asked)
    first, *others = (match_request.read_resource(offer).resource for offer in lhcb.queues())
    index.mask(first, frozenset())  # builds the columns
    changed = (
        replace(each, cpu_time=draw.randrange(10**6), max_ram=draw.randrange(16_000)) for each in others * 4
    )
    for what, resources, target in (("new place", others, "select new"), ("known place", changed, "select")):
        took = median(_cpu_ms(index, each) for each in resources)
        yield Result(
            values={"what": f"classes for a {what}", "classes": len(index), "CPU µs": round(1000 * took, 1)},
            targets={target: took},
        )


def _cpu_ms(index: ClassIndex, resource: Resource) -> float:
    began = time.thread_time_ns()
    index.mask(resource, frozenset())
    return (time.thread_time_ns() - began) / 1e6


@dataclass(slots=True)
class Side:
    """The runs of one side of a comparison."""

    what: str
    clients: Clients
    runs: list[Run] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Jobs a second, the median of the runs."""
        return median(each.per_second for each in self.runs)

    def ms(self, share: float) -> float:
        """Milliseconds, the median of the runs."""
        return round(median(each.ms(share) for each in self.runs), 2)

    def values(self) -> dict[str, str | float]:
        """For a table."""
        return {"per second": round(self.rate), "p50 ms": self.ms(0.5), "p99 ms": self.ms(0.99)}


def taking_turns(
    sides: Sequence[Side], seconds: float, most: Sequence[int] = (), rounds: int = _ROUNDS
) -> None:
    """Let each work for a while, one after the other, several times over."""
    for side in sides:
        side.clients.wait()
    for _ in range(rounds):
        for number, side in enumerate(sides):
            side.runs.append(side.clients.run(seconds, *most[number : number + 1]))


def _grown(
    server: Postgres, sizes: Sequence[Size], seconds: float, plot: str, target: str
) -> Iterator[Result]:
    """How single claims and claims together fare as the population grows; all sizes take turns."""
    with ExitStack() as stack:
        engines, sides = [], []
        for number, size in enumerate(sizes):
            url = stack.enter_context(servers.fresh_database(server, f"{plot.replace('-', '_')}_{number}"))
            engines.append(_filled(url, size))
            stack.callback(engines[-1].dispose)
            for what, maker in _ways(url).items():
                sides.append(Side(what, stack.enter_context(clients.all_of(maker, 1))))
        # A small population is not to be emptied by what is measured.
        most = [size.waiting // (4 * _ROUNDS * len(_WAYS)) for size in sizes for _ in _WAYS]
        taking_turns(sides, seconds, most)
        for number, size in enumerate(sizes):
            for side in sides[number * len(_WAYS) :][: len(_WAYS)]:
                yield _of_size(size, side, plot)
            yield from _flaws(engines[number], size)
        growth = round(sides[0].rate / sides[-len(_WAYS)].rate, 2)
        note = f"{sizes[0]}, to {sizes[-1]}"
        yield Result(
            values={"what": f"growth of match time: {note}", "ratio": growth},
            targets={target: growth},
            note=note,
        )


_WAYS = ("single claims", f"{_TOGETHER} together")


def _ways(url: str) -> Mapping[str, clients.Maker]:
    single = partial(matching.singly, url, lhcb.queues())
    return dict(zip(_WAYS, (single, partial(matching.together, url, lhcb.queues(), _TOGETHER)), strict=True))


def _of_size(size: Size, side: Side, plot: str) -> Result:
    x = size.classes if plot == "match-classes" else size.waiting
    return Result(
        values={
            "what": f"in process, {side.what}",
            "classes": size.classes,
            "waiting": size.waiting,
            **side.values(),
        },
        points=[Point(plot=plot, line=side.what, x=x, y=side.rate)],
    )


def _beside_bare(server: Postgres, url: str, seconds: float) -> Iterator[Result]:
    """Single claims of one and four processes, and 64 together of one, against bare claims."""
    with servers.fresh_database(server, "bare") as bare_url, ExitStack() as stack:
        bare.fill(bare_url)
        single, together = _ways(url).values()
        bares, singles, crowd = (
            stack.enter_context(clients.all_of(maker, count))
            for maker, count in ((partial(bare.claims, bare_url), 4), (single, 4), (together, 1))
        )
        limits = {count: Side("bare claim, psycopg", bares.first(count)) for count in (1, 4)}
        ours = {count: Side(_WAYS[0], singles.first(count)) for count in (1, 4)}
        batched = Side(_WAYS[1], crowd)
        taking_turns([*limits.values(), *ours.values(), batched], seconds)
        for count, limit in limits.items():
            yield Result(values={"what": limit.what, "clients": count, **limit.values()})
        for count, mine in ours.items():
            yield _against(mine, limits[count], count, "single")
        yield _against(batched, limits[1], _TOGETHER, "batched")


def _against(side: Side, limit: Side, count: int, target: str) -> Result:
    of_bare = round(side.rate / limit.rate, 2)
    return Result(
        values={
            "what": f"in process, {side.what}",
            "classes": _MAIN.classes,
            "waiting": _MAIN.waiting,
            "clients": count,
            **side.values(),
            "of bare": of_bare,
        },
        targets={target: of_bare},
        note=f"{count} client{'s' * (count > 1)}",
    )


def _with_scarcity(server: Postgres, seconds: float) -> Iterator[Result]:
    """Single claims where the slots of all task queues are counted, beside such where none are."""
    with ExitStack() as stack:
        sides = []
        for what, is_counted in (("Scarcity off", False), ("Scarcity: owner", True)):
            url = stack.enter_context(servers.fresh_database(server, f"scarcity_{is_counted}".lower()))
            engine = _filled(url, _SCARCE)
            stack.callback(engine.dispose)
            if is_counted:
                with database.writing(engine) as conn:
                    conn.execute(COUNT_SLOTS)
            maker = partial(matching.singly, url, lhcb.queues())
            sides.append(Side(what, stack.enter_context(clients.all_of(maker, 1))))
        off, on = sides
        taking_turns(sides, seconds, rounds=_SHORT_ROUNDS)
        for side in sides:
            yield Result(values={"what": f"in process, single claims, {side.what}", **side.values()})
        for share, target in ((0.5, "scarcity p50"), (0.99, "scarcity p99")):
            pairs = zip(on.runs, off.runs, strict=True)
            ratio = round(median(one.ms(share) / other.ms(share) for one, other in pairs), 3)
            name = f"p{100 * share:.0f} with Scarcity: owner, to that without"
            yield Result(values={"what": name, "ratio": ratio}, targets={target: ratio})


def _filled(url: str, size: Size) -> Engine:
    engine = database.connect(url)
    population.fill(engine, classes=size.classes, waiting=size.waiting)
    return engine


def _flaws(engine: Engine, size: Size) -> Iterator[Result]:
    """Only if there are any."""
    if found := checks.flaws(engine, jobs=size.waiting):
        yield Result(values={"what": f"flaws: {size}", "count": len(found)}, flaws=found)
