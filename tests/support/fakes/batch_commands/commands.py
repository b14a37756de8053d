"""The commands of a batch system that is stood in for, in a directory of their own."""

import os
from collections.abc import Iterable
from pathlib import Path

from examples.servers.debian import PATH

LSF = ("bsub", "bjobs", "bkill", "bqueues", "bhosts")


def environment(program: str, names: Iterable[str], directory: Path) -> dict[str, str]:
    """For commands by these names, which one program here stands in for."""
    commands = directory / "bin"
    commands.mkdir(parents=True)
    for name in names:
        (commands / name).symlink_to(Path(__file__).parent / program)
    return {"PATH": f"{commands}{os.pathsep}{PATH}", "BATCH_STAND_IN": str(directory / "jobs")}
