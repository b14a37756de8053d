"""Servers that come as packages of Debian: what each needs, whether it is here, and how to get it."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: What Debian asks before a package starts its service.
_POLICY = Path("/usr/sbin/policy-rc.d")
_NO = 101  #: the answer that forbids it
#: Servers are not in everybody's path.
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


#: Files in a home that shells read at their start.
_STARTUP_FILES = (".bashrc", ".profile", ".bash_profile", ".bash_login")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Programs that belong together, and the packages that they come in."""

    about: str
    programs: tuple[str, ...]
    packages: tuple[str, ...]
    files: tuple[str, ...] = ()  #: patterns of paths that the packages bring, beside programs
    aside: tuple[str, ...] = ()  #: packages that conflict with others: unpacked, not installed
    release: str = ""  #: a later Debian, of which packages are unpacked beside ours, with all that they need
    beside: tuple[str, ...] = ()  #: these packages
    needs_root: bool = False  #: its server runs jobs of others

    @property
    def is_ready(self) -> bool:
        """Whether it can be used here and by us."""
        return not self.missing and self.may_be_run

    @property
    def missing(self) -> tuple[str, ...]:
        """The programs and files that are not on this host, and the packages that are not unpacked."""
        programs = (program for program in self.programs if not shutil.which(program, path=PATH))
        files = (pattern for pattern in self.files if not any(Path("/").glob(pattern.lstrip("/"))))
        unpacked = (*self.aside, *([self.release] if self.release else ()))
        return (*programs, *files, *(package for package in unpacked if not aside(package).is_dir()))

    @property
    def lack(self) -> str:
        """What is missing and how to get it, for people; empty: nothing."""
        packages = " ".join(self.packages)
        there_is_no = f"there is no {', '.join(self.missing)} here"
        return f"{there_is_no}; on Debian --install adds the packages {packages}" if self.missing else ""

    @property
    def may_be_run(self) -> bool:
        """Whether we are who has to be for it."""
        return not self.needs_root or os.geteuid() == 0


def aside(package: str) -> Path:
    """Where the files of a package lie that is unpacked and not installed, or those of another release."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "pilotage" / "debian" / package


def without_startup_files(command: Sequence[str]) -> list[str]:
    """Start a program for which our own home has no startup files of shells; it takes root.

    A batch system reads them for each job. What somebody wrote there may take a minute, or wait for a lock of
    a shell that was killed (`pyenv init` does).
    """
    present = [str(file) for name in _STARTUP_FILES if (file := Path.home() / name).is_file()]
    hide = "".join(f"mount --bind /dev/null {shlex.quote(file)} && " for file in present)
    return ["unshare", "--mount", "sh", "-c", f'{hide}exec "$@"', "sh", *command]


def install(suites: Iterable[Suite]) -> None:
    """Install the packages of suites, unpack what would drive out others; without any it does nothing.

    No service of theirs is started: it would listen on all addresses.

    Raises:
        SystemExit: This is no Debian, or we are not root.
    """
    wanted = tuple(suites)
    packages = sorted({package for suite in wanted for package in suite.packages})
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
    with _none_started():
        subprocess.run(command, env=quiet, check=True, stdout=subprocess.DEVNULL)
    for package in sorted({package for suite in wanted for package in suite.aside}):
        _unpack(package, apt)
    for suite in wanted:
        if suite.release and not aside(suite.release).is_dir():
            _unpack_release(suite)


@contextmanager
def _none_started() -> Iterator[None]:
    """Keep packages from starting their services; a rule that the host has stays."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text(f"#!/bin/sh\nexit {_NO}\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()


def _unpack(package: str, apt: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        # As root apt fetches as a user of its own, who has to be let in.
        Path(directory).chmod(0o777)
        subprocess.run([*apt, "download", package], cwd=directory, check=True)
        [archive] = Path(directory).glob("*.deb")
        unpacked = Path(directory, "unpacked")
        subprocess.run(["dpkg", "-x", archive, unpacked], check=True)
        shutil.rmtree(aside(package), ignore_errors=True)
        shutil.copytree(unpacked, aside(package), symlinks=True)


#: A system of its own for apt: nothing is installed there, and nothing of ours is touched.
_APT = """\
Dir::Etc::SourceList "{directory}/sources.list";
Dir::Etc::SourceParts "{directory}/none";
Dir::Etc::PreferencesParts "{directory}/none";
Dir::State "{directory}/state";
Dir::State::status "{directory}/status";
Dir::Cache "{directory}/cache";
"""
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_SOURCES = f"deb [signed-by={_KEYS}] http://deb.debian.org/debian {{release}} main\n"
#: In a root that was only unpacked: files to mount others at, and where links of merged directories lead.
_MERGED = ("bin", "sbin", "lib", "lib64")
_PLACES = ("etc/passwd", "etc/group", "etc/hosts", "etc/ssl/certs/ca-certificates.crt")


def _unpack_release(suite: Suite) -> None:
    """Unpack packages of another release with all that they need; none of their scripts is run."""
    with tempfile.TemporaryDirectory() as name:
        directory, root = Path(name), Path(name, "root")
        directory.chmod(0o777)
        for each in ("none", "state/lists/partial", "cache/archives/partial"):
            Path(directory, each).mkdir(parents=True)
        for link in _MERGED:
            Path(root, "usr", link).mkdir(parents=True)
            Path(root, link).symlink_to(f"usr/{link}")
        Path(directory, "status").touch()
        Path(directory, "sources.list").write_text(_SOURCES.format(release=suite.release))
        Path(directory, "apt.conf").write_text(_APT.format(directory=directory))
        quiet = {**os.environ, "APT_CONFIG": f"{directory}/apt.conf", "DEBIAN_FRONTEND": "noninteractive"}
        apt = ["apt-get", "-qq"]
        wanted = ["install", "--yes", "--no-install-recommends", "--download-only", *suite.beside]
        for words in (["update"], wanted):
            subprocess.run([*apt, *words], env=quiet, check=True, stdout=subprocess.DEVNULL)
        for archive in sorted(Path(directory, "cache", "archives").glob("*.deb")):
            unpack = 'dpkg-deb --fsys-tarfile "$0" | tar -x -C "$1" --keep-directory-symlink'
            subprocess.run(["sh", "-c", unpack, archive, root], check=True)
        for place in map(root.joinpath, _PLACES):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        aside(suite.release).parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(root, aside(suite.release), symlinks=True)
