"""The Python matcher of DiracX's developers (poc-dirac-job-matchmaking) on the same jobs and pilots.

Their package is no part of this project: its tree is named on the command line. It has the forms of version
0.1 and keeps jobs in memory; as in their own benchmark, a request is matched with 500 waiting jobs drawn from
all, and to read these is not measured. One process, nothing stored, no HTTP.
"""

import importlib
import json
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import documents
from benchmarks.results import Result, quantile
from requirements.diracx.cpu_levels import FEATURES, LEVELS
from requirements.diracx.specification import architecture_number

_CANDIDATES = 500
_PACKAGE = "matchmaking"
#: What their `select_job` chooses from.
_CANDIDATES_OF_THEIRS = "_JOBS_CACHE"
#: Of a job that states no upper bound, which they need.
_MOST_CORES = 1_024
#: What their models call otherwise.
_TYPES = {"MCReconstruction": "MCRConstruction"}


def run(tree: Path | None, *, jobs: int, seconds: float) -> Iterator[Result]:
    """Only a row that says what is missing, if there is no tree."""
    if tree is None or not (tree / _PACKAGE).is_dir():
        yield Result(values={"what": f"prototype: not measured (--prototype: a directory with {_PACKAGE}/)"})
        return
    path = os.pathsep.join((str(tree.resolve()), str(Path.cwd())))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.prototype", str(jobs), str(seconds)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        capture_output=True,
        text=True,
    )
    yield Result(values={"what": f"prototype, {_CANDIDATES} candidates in memory", **json.loads(done.stdout)})


def _measure(jobs: int, seconds: float) -> dict[str, float]:
    """Their `select_job` for one pilot after the other."""
    logging.disable()  # they log every refusal
    main, utils, models = (
        importlib.import_module(f"{_PACKAGE}.{name}") for name in ("core.main", "core.utils", "models.job")
    )
    node_models = importlib.import_module(f"{_PACKAGE}.models.node")
    waiting = [
        models.Job.model_validate(_job(number, each))
        for number, each in enumerate(documents.descriptions(jobs))
    ]
    nodes = [node_models.Node.model_validate(_node(each)) for each in documents.nodes()]
    draw, latencies, matched = random.Random(0), [], 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        setattr(utils, _CANDIDATES_OF_THEIRS, draw.sample(waiting, min(len(waiting), _CANDIDATES)))
        began = time.perf_counter()
        with suppress(ValueError):  # as it says that none fits
            job = main.select_job(draw.choice(nodes))
            matched += 1
            job.status = models.JobStatus.WAITING
        latencies.append(time.perf_counter() - began)
    return {
        "requests/s": round(len(latencies) / sum(latencies)),
        "jobs/s": round(matched / sum(latencies)),
        "p50 ms": round(1000 * quantile(latencies, 0.5), 2),
        "p99 ms": round(1000 * quantile(latencies, 0.99), 2),
    }


def _job(number: int, described: Mapping[str, Any]) -> dict[str, Any]:
    """A job in the form of version 0.1, which has a specification for each site and no banned sites."""
    asked = described["requirements"]
    cpu, gpu, request = asked["cpu"], asked.get("gpu"), asked["cpu"]["ram_mb"]["request"]
    memory = {"overhead": request["overhead"], "per-core": request["per_core"]}
    architecture = cpu["architecture"]
    level = architecture.get("level") or architecture["profile"]
    specification = {
        "system": {"name": "Linux"},
        "cpu-work": asked["cpu_work_db12"],
        "cpu": {
            "num-cores": {"max": _MOST_CORES, **cpu["num_cores"]},
            "ram-mb": {"request": memory, "limit": memory},
            "architecture": {"name": architecture["name"], "microarchitecture-level": _range(_order(level))},
        },
        "io": {"scratch-mb": asked["io"]["scratch_mb"], "scratch-iops": 1},
        "tags": asked.get("tags", ""),
    }
    if gpu:
        specification["gpu"] = {
            "count": gpu["count"],
            "ram-mb": gpu["vram_mb_per_gpu"],
            "vendor": gpu["vendor"],
            "compute-capability": _range(_capability(gpu["arch"])),
        }
    return {
        "job_id": str(number),
        "submit_time": "2026-03-28T00:00:00Z",
        "owner": described["Owner"],
        "group": described["OwnerGroup"],
        "type": _TYPES.get(described["JobType"], described["JobType"]),
        "matching_specs": [{**specification, "site": site} for site in described.get("sites", (None,))],
    }


def _node(offered: Mapping[str, Any]) -> dict[str, Any]:
    cpu, gpu = offered["cpu"], offered["gpu"]
    name, features = cpu["architecture"]["name"], set(cpu["architecture"]["features"])
    level = max(_order(level) for level in LEVELS[name] if FEATURES[level] <= features)
    return {
        "site": offered["site"],
        "system": {"name": "Linux", "glibc": "2.34", "user-namespaces": True},
        "wall-time": offered["wall_time"],
        "cpu-work": round(offered["wall_time"] * offered["cpu_power_db12"] * cpu["num_cores"]),
        "cpu": {
            "num-cores": cpu["num_cores"],
            "ram-mb": cpu["ram_mb"],
            "architecture": {"name": name, "microarchitecture-level": level},
        },
        "gpu": {"count": 0}
        if not gpu["count"]
        else {
            "count": gpu["count"],
            "ram-mb": gpu["vram_mb_per_gpu"],
            "vendor": gpu["vendor"],
            "compute-capability": _capability(gpu["arch"]),
            "driver-version": "550",
        },
        "io": {"scratch-mb": offered["io"]["scratch_mb"], "scratch-iops": 1},
        "tags": offered["tags"],
    }


def _order(level: str) -> int:
    """The number of a level or profile among those of its architecture, from 1."""
    [levels] = [list(levels) for levels in LEVELS.values() if level in levels]
    return 1 + levels.index(level)


def _range(least: int | str) -> dict[str, int | str | None]:
    return {"min": least, "max": None}


def _capability(model: str) -> str:
    return str(architecture_number(model) / 10)


if __name__ == "__main__":
    json.dump(_measure(int(sys.argv[1]), float(sys.argv[2])), sys.stdout)
