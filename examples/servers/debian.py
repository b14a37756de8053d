"""Servers that come as packages of Debian: what each needs, whether it is here, and how to get it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass

#: Servers are not in everybody's path.
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Programs that belong together, and the packages that they come in."""

    about: str
    programs: tuple[str, ...]
    packages: tuple[str, ...]
    needs_root: bool = False  #: its server runs jobs of others

    @property
    def is_ready(self) -> bool:
        """Whether it can be used here and by us."""
        return not self.missing and self.may_be_run

    @property
    def missing(self) -> tuple[str, ...]:
        """The programs that are not on this host."""
        return tuple(program for program in self.programs if not shutil.which(program, path=PATH))

    @property
    def may_be_run(self) -> bool:
        """Whether we are who has to be for it."""
        return not self.needs_root or os.geteuid() == 0


def install(suites: Iterable[Suite]) -> None:
    """Install the packages of suites; without any it does nothing.

    Raises:
        SystemExit: This is no Debian, or we are not root.
    """
    packages = sorted({package for suite in suites for package in suite.packages})
    if not packages:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sys.exit(
            f"installing takes root on Debian: apt-get install --no-install-recommends {' '.join(packages)}"
        )
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run([*apt, "update"], env=quiet, check=True)
    command = [*apt, "install", "--yes", "--no-install-recommends", *packages]
    subprocess.run(command, env=quiet, check=True, stdout=subprocess.DEVNULL)
