"""How long explanations take: one job before all queues, every class before all queues, one queue before all.

In process, without a database; the tree is read and looked at once before, as a service does once for each
version of its configuration (`first look`).
"""

import random
import time
from collections.abc import Callable, Iterator

from benchmarks import population
from benchmarks.results import Result
from cs_config import validate
from cs_config.configuration import Configuration
from matcher import changes, shop_window, survey
from matcher.explain import explain
from matcher.parts import Demand
from requirements import canonical
from requirements.record import Record
from taskqueue.waiting_classes import WaitingClass

_MODELS = ("Intel Xeon", "AMD EPYC", "ARM Neoverse")


def run(*, quick: bool) -> Iterator[Result]:
    """A thousand by a thousand, and more unless it shall be quick."""
    for classes, queues in [(1_000, 1_000)] if quick else [(1_000, 1_000), (10_000, 10_000)]:
        yield from _measured(classes, queues)


def _measured(classes: int, queues: int) -> Iterator[Result]:
    config, demands = _tree(queues), _demands(classes)
    waiting = [_waiting(demand) for demand in demands]
    yield _line("first look", classes, queues, lambda: survey.of_vo(config, population.VO))
    whole = survey.of_vo(config, population.VO)
    address = config.addresses[0]
    for what, work in (
        ("one job, all queues", lambda: _one(whole, demands[0])),
        ("one job again, other requirements", lambda: _one(whole, demands[1])),
        ("eligible queues of every class", lambda: [whole.eligible(demand) for demand in demands]),
        ("every class again", lambda: [whole.eligible(demand) for demand in demands]),
        ("one queue, all classes", lambda: shop_window.window(config, address, waiting)),
    ):
        yield _line(what, classes, queues, work)


def _one(whole: survey.Survey, demand: Demand) -> object:
    return explain(whole, population.VO, demand), changes.changes(whole, population.VO, demand)


def _line(what: str, classes: int, queues: int, work: Callable[[], object]) -> Result:
    began = time.perf_counter()
    work()
    took = 1000 * (time.perf_counter() - began)
    return Result(values={"what": what, "classes": classes, "queues": queues, "ms": round(took, 1)})


def _tree(queues: int) -> Configuration:
    """Queues spread over the sites, no two quite alike."""
    draw = random.Random(0)
    lines = ["Resources:", "  Sites:"]
    for number, site in enumerate(population.SITES):
        mine = range(number, queues, len(population.SITES))
        lines += [f"    {site}:", "      CEs:", f"        ce.{site}:", "          Queues:"]
        lines += [f"            q{each}: {_queue(draw)}" for each in mine]
    return validate.parse("\n".join(lines), "benchmark.yaml")


def _queue(draw: random.Random) -> str:
    model, ram = draw.choice(_MODELS), draw.randrange(1_000, 128_000, 500)
    cpu_time, cores = draw.choice(population.CPU_TIMES), draw.choice((1, 8, 16, 64))
    return f"{{CPUModel: {model}, MaxRAM: {ram}, CPUTime: {cpu_time}, NumberOfProcessors: {cores}}}"


def _demands(classes: int) -> list[Demand]:
    draw = random.Random(1)
    return [
        Demand(
            asked=asked,
            requirements=Record(
                values=(("CPUModel", draw.choice(_MODELS)), ("MaxRAM", draw.randrange(500, 64_000, 500)))
            ),
        )
        for asked in population.requirement_classes(classes)
    ]


def _waiting(demand: Demand) -> WaitingClass:
    assert demand.requirements is not None
    text = canonical.to_json(demand.requirements)
    return WaitingClass(asked=demand.asked, requirements=text, jobs=10, first_job=1)
