"""The batch system `local` of ours with the commands of Slurm that DIRAC's SiteDirectors use.

`write_commands` makes `sbatch`, `squeue` and `sacct` in a directory; each of them runs `main`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pilotage.fabric.batch.batch_system import BatchJob, Handle, State
from pilotage.fabric.batch.local_host import QUEUE, LocalHost

_COMMAND = """#!{python}
import sys
sys.path.insert(0, {root!r})
from tests.support.scripts.slurm_commands_of_local import main
sys.exit(main({name!r}, {directory!r}, sys.argv[1:]))
"""
_WORDS = {
    State.WAITING: "PENDING",
    State.RUNNING: "RUNNING",
    State.DONE: "COMPLETED",
    State.FAILED: "FAILED",
    State.KILLED: "CANCELLED",
}


def write_commands(directory: Path, jobs: Path) -> None:
    """Write the commands for a batch system whose jobs lie in a directory."""
    directory.mkdir()
    root = str(Path(__file__).parents[3])
    for name in ("sbatch", "squeue", "sacct"):
        file = directory / name
        file.write_text(_COMMAND.format(python=sys.executable, root=root, name=name, directory=str(jobs)))
        file.chmod(0o755)


def main(name: str, directory: str, arguments: Sequence[str]) -> int:
    """Run one command."""
    host = LocalHost(directory=directory, cores=2, memory=4000)
    if name == "sbatch":
        print(f"Submitted batch job {_submit(host, arguments)}")  # noqa: T201
        return 0
    stamps = sorted(each.name for each in Path(directory).glob("dirac-job-*"))
    reports = host.status([Handle(stamp=stamp) for stamp in stamps])
    if name == "squeue":
        print("NAME STATE")  # noqa: T201
    for stamp, report in reports.items():
        word = _WORDS.get(report.state, "UNKNOWN")
        if name == "sacct":
            print(f"{report.reference},{word}")  # noqa: T201
        elif report.state in (State.WAITING, State.RUNNING):
            print(f"{stamp} {word}")  # noqa: T201
    return 0


def _submit(host: LocalHost, arguments: Sequence[str]) -> str:
    parser = argparse.ArgumentParser()
    parser.add_argument("--export")
    parser.add_argument("-o", "--output")
    parser.add_argument("-e", "--error")
    parser.add_argument("--partition")
    parser.add_argument("script")
    given, _ = parser.parse_known_args(arguments)
    stamp = given.export.rpartition("=")[2]
    number = len(list(Path(host.directory).glob("dirac-job-*"))) + 1
    first, _, rest = Path(given.script).read_text().partition("\n")
    variables = f"export DIRAC_PILOT_STAMP={stamp} SLURM_JOB_ID={number}"
    output = f"exec >{given.output.replace('%j', str(number))} 2>{given.error.replace('%j', str(number))}"
    script = "\n".join((first, variables, output, rest))
    assert given.partition == QUEUE, given.partition
    reference = host.submit(BatchJob(stamp=f"dirac-job-{number}", script=script, queue=QUEUE))
    assert reference == str(number)
    return reference
