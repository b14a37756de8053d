"""Suites that need Debian's programs, or root: which are left out, and how to get them.

`python -m tests.debian` lists them; with `--install` it installs what is missing, which takes root.
"""

import os
import sys
from pathlib import Path

from examples.servers import cluster, dirac_package, slurm
from examples.servers.debian import Suite, install
from tests.support.documents import readers
from tests.support.servers import balancers, htcondor, machines, pgbackrest, pgbouncer, torque

#: The library of Debian's package libfaketime, with which campaigns change the clocks of hosts.
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
#: PostgreSQL by version.
_POSTGRESQL = "/usr/lib/postgresql/*"
SUITES = {
    "slurm": slurm.SUITE,
    "torque": torque.SUITE,
    "gridengine": Suite(
        about="the batch system Grid Engine",
        programs=("qsub", "nsenter", "ip", "setpriv"),
        packages=("gridengine-master", "gridengine-exec", "gridengine-client", "iproute2", "util-linux"),
        needs_root=True,
    ),
    "arc": Suite(
        about="the computing element ARC CE",
        programs=("arched", "/usr/share/arc/arc-arex-start", "openssl", "unshare", "mount"),
        packages=(
            *("nordugrid-arc-arex", "nordugrid-arc-plugins-needed"),
            *("openssl", "util-linux", "mount"),
        ),
        needs_root=True,
    ),
    "htcondor": htcondor.SUITE,
    "ssh": Suite(
        about="head nodes behind SSH",
        programs=("sshd", "ssh-keygen"),
        packages=("openssh-server", "openssh-client"),
    ),
    "chromium": Suite(
        about="the pages in the browser Chromium",
        programs=("chromium-headless-shell",),
        packages=("chromium-headless-shell", "fonts-dejavu-core"),
    ),
    "pgbackrest": pgbackrest.SUITE,
    "pgbouncer": pgbouncer.SUITE,
    "postgresql": Suite(
        about="PostgreSQL as Debian packages it",
        programs=(),
        files=(f"{_POSTGRESQL}/bin/postgres", f"{_POSTGRESQL}/lib/llvmjit.so"),
        packages=("postgresql",),
    ),
    "patroni": cluster.SUITE,
    "haproxy": balancers.HAPROXY,
    "nginx": balancers.NGINX,
    "machines": machines.SUITE,
    "clocks": Suite(
        about="wrong clocks in campaigns",
        programs=(),
        files=(str(FAKETIME),),
        packages=("libfaketime",),
    ),
    "python": readers.SUITE,
    "dirac": dirac_package.SUITE,
}
#: Where nothing may be left out a suite that is not ready fails.
ALL_OF_THEM = os.environ.get("CI") == "true" or "PILOTAGE_TEST_ALL" in os.environ


def list_missing() -> dict[str, Suite]:
    """The suites whose programs are not on this host, of those that this account may run."""
    return {name: suite for name, suite in SUITES.items() if suite.may_be_run and suite.missing}


def find_postgresql() -> Path:
    """The directory of the programs of Debian's PostgreSQL."""
    return max(Path("/").glob(f"{_POSTGRESQL}/bin".lstrip("/")), key=lambda path: int(path.parent.name))


def main() -> None:
    if "--install" in sys.argv[1:]:
        install(list_missing().values())
    for name, suite in list_missing().items():
        packages = " ".join((*suite.packages, *suite.aside, *suite.beside))
        sys.stderr.write(f"left out: {name} ({suite.about}); ./dev test --install as root adds {packages}\n")
    of_root = ", ".join(name for name, suite in SUITES.items() if not suite.may_be_run)
    if of_root:
        sys.stderr.write(f"left out, since they need root: {of_root}; ./dev test -m root as root runs them\n")


if __name__ == "__main__":
    main()
