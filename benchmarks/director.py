"""A director on a real grid: the queues of the example `osg`, five VOs, many jobs and pilots.

All 592 CEs are batch systems in Slurm's dialect whose commands are scripts that take 100 ms. Two in a hundred
hang, one in a hundred prints nonsense, and one in a hundred freezes: its worker never comes back. 10,500 jobs
of 500 classes wait, and 40,000 pilots ended today. The director is a process of its own.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import yaml
from sqlalchemy import insert

from benchmarks import servers, services
from benchmarks.director_process import KINDS
from benchmarks.results import Result
from cs_config import validate
from cs_config.tree.configuration import Configuration
from pilotage.fabric.director import targets
from taskqueue.db import database
from taskqueue.schema.tables import pilots as pilots_table

VOS = ("cms", "dune", "icecube", "ligo", "osgvo")
_EXAMPLE = Path(__file__).parents[1] / "examples/osg/resources.yaml"
_JOBS, _CLASSES, _ENDED = 10_500, 500, 40_000
_NAME = "bench"
_PART = 500  #: jobs in one submission
#: One program for all commands; a job is a line of a file.
_COMMANDS = """\
#!/bin/sh
[ "$CE_KIND" = hangs ] && exec sleep 100000
sleep 0.1
case "${0##*/}" in
sbatch)
  for word; do case "$word" in --job-name=*) name=${word#*=} ;; esac; done
  echo "$$|$name|PENDING: Priority" >>"$CE_JOBS"
  echo $$ ;;
squeue)
  if [ "$CE_KIND" = lies ]; then echo "slurm_load_jobs: $$"; else cat "$CE_JOBS" 2>/dev/null; fi ;;
sinfo)
  for queue in $CE_QUEUES; do echo "$queue|900/100/0/1000|up"; done ;;
esac
exit 0
"""


def run(*, quick: bool) -> Iterator[Result]:
    """The grid is of full size always; quick leaves out the pilots that ended."""
    config = validate.load_file(_EXAMPLE)
    with (
        servers.postgres() as server,
        servers.fresh_database(server, "director") as url,
        services.serving(url, _EXAMPLE.read_text()) as service,
        tempfile.TemporaryDirectory(prefix="pilotage-bench-", ignore_cleanup_errors=True) as name,
    ):
        _submit_jobs(service)
        if not quick:
            _store_ended(url, config)
        yield from _run_director(_write_file(Path(name), service, config))


def _submit_jobs(service: services.Service) -> None:
    """Every VO has as many jobs of as many classes."""
    of_vo, classes = _JOBS // len(VOS), _CLASSES // len(VOS)
    for vo in VOS:
        jobs = [
            {
                "Executable": "x",
                "NumberOfProcessors": (1, 1, 2, 4, 8)[number % 5],
                "MinRAM": 100 * (1 + number % classes),
                "CPUTime": 3600,
            }
            for number in range(of_vo)
        ]
        with httpx.Client(
            base_url=service.url,
            headers={"Authorization": f"Bearer {service.token('user', vo=vo, user='ada')}"},
        ) as client:
            for begin in range(0, of_vo, _PART):
                body = {"jobs": jobs[begin : begin + _PART]}
                client.post("/api/v1/jobs", json=body, timeout=120).raise_for_status()


def _store_ended(url: str, config: Configuration) -> None:
    """Pilots of the director that ended today, each with some jobs."""
    now = datetime.now(UTC)
    places = {vo: [each for each in config.addresses if config.usable(each, vo)] for vo in VOS}
    rows = []
    for number in range(_ENDED):
        vo = VOS[number % len(VOS)]
        place = places[vo][number // len(VOS) % len(places[vo])]
        at = now - timedelta(seconds=80_000 * number / _ENDED + 600)
        rows.append(
            {
                "stamp": targets.new_stamp(_NAME, ()),
                "vo": vo,
                "status": "Done",
                "site": place.site,
                "ce": place.ce,
                "queue": place.queue,
                "reference": str(number),
                "submitted_by": "bench",
                "jobs": 1 + number % 5,
                "created_at": at - timedelta(hours=2),
                "updated_at": at,
                "last_seen_at": at,
            }
        )
    engine = database.connect(url)
    with database.writing(engine) as conn:
        conn.execute(insert(pilots_table), rows)
    engine.dispose()


def _write_file(directory: Path, service: services.Service, config: Configuration) -> Path:
    """The file of the director: each CE a batch system, each queue of the tree one of its queues."""
    program = directory / "commands"
    program.write_text(_COMMANDS)
    program.chmod(0o755)
    commands = directory / "bin"
    commands.mkdir()
    for each in ("sbatch", "squeue", "sinfo", "sacct", "scancel"):
        (commands / each).symlink_to(program)
    queues: dict[str, list[str]] = {}
    for address in config.addresses:
        queues.setdefault(f"{address.site}/{address.ce}", []).append(address.queue)
    vos = {}
    for vo in VOS:
        token = directory / f"{vo}.token"
        token.write_text(service.token("director", vo=vo, user="dora"))
        vos[vo] = {"token_file": str(token)}
    (directory / "jobs").mkdir()
    content = {
        "url": service.url,
        "name": _NAME,
        "vos": vos,
        "systems": {
            ce: {
                "kind": "slurm",
                "directory": str(directory / "jobs" / str(number)),
                "environment": {
                    "PATH": f"{commands}:/usr/bin:/bin",
                    "CE_KIND": KINDS.get(number % 100, "works"),
                    "CE_JOBS": str(directory / f"jobs-{number}"),
                    "CE_QUEUES": " ".join(names),
                },
            }
            for number, (ce, names) in enumerate(sorted(queues.items()))
        },
        "queues": [
            {"queue": str(address), "system": f"{address.site}/{address.ce}"} for address in config.addresses
        ],
    }
    file = directory / "director.yaml"
    file.write_text(yaml.dump(content, Dumper=yaml.CSafeDumper))
    return file


def _run_director(file: Path) -> Iterator[Result]:
    """The cycles of a director that is a process of its own, as it measures them."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.director_process", str(file)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            yield _to_result(json.loads(line))
    finally:
        process.kill()
        process.wait()
        time.sleep(1)  # the last commands write to our directory


def _to_result(values: Mapping[str, Any]) -> Result:
    return Result(
        values=dict(values),
        targets={
            "director cycle": values["cycle s"],
            "director decision": values["decision s"],
            "director memory": values["memory MB"],
            "director requests": values["requests a VO"],
        },
    )
