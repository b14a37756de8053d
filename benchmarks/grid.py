"""Grids of any size in the shapes of a real one, and pools for them; the same for the same seed.

The CEs are those of the example `osg` with what they inherit from their sites; each has as many queues as a
large one has, short and long, and together they are so many queue classes for the VO that uses them all.
"""

import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from cs_config import validate
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from cs_config.tree.parameters import is_known
from matcher.request import match_request
from matcher.request.match_request import MatchCaller
from requirements import canonical
from requirements.canonical import Requirements
from requirements.classad.expression import Expression
from requirements.record import Record
from requirements.resource import StatedResource
from requirements.values import Value, fold
from taskqueue.pools.pools import NewPool

VO = "cms"
_EXAMPLE = Path(__file__).parents[1] / "examples/osg/resources.yaml"
_SITES = 1_000
#: Queues of one CE: short and long, with one core or many.
_QUEUES = (
    ("short", "maxCPUTime: 240"),
    ("medium", "maxCPUTime: 1440, SoftwareTag: [AppVersion1]"),
    ("long", "maxCPUTime: 4320, SoftwareTag: [AppVersion1, AppVersion2]"),
    ("wide", "maxCPUTime: 2880, NumberOfProcessors: 8"),
)
_MODELS = ("Intel Xeon", "AMD EPYC", "ARM Neoverse", "IBM Power", "Intel Phi")
#: Who may use it and what says whether it is used now: here everybody, everything.
_NOT_KEPT = frozenset({"vo", "enabled", "softwaretag", "cpumodel", "maxcputime"})
_OPTIONS = """\
Operations:
  Defaults:
    JobDescription:
      Memory: {type: number, unit: MB, resource: MaxRAM, min: 1}
      CPUModel: {type: string}
      SoftwareTag: {type: list, match: any}
      CPUMinutes: {type: number, unit: min, resource: maxCPUTime, min: 1}
Registry:
  VO: {cms: {}}
"""


def text(*, queues: int, classes: int, changed: bool = False) -> str:
    """A configuration of so many queues in so many classes for `VO`.

    Args:
        queues: All of them, a multiple of the four that each CE has.
        classes: How many of them differ.
        changed: Whether the first queue of the last CE is another than it was.
    """
    shapes = [_shape(number) for number in range(max(1, classes // len(_QUEUES)))]
    lines = ["Resources:", "  Sites:"]
    ces = range(max(1, queues // len(_QUEUES)))
    for site in range(min(_SITES, len(ces))):
        lines += [f"    OSG.Site{site:04}.org:", "      CEs:"]
        for ce in ces[site::_SITES]:
            lines += [f"        ce{ce:05}.site{site:04}.org:", *shapes[ce % len(shapes)], "          Queues:"]
            lines += [f"            q{ce:05}_{name}: {{{said}}}" for name, said in _QUEUES]
    if changed:
        lines[-len(_QUEUES)] = f"            q{ces[-1]:05}_short: {{maxCPUTime: 300}}"
    return "\n".join([*lines, _OPTIONS])


def _shape(number: int) -> tuple[str, ...]:
    """What the CEs of one kind say: a real one's parameters, and what tells it from its like."""
    draw = random.Random(number)
    own = {
        name: value
        for name, value in _real()[number % len(_real())]
        if fold(name) not in ("maxram", "maxtotaljobs")
    }
    said: dict[str, object] = {
        **own,
        "MaxRAM": 500 * draw.randint(4, 256),
        "CPUModel": draw.choice(_MODELS),
        "MaxTotalJobs": number,
    }
    return tuple(f"          {name}: {_written(value)}" for name, value in said.items())


def _written(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_written, value))}]"
    return json.dumps(value)


@cache
def _real() -> tuple[tuple[tuple[str, Value], ...], ...]:
    """The parameters that the system knows of each queue of the example, each distinct set once."""
    config = validate.load_file(_EXAMPLE)
    sets = {
        tuple(
            (name, value)
            for name, value in sorted(config.values(address, VO).items())
            if is_known(fold(name)) and fold(name) not in _NOT_KEPT
        ): None
        for address in config.addresses
    }
    return tuple(sets)


def configuration(*, queues: int, classes: int, version: int = 1, changed: bool = False) -> Configuration:
    """The same, loaded."""
    return parsed(text(queues=queues, classes=classes, changed=changed), version)


def parsed(source: str, version: int = 1) -> Configuration:
    """What a text says."""
    return validate.parse(source, "grid.yaml", version)


def asking(address: QueueAddress) -> tuple[StatedResource, MatchCaller]:
    """A pilot in a queue that asks what it may run."""
    place = {"Site": address.site, "GridCE": address.ce, "Queue": address.queue}
    return match_request.read_resource({**place, "CPUTime": 100_000}), MatchCaller(
        subject="bench", vos=frozenset({VO})
    )


def pools(count: int, seed: int = 0) -> Iterator[NewPool]:
    """Pools of `VO`, each eligible for about a tenth of the queue classes; every fifth an expression."""
    draw, seen = random.Random(seed), set[str]()
    while len(seen) < count:
        asked = _asked(draw)
        pool_id = canonical.pool_id(asked, VO)
        if pool_id not in seen:
            seen.add(pool_id)
            yield NewPool(
                pool_id=pool_id,
                vo=VO,
                requirements=canonical.canonical(asked, VO).decode(),
                original=canonical.to_json(asked),
            )


def _asked(draw: random.Random) -> Requirements:
    """Of five models one, or two; as much memory as half of the queues have, and the longer ones of a CE."""
    memory, minutes = 250 * draw.randint(160, 300), 60 * draw.randint(5, 20)
    if draw.random() < 0.2:
        one, other = sorted(draw.sample(_MODELS, 2))
        model = f'(other.CPUModel == "{one}" || other.CPUModel == "{other}")'
        text = f"{model} && other.MaxRAM >= {memory + 45_000} && other.maxCPUTime >= {minutes}"
        return Expression(text=text)
    tags = draw.choice((("AppVersion1",), ("AppVersion1", "AppVersion2"), ("AppVersion1", "AppVersion3")))
    model = draw.choice(_MODELS)
    asked: tuple[tuple[str, Value], ...] = (
        ("CPUMinutes", minutes),
        ("CPUModel", model),
        ("Memory", memory // 5),
        ("SoftwareTag", tags),
    )
    return Record(values=asked)
