"""Pools: refresh of all, change of one queue, getSubmitPoolsForQueue, start from cold, memory.

In process, on PostgreSQL. The grid has the shapes of a real one, with 100,000 queues in 5,000 queue classes,
and 10,000 pools fit a tenth of them each. The refresh begins with a configuration that is loaded, and ends
with its commit; loading is measured by itself, in a process that does nothing else.
"""

import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from agents import pools as agent
from benchmarks import grid, population, servers
from benchmarks.results import Result
from cs_config.classes.queue_class_index import eligible_classes
from cs_config.classes.queue_classes import queue_classes
from cs_config.tree.configuration import Configuration
from matcher import demand
from matcher.claim.matcher import Matcher
from requirements import canonical
from taskqueue.db import database
from taskqueue.pools import listing, mapping, pools
from taskqueue.pools.pools import NewPool

_SAMPLE = 5
_NOW = population.NOW


def run(*, quick: bool) -> Iterator[Result]:
    """The refresh is of full size always; quick leaves out the requirement classes of a whole matcher."""
    queues, classes, count = 100_000, 5_000, 10_000
    size: dict[str, str | float] = {"queues": queues, "queue classes": classes, "pools": count}
    began = time.perf_counter()
    one = grid.configuration(queues=queues, classes=classes)
    yield _line("load the configuration", time.perf_counter() - began, size)
    new = list(grid.pools(count))
    with servers.postgres() as server, servers.fresh_database(server, "pools") as url:
        engine = database.connect(url)
        with database.writing(engine) as conn:
            pools.touch_pools(conn, new, now=_NOW)
        yield from _refreshed(engine, one, new, size)
        yield from _asked(engine, one, size)
        two = grid.configuration(queues=queues, classes=classes, version=2, changed=True)
        yield from _changed(engine, two, new, size)
        del one, two
        waiting = 0 if quick else 50_000
        if waiting:
            population.fill(engine, classes=waiting, waiting=waiting)
        yield _cold(url, queues, classes, {**size, "requirement classes": waiting})
        engine.dispose()


def _refreshed(
    engine: Engine, config: Configuration, new: list[NewPool], size: dict[str, str | float]
) -> Iterator[Result]:
    seconds, of_database = _cycle(engine, config, _NOW)
    flaws = list(_wrong(engine, config, new))
    line = _line("refresh, with commit", seconds, {**size, "in the database ms": _ms(of_database)})
    yield Result(values=line.values, flaws=flaws, targets={"refresh": seconds})
    seconds, of_database = _cycle(engine, config, _NOW + timedelta(minutes=20))
    values = {**size, "in the database ms": _ms(of_database)}
    yield _line("refresh again, nothing is different", seconds, values)


def _changed(
    engine: Engine, config: Configuration, new: list[NewPool], size: dict[str, str | float]
) -> Iterator[Result]:
    began = time.perf_counter()
    queue_classes(config, grid.VO)
    yield _line("queue classes of a new version", time.perf_counter() - began, size)
    seconds, of_database = _cycle(engine, config, _NOW + timedelta(minutes=21))
    values = {**size, "in the database ms": _ms(of_database), "beside it ms": _ms(seconds - of_database)}
    line = _line("one queue changed", seconds, values)
    yield Result(values=line.values, flaws=list(_wrong(engine, config, new)))


def _asked(engine: Engine, config: Configuration, size: dict[str, str | float]) -> Iterator[Result]:
    """getSubmitPoolsForQueue as the service answers it."""
    matcher, draw = Matcher(engine, lambda: config, lambda: _NOW), random.Random(0)
    vos = frozenset({grid.VO})
    asked = draw.sample(config.addresses, 50)
    for which in ("for the first time", "again"):
        times, found = [], 0
        for address in asked:
            began = time.perf_counter()
            answer = matcher.get_submit_pools(vos, [address])
            times.append(time.perf_counter() - began)
            found += sum(map(len, answer.values()))
        what = f"pools for one queue {which}, p50"
        yield _line(what, statistics.median(times), {**size, "pools each": found // len(times)})
    began = time.perf_counter()
    with database.reading(engine) as conn:
        mapping.list_pool_ids(conn, vos, config.addresses)
    yield _line("pools for all queues", time.perf_counter() - began, size)


def _cycle(engine: Engine, config: Configuration, now: Any) -> tuple[float, float]:
    """Let the pool agent do its work once; seconds in all, and of them in the database."""
    spent = [0.0]

    def before(conn: Any, *_: object) -> None:
        conn.info["began"] = time.perf_counter()

    def after(conn: Any, *_: object) -> None:
        spent[0] += time.perf_counter() - conn.info["began"]

    hooks: list[tuple[str, Callable[..., None]]] = [
        ("before_cursor_execute", before),
        ("after_cursor_execute", after),
    ]
    for name, hook in hooks:
        event.listen(engine, name, hook)
    began = time.perf_counter()
    agent.cycle(engine, config, now=now, holder="bench")
    seconds = time.perf_counter() - began
    for name, hook in hooks:
        event.remove(engine, name, hook)
    return seconds, spent[0]


def _wrong(engine: Engine, config: Configuration, new: list[NewPool]) -> Iterator[str]:
    """Pools of a sample whose stored queues are not those that the rules give."""
    for pool in random.Random(1).sample(new, _SAMPLE):
        asked = canonical.from_json(pool.original)
        right = {queue for each in eligible_classes(config, grid.VO, asked) for queue in each.queues}
        with database.reading(engine) as conn:
            stored = set(listing.list_queues(conn, [pool.pool_id]).get(pool.pool_id, ()))
        if stored != right:
            yield f"pool {pool.pool_id[:8]} is mapped to {len(stored)} queues, {len(right)} are eligible"


def _cold(url: str, queues: int, classes: int, size: dict[str, str | float]) -> Result:
    """A matcher process from its start to the first answer, and its memory then."""
    context = multiprocessing.get_context("spawn")
    asks, answers = context.Pipe()
    text = grid.text(queues=queues, classes=classes)
    process = context.Process(target=_matcher, args=(answers, url))
    process.start()
    asks.send(text)
    seconds, megabytes = asks.recv()
    process.join()
    return _line("a matcher from cold to its first answer", seconds, {**size, "memory MB": megabytes})


def _matcher(pipe: Any, url: str) -> None:
    text = pipe.recv()
    began = time.perf_counter()
    config = grid.parsed(text)
    del text
    engine = database.connect(url)
    matcher = Matcher(engine, lambda: config, lambda: _NOW)
    matcher.get_submit_pools(frozenset({grid.VO}), [config.addresses[0]])
    demand.get_matching_task_queues(matcher, *grid.asking(config.addresses[0]))
    pipe.send((time.perf_counter() - began, _resident()))


def _resident() -> int:
    """Megabytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * 4096 / 1e6)


def _line(what: str, seconds: float, more: dict[str, str | float]) -> Result:
    return Result(values={"what": what, "ms": _ms(seconds), **more})


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)
