"""The commands of PBS (Torque) for the tests: Slurm's wrappers of them, in front of a private Slurm.

Their package and Grid Engine's both own `qsub`: it is unpacked aside.
"""

import shutil
from pathlib import Path

from examples.servers.debian import PATH, Suite, aside
from examples.servers.slurm import SUITE as SLURM
from examples.servers.slurm import Slurm

_COMMANDS = "slurm-wlm-torque"
#: What it depends on.
_MODULES = ("libslurm-perl", "libslurmdb-perl", "libswitch-perl")
SUITE = Suite(
    about="the commands of PBS, in front of Slurm",
    programs=(*SLURM.programs, "perl"),
    packages=(*SLURM.packages, "perl", *_MODULES),
    aside=(_COMMANDS,),
    needs_root=True,
)


def environment(slurm: Slurm, directory: Path) -> dict[str, str]:
    """For the commands, which are laid out in a new directory."""
    directory.mkdir()
    sbatch = shutil.which("sbatch", path=PATH)
    assert sbatch is not None
    (directory / "sbatch").symlink_to(sbatch)  # qsub looks for it beside itself
    for program in (aside(_COMMANDS) / "usr" / "bin").iterdir():
        (directory / program.name).symlink_to(program)
    return {**slurm.environment, "PATH": f"{directory}:{PATH}"}
