"""The commands of PBS (Torque) for the tests: Slurm's wrappers of them, in front of a private Slurm.

Their package and Grid Engine's both own `qsub`: it is unpacked aside, with the modules that it needs.
"""

import shutil
from pathlib import Path

from examples.servers.debian import PATH, Suite, aside
from examples.servers.slurm import SUITE as SLURM
from examples.servers.slurm import Slurm

_COMMANDS = "slurm-wlm-torque"
_MODULES = ("libslurm-perl", "libslurmdb-perl")
SUITE = Suite(
    about="the commands of PBS, in front of Slurm",
    programs=(*SLURM.programs, "perl"),
    packages=(*SLURM.packages, "perl"),
    aside=(_COMMANDS, *_MODULES),
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
    modules = (path for name in _MODULES for path in aside(name).glob("usr/lib/*/perl5/*"))
    return {
        **slurm.environment,
        "PATH": f"{directory}:{PATH}",
        "PERL5LIB": ":".join(map(str, modules)),
    }
