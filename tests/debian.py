"""Suites that need Debian's programs: which are left out, and how to get them.

`python -m tests.debian` says it; with `--install` it installs what is missing, which takes root.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

#: Servers are not in everybody's path.
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What the tests marked `debian(name)` need."""

    about: str
    programs: tuple[str, ...]
    packages: tuple[str, ...]
    needs_root: bool = False  #: its server runs jobs of others

    @property
    def is_ready(self) -> bool:
        if self.needs_root and os.geteuid() != 0:
            return False
        return all(shutil.which(program, path=PATH) for program in self.programs)


SUITES = {
    "slurm": Suite(
        about="the batch system Slurm",
        programs=("slurmctld", "slurmd", "munged", "sbatch"),
        packages=("slurm-wlm", "munge"),
        needs_root=True,
    ),
    "gridengine": Suite(
        about="the batch system Grid Engine",
        programs=("qsub", "nsenter", "ip", "setpriv"),
        packages=("gridengine-master", "gridengine-exec", "gridengine-client", "iproute2", "util-linux"),
        needs_root=True,
    ),
    "ssh": Suite(
        about="head nodes behind SSH",
        programs=("sshd", "ssh-keygen"),
        packages=("openssh-server", "openssh-client"),
    ),
}
#: Where nothing may be left out a suite that is not ready fails.
ALL_OF_THEM = os.environ.get("CI") == "true" or "PILOTAGE_TEST_ALL" in os.environ


def missing() -> dict[str, Suite]:
    """The suites that cannot run here."""
    return {name: suite for name, suite in SUITES.items() if not suite.is_ready}


def _install() -> None:
    packages = sorted({package for suite in missing().values() for package in suite.packages})
    if not packages:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sys.exit(
            f"installing takes root on Debian: apt-get install --no-install-recommends {' '.join(packages)}"
        )
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run([*apt, "update"], env=quiet, check=True)
    install = [*apt, "install", "--yes", "--no-install-recommends", *packages]
    subprocess.run(install, env=quiet, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    if "--install" in sys.argv[1:]:
        _install()
    for name, suite in missing().items():
        packages, root = " ".join(suite.packages), " (as root)" if suite.needs_root else ""
        sys.stderr.write(f"left out: {name} ({suite.about}); ./dev test --install{root} adds {packages}\n")


if __name__ == "__main__":
    main()
