"""Jobs and pilots of DiracX's match-making specification: LHCb's mixture, on a thousand sites with 300 tags.

What LHCb's jobs ask for is counted by task queues of 28 March 2026 (see `lhcb`): simulation runs anywhere,
other jobs where their data are; platforms stand here as levels and profiles of processors. LHCb has neither
tags nor jobs for GPUs or for whole nodes: these are a tail that the specification wants to be served.
"""

import random
from collections.abc import Mapping
from functools import cache
from typing import TypeVar

from benchmarks import lhcb
from requirements.diracx.cpu_levels import LEVELS
from requirements.diracx.specification import RESERVED

SITES = tuple(f"LCG.Site{number:03d}.org" for number in range(1_000))
TAGS = (
    *(f"{prefix}:{word}" for prefix in ("os", "hostfeat") for word in RESERVED[prefix]),
    *(f"lhcb:software{number:03d}" for number in range(289)),
)
#: Task queues of each job type.
SIMULATION = {"MCSimulation": 184, "MCFastSimulation": 85}
JOB_TYPES = SIMULATION | {
    "WGProduction": 198,
    "User": 8,
    "Sprucing": 6,
    "MCReconstruction": 6,
    "MCMerge": 4,
    "APPostProc": 3,
    "Merge": 2,
    "APMerge": 1,
    "LbAPI": 1,
}
#: Task queues that ask for a level or profile.
PROCESSORS = {"x86-64-v1": 7, "x86-64-v2": 266, "x86-64-v3": 46, "armv8.1-a": 178}
#: Task queues of jobs with data that name the first of the 60 sites; the others have data of none.
DATA = (99, 35, 32, 38, 30, 28, 15, 38, 28, 23, 28, 10, 10, 9, 12, 9, 9, 11, 8, 7, 4, 1)
#: Of 319 task queues for x86_64 those that ask for Enterprise Linux 9.
_EL9 = 55 / 319
#: Shares of the classes, of which LHCb has none.
_TAGGED, _BANNING, _MULTICORE, _WHOLE_NODE, _GPU = 0.15, 0.1, 0.1, 0.01, 0.01
_GPUS = {"sm_70": 16_000, "sm_80": 40_000, "sm_89": 24_000, "sm_90": 80_000}
_SITES_OF_DATA = len(SITES) * len(DATA) // 60
_EXPRESSIONS = ("{0}", "{0} & {1}", "{0} | {1}", "{0} & ~{1}", "({0} | {1}) & ~{2}")

Name = TypeVar("Name")
#: Of a site's nodes: level or profile, weighted.
_NODES = {"x86-64-v2": 2, "x86-64-v3": 10, "x86-64-v4": 6, "armv8.2-a": 2}
NODES_A_SITE = 4
_OFFERED = 60
_WALL_TIMES = (43_200, 86_400, 172_800, 345_600)


def descriptions(count: int, seed: int = 0) -> list[dict[str, object]]:
    """So many different jobs, as users submit them."""
    draw = random.Random(seed)
    return [_description(draw) for _ in range(count)]


def _description(draw: random.Random) -> dict[str, object]:
    job_type = _weighted(draw, JOB_TYPES)
    owner, group = lhcb.OWNERS[list(JOB_TYPES).index(job_type) % len(lhcb.OWNERS)]
    stated = {
        "Executable": "/cvmfs/lhcb.cern.ch/lib/prun",
        "Arguments": "--production 00231457 --events 400",
        "VO": lhcb.VO,
        "Owner": owner,
        "OwnerGroup": group,
        "JobType": job_type,
        "requirements": _requirements(draw),
    }
    return stated | _candidates(draw, runs_anywhere=job_type in SIMULATION)


def _candidates(draw: random.Random, *, runs_anywhere: bool) -> dict[str, object]:
    if not runs_anywhere:
        weights = [DATA[number * 60 // len(SITES)] for number in range(_SITES_OF_DATA)]
        return {"sites": sorted(set(draw.choices(SITES[:_SITES_OF_DATA], weights, k=2)))}
    return (
        {"banned_sites": sorted(draw.sample(SITES, draw.randint(1, 5)))} if draw.random() < _BANNING else {}
    )


def _requirements(draw: random.Random) -> dict[str, object]:
    level = _weighted(draw, PROCESSORS)
    architecture, word = ("aarch64", "profile") if level.startswith("arm") else ("x86_64", "level")
    found: dict[str, object] = {
        "cpu_work_db12": _weighted(draw, lhcb.CPU_QUEUES),
        "cpu": {
            "num_cores": _cores(draw),
            "ram_mb": {"request": {"overhead": 512, "per_core": 50 * draw.randint(10, 40)}},
            "architecture": {"name": architecture, word: level},
        },
        "io": {"scratch_mb": 1_000 * draw.randint(1, 20)},
    }
    if draw.random() < _GPU:
        model = draw.choice(list(_GPUS))
        most = draw.choice((1, 2, 4, 8))
        count = {"min": 1, "max": most}
        found["gpu"] = {"vendor": "nvidia", "arch": model, "count": count, "vram_mb_per_gpu": 8_000}
    if tags := _tags(draw):
        found["tags"] = tags
    return found


def _cores(draw: random.Random) -> dict[str, object]:
    if draw.random() < _WHOLE_NODE:
        return {"min": draw.choice((32, 64, 128))}
    return {"min": 1, "max": 8} if draw.random() < _MULTICORE else {"min": 1, "max": 1}


def _tags(draw: random.Random) -> str:
    parts = ["os:el9"] if draw.random() < _EL9 else []
    if draw.random() < _TAGGED:
        parts.append(f"({draw.choice(_EXPRESSIONS).format(*draw.sample(TAGS, 3))})")
    return " & ".join(parts)


def _weighted(draw: random.Random, weights: Mapping[Name, int]) -> Name:
    return draw.choices(list(weights), list(weights.values()))[0]


@cache
def nodes() -> tuple[Mapping[str, object], ...]:
    """What the pilots of the sites offer, in the specification's form with the place beside it."""
    draw = random.Random(0)
    tags = {site: sorted({"os:el9", *draw.sample(TAGS, _OFFERED)}) for site in SITES}
    return tuple(_node(draw, site, number, tags[site]) for site in SITES for number in range(NODES_A_SITE))


def _node(draw: random.Random, site: str, number: int, tags: list[str]) -> dict[str, object]:
    level = _weighted(draw, _NODES)
    name = "aarch64" if level.startswith("arm") else "x86_64"
    cores = draw.choice((1, 8, 8, 64, 128))
    gpu: dict[str, object] = {"count": 0}
    if draw.random() < 4 * _GPU:
        model, memory = draw.choice(list(_GPUS.items()))
        gpu = {"vendor": "nvidia", "arch": model, "count": draw.choice((1, 4)), "vram_mb_per_gpu": memory}
    return {
        "site": site,
        "GridCE": f"ce.{site[4:].lower()}",
        "Queue": f"grid{number}",
        "system": {"name": "Linux"},
        "wall_time": draw.choice(_WALL_TIMES),
        "cpu_power_db12": draw.choice((10, 14.5, 19, 23.5)),
        "cpu": {
            "num_nodes": 1,
            "num_cores": cores,
            "ram_mb": draw.choice((2_000, 3_000, 4_000)) * cores,
            "architecture": {"name": name, "features": sorted(LEVELS[name][level])},
        },
        "gpu": gpu,
        "io": {"scratch_mb": 20_000 * cores},
        "tags": tags,
    }


def tree() -> str:
    """The configuration of the sites."""
    places = ((str(node["site"]), str(node["GridCE"]), str(node["Queue"])) for node in nodes())
    return lhcb.configuration({place: {} for place in places}, {})
