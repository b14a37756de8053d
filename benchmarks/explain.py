"""How long explanations take: one job before all queues, one queue before all classes.

In process, without a database. What is warm says each line: a service looks at the tree once for each version
of its configuration (`first look`), at each name once after that (`first job`), and reads what a class asks
once (`first queue`). The rest has to stay within the milliseconds of `allowed`.
"""

import random
import time
from collections.abc import Callable, Iterator

from benchmarks import population
from benchmarks.results import Result
from cs_config import validate
from cs_config.tree.configuration import Configuration
from matcher.explain import explanation, queue_report, queue_set
from matcher.explain.explanation import explain
from matcher.explain.job_conditions import JobDemand
from requirements import canonical
from requirements.classad.expression import Expression
from requirements.record import Record
from requirements.requirement_class import RequirementClass
from taskqueue.task_queues.listing import WaitingClass

_MODELS = ("Intel Xeon", "AMD EPYC", "ARM Neoverse")


def run(*, quick: bool) -> Iterator[Result]:
    """A thousand by a thousand, and ten thousand by a hundred thousand unless it shall be quick."""
    for classes, queues, allowed in (
        [(1_000, 1_000, 100)] if quick else [(1_000, 1_000, 100), (10_000, 100_000, 1_000)]
    ):
        yield from _measured(classes, queues, allowed)


def _measured(classes: int, queues: int, allowed: int) -> Iterator[Result]:
    config, demands = _tree(queues), _demands(classes)
    waiting = [_waiting(demand) for demand in demands]
    yield _line("first look", classes, queues, lambda: queue_set.all_queues(config, population.VO))
    whole = queue_set.all_queues(config, population.VO)
    first, second = config.addresses[0], config.addresses[-1]
    yield _line("first job", classes, queues, lambda: _one(whole, demands[0]))
    for demand in demands[1:4]:
        yield _line("another job", classes, queues, lambda: _one(whole, demand), allowed)  # noqa: B023  (called at once)
    yield _line("the same job", classes, queues, lambda: _one(whole, demands[1]), allowed)
    yield _line("a long job", classes, queues, lambda: _one(whole, _long()), allowed)
    yield _line("first queue", classes, queues, lambda: queue_report.report_queue(config, first, waiting))
    yield _line(
        "another queue", classes, queues, lambda: queue_report.report_queue(config, second, waiting), allowed
    )


def _one(whole: queue_set.QueueSet, demand: JobDemand) -> object:
    return explain(whole, population.VO, demand), explanation.suggest_changes(whole, population.VO, demand)


def _line(
    what: str, classes: int, queues: int, work: Callable[[], object], allowed: int | None = None
) -> Result:
    began = time.perf_counter()
    work()
    took = 1000 * (time.perf_counter() - began)
    values: dict[str, str | float] = {
        "what": what,
        "classes": classes,
        "queues": queues,
        "ms": round(took, 1),
    }
    if allowed is not None:
        values |= {"allowed": allowed, "ratio": round(took / allowed, 2)}
    return Result(values=values)


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


def _demands(classes: int) -> list[JobDemand]:
    draw = random.Random(1)
    return [
        JobDemand(
            asked=asked,
            requirements=Record(
                values=(("CPUModel", draw.choice(_MODELS)), ("MaxRAM", draw.randrange(500, 64_000, 500)))
            ),
        )
        for asked in population.requirement_classes(classes)
    ]


def _long() -> JobDemand:
    """As many conditions as may be, all of them about the name with most values."""
    text = " && ".join(f"other.MaxRAM > {300 * number}" for number in range(390))
    return JobDemand(
        asked=RequirementClass(vo=population.VO, cpu_time=100), requirements=Expression(text=text)
    )


def _waiting(demand: JobDemand) -> WaitingClass:
    assert demand.requirements is not None
    text = canonical.to_json(demand.requirements)
    return WaitingClass(asked=demand.asked, requirements=text, jobs=10, first_job=1)
