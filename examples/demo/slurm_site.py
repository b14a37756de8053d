"""What the processes of the site are told, in files: director, gateway and pilots."""

import json
from collections.abc import Mapping
from pathlib import Path

import yaml

from examples.demo.installation import Installation
from examples.servers.slurm import Slurm

VOS = ("biomed", "lhcb")
QUEUES = ("short", "long")  #: of the tree, and partitions
#: What each node says of itself.
FACTS: Mapping[str, Mapping[str, object]] = {
    "n1": {"OS": "el8", "GlueHostBenchmarkSI00": 400, "Scratch": 50},
    "n2": {"OS": "el9", "GlueHostBenchmarkSI00": 900, "Scratch": 500},
    "n3": {"OS": "el9", "GlueHostBenchmarkSI00": 1200, "Scratch": 500},
}
_SLOT = {"system": "farm", "wall_time": 600, "memory": 300}


def director(installation: Installation, slurm: Slurm) -> Path:
    """The file of the director."""
    facts = installation.directory / "facts"
    facts.mkdir()
    for node, known in FACTS.items():
        (facts / f"{node}.json").write_text(json.dumps(known))
    told = {
        **_both(installation, slurm, "director"),
        "pause": 2,
        "longest_pause": 4,
        "vos": {vo: {"token_file": _token(installation, "director", vo)} for vo in VOS},
        "queues": [{"queue": f"LCG.Example.org/slurm/{name}", **_SLOT} for name in QUEUES],
        "pilot": ["--max-empty=1", f"--facts={facts}/$SLURMD_NODENAME.json"],
    }
    return _written(installation.directory / "director.yaml", told)


def gateway(installation: Installation, slurm: Slurm) -> Path:
    """The file of the gateway."""
    told = {
        **_both(installation, slurm, "gateway"),
        "token_file": _token(installation, "gateway", "lhcb"),
        "vos": ["lhcb"],
        "directory": str(installation.directory / "gateway"),
        "queues": [{"queue": "LCG.Example.org/gate/production", "batch_queue": "long", **_SLOT}],
        "job_types": {"montecarlo": {"max_cpu_per_job": 500, "cpu_per_event": 2}},
        "job_polling_time": 1,
        "beat": 1,
    }
    return _written(installation.directory / "gateway.yaml", told)


def _both(installation: Installation, slurm: Slurm, name: str) -> dict[str, object]:
    farm = {
        "kind": "slurm",
        "directory": str(installation.directory / f"{name}-jobs"),
        "environment": dict(slurm.environment),
    }
    url = installation.reached()["PILOTAGE_URL"]
    return {"url": url, "name": f"demo-{name}", "polling_time": 1, "systems": {"farm": farm}}


def _token(installation: Installation, role: str, vo: str) -> str:
    words = ("token", "--role", role, "--vo", vo, "--site", "LCG.Example.org")
    file = installation.directory / f"{role}-{vo}.token"
    file.touch(mode=0o600)
    file.write_text(installation.run(*words, quiet=True)["token"])
    return str(file)


def _written(file: Path, told: Mapping[str, object]) -> Path:
    file.write_text(yaml.safe_dump(told))
    return file
