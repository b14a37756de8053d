"""A large VO, after the state of LHCb's queue on 28 March 2026, which DiracX published with its prototype.

871,973 jobs waited in 501 task queues of 5 owners, for 60 sites and 67 platforms. Jobs name most of both.
LHCb uses no tags; DiracX wants several hundred of them, so some classes here ask for one or two of 512.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import Any

from requirements.requirement_class import RequirementClass

VO = "lhcb"
SITES = tuple(f"LCG.Site{number:02d}.org" for number in range(60))
PLATFORMS = tuple(f"x86_64_v{number % 4 + 1}-el{number // 4 + 5}" for number in range(67))
TAGS = tuple(f"tag{number:03d}" for number in range(512))
#: Owner and owner group.
OWNERS = (
    ("lbprods", "lhcb_prmgr"),
    ("lbmc", "lhcb_mc"),
    ("lbwg", "lhcb_wg"),
    ("lbdata", "lhcb_data"),
    ("lbuser", "lhcb_user"),
)
#: CPU seconds: task queues that ask for so much.
CPU_QUEUES = {
    21_600: 41,
    43_200: 3,
    86_400: 11,
    172_800: 41,
    259_200: 88,
    345_600: 56,
    518_400: 10,
    691_200: 27,
    864_000: 5,
    1_080_000: 216,
}
CPU_TIMES = tuple(CPU_QUEUES)
#: Job types: waiting jobs.
JOB_TYPES = {
    "MCSimulation": 520_258,
    "MCFastSimulation": 187_908,
    "WGProduction": 141_317,
    "Sprucing": 14_465,
    "Merge": 6_812,
}
#: Smallest and largest size of task queues, and how many there are of such a size.
QUEUE_SIZES = ((1, 1, 37), (2, 10, 42), (11, 100, 52), (101, 1_000, 131), (1_001, 5_000, 271))
#: Classes that share nothing but by chance.
BASE = 500
#: Share of the classes that ask for tags.
TAGGED = 0.15
#: MB that every second base class asks for in Requirements: half of the classes have a SubmitPool.
POOLS = tuple(range(1_000, 13_500, 250))
#: Share of each owner group, so that task queues differ in priority.
SHARES = (1_000, 4_000, 500, 2_000, 1_000)
#: Tags that the nodes of a site offer.
_OFFERED = 256
_QUEUES_A_SITE = 4


def requirement_classes(count: int, seed: int = 0, *, tagged: float = TAGGED) -> list[RequirementClass]:
    """Distinct classes: most of the sites and platforms, a CPU time, a job type, sometimes tags.

    The first `BASE` are drawn freely; each other one differs from one of these, in turn, in sites,
    platforms and tags only. `tagged` is the share of them that ask for tags.
    """
    draw = random.Random(seed)
    found: dict[RequirementClass, None] = {}
    base: list[RequirementClass] = []
    while len(found) < count:
        if len(base) < BASE:
            base.append(_class(draw, tagged))
            found[base[-1]] = None
        else:
            found[_variation(draw, base[len(found) % BASE], tagged)] = None
    return list(found)


def _class(draw: random.Random, tagged: float) -> RequirementClass:
    asked = RequirementClass(
        vo=VO,
        cpu_time=draw.choices(CPU_TIMES, list(CPU_QUEUES.values()))[0],
        job_types=frozenset(draw.choices(list(JOB_TYPES), list(JOB_TYPES.values()))),
    )
    return _variation(draw, asked, tagged)


def _variation(draw: random.Random, asked: RequirementClass, tagged: float) -> RequirementClass:
    return replace(
        asked,
        sites=frozenset(draw.sample(SITES, draw.randint(45, 55))),
        platforms=frozenset(draw.sample(PLATFORMS, draw.randint(40, 64))),
        tags=frozenset(draw.sample(TAGS, draw.randint(1, 2)) if draw.random() < tagged else ()),
    )


def sizes(classes: int, waiting: int, seed: int = 0) -> list[int]:
    """How many jobs each class has: at least one, in all `waiting`, small and large as LHCb's."""
    draw = random.Random(seed)
    kinds = draw.choices(QUEUE_SIZES, [number for *_, number in QUEUE_SIZES], k=classes)
    weights = [low * (high / low) ** draw.random() for low, high, _ in kinds]
    spare, whole = waiting - classes, sum(weights)
    ends = [round(spare * reached / whole) for reached in accumulate(weights)]
    return [1 + end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def requirements(number: int) -> dict[str, object]:
    """What the description of the base class with this number adds, so that its jobs have a SubmitPool."""
    return {"Requirements": {"MaxRAM": POOLS[number // 2 % len(POOLS)]}} if number % 2 else {}


def description(asked: RequirementClass) -> dict[str, object]:
    """The job that a user submits to get into a class; its owner follows from the class."""
    owner, group = OWNERS[int(asked.digest[:8], 16) % len(OWNERS)]
    said: dict[str, object] = {
        "Executable": "/cvmfs/lhcb.cern.ch/lib/prun",
        "Arguments": "--production 00231457 --events 400",
        "VO": VO,
        "Owner": owner,
        "OwnerGroup": group,
        "CPUTime": asked.cpu_time,
        "Site": sorted(asked.sites),
        "Platform": sorted(asked.platforms),
        "JobType": min(asked.job_types),
    }
    return said | ({"Tag": sorted(asked.tags)} if asked.tags else {})


@cache
def queues() -> tuple[Mapping[str, object], ...]:
    """What a pilot offers in each of the queues of the VO's sites; long queues are the rule."""
    draw = random.Random(0)
    tags = {site: sorted(draw.sample(TAGS, _OFFERED)) for site in SITES}
    return tuple(
        {
            "Site": site,
            "GridCE": f"ce{number % 2}.{site[4:].lower()}",
            "Queue": f"grid{number}",
            "CPUTime": draw.choices((100_000, 400_000, 1_200_000), (1, 2, 7))[0],
            "Platform": draw.choice(PLATFORMS),
            "NumberOfProcessors": draw.choice((1, 1, 8)),
            "MaxRAM": draw.choice((2_000, 4_000, 16_000)),
            "Tag": tags[site],
        }
        for site in SITES
        for number in range(_QUEUES_A_SITE)
    )


def tree(*, limited: int = 0, is_full: bool = False) -> str:
    """The configuration of the VO's sites.

    Args:
        limited: Sites at which the jobs of the most frequent type are counted in every claim.
        is_full: Whether no further one may run there; else the limit is never reached.
    """
    stated = {
        (str(queue["Site"]), str(queue["GridCE"]), str(queue["Queue"])): {
            name: queue[name] for name in ("CPUTime", "MaxRAM")
        }
        for queue in queues()
    }
    limits = {site: {"JobType": {"MCSimulation": 0 if is_full else 1_000_000}} for site in SITES[:limited]}
    return configuration(stated, limits)


def configuration(
    stated: Mapping[tuple[str, str, str], Mapping[str, object]], limits: Mapping[str, object]
) -> str:
    """The configuration of queues, by site, CE and name, and of the VO with its shares."""
    sites: dict[str, Any] = {}
    for (site, ce, queue), parameters in stated.items():
        ces = sites.setdefault(site, {"CEs": {}})["CEs"]
        ces.setdefault(ce, {"Queues": {}})["Queues"][queue] = parameters
    groups = {
        group: {"VO": VO, "Properties": ["NormalUser"], "JobShare": share}
        for (_, group), share in zip(OWNERS, SHARES, strict=True)
    }
    operations = {
        "Limits": {
            "RequestsPerSecond": 1_000_000,
            "PilotClaimsPerHour": 1_000_000,
            "WaitingJobsPerOwner": 100_000_000,
            "WaitingJobsPerVO": 100_000_000,
        },
        "JobDescription": {"CPUTime": {"max": max(CPU_TIMES)}},
        "JobScheduling": {"RunningLimit": limits},
    }
    return json.dumps(
        {
            "Resources": {"Sites": sites},
            "Operations": {"Defaults": operations},
            "Registry": {"VO": {VO: {}}, "Groups": groups},
        }
    )
