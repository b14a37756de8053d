"""Machines of their own: a whole Debian with its systemd and network each, over the files of this one.

What one writes is in memory and gone with it: our files stay as they are. Nothing leaves their network.
"""

import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from examples.servers.debian import Suite
from examples.servers.starting import wait_until
from tests.support.documents import readers
from tests.support.documents.shell import Shell

SUITE = Suite(
    about="machines of their own, with PostgreSQL, Redis and HAProxy",
    programs=(
        "systemd-nspawn",
        "pg_ctlcluster",
        "redis-server",
        "haproxy",
        "ip",
        "nsenter",
        "openssl",
        "curl",
    ),
    packages=(
        *("systemd", "systemd-container", "dbus", "iproute2", "util-linux", "python3", "python3-venv"),
        *("postgresql", "redis-server", "haproxy", "openssl", "curl"),
    ),
    files=readers.SUITE.files,
    needs_root=True,
)
_NETWORK = "10.79.0"
#: Who enters one has this path.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One that has started."""

    name: str
    root: Path  #: its files, as they are seen from here
    leader: int  #: its first process

    @contextmanager
    def shell(self, directory: Path, environment: Mapping[str, str]) -> Iterator[Shell]:
        """A shell of its root.

        Args:
            directory: Of ours, for what the shell keeps.
            environment: Variables beside the usual ones.
        """
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--root")
        within = ("nsenter", f"--target={self.leader}", *spaces, "env", "--chdir=/root")
        usual = {"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8"}
        shell = Shell(directory, {**usual, **environment}, within=within)
        try:
            yield shell
        finally:
            shell.close()


@contextmanager
def started(
    directory: Path, names: Sequence[str], *, shown: Sequence[Path], shared: Mapping[str, Path]
) -> Iterator[dict[str, Machine]]:
    """Machines that know each other by these names.

    Args:
        directory: For their files.
        names: Of the hosts, as `a.example.org`.
        shown: Directories of ours that everybody there may read.
        shared: By path there, a directory that all of them mount, as from a file server.
    """
    mark = secrets.token_hex(3)
    with ExitStack() as stack:
        stack.enter_context(_switch(mark))
        hosts = "".join(f"{_NETWORK}.{number} {name}\n" for number, name in enumerate(names, 1))
        roots = {}
        for number, name in enumerate(names, 1):
            stack.enter_context(_plugged(mark, number))
            roots[name] = stack.enter_context(_files(directory / name.partition(".")[0], name, hosts, shown))
        # They start at the same time.
        processes = {
            name: stack.enter_context(_process(roots[name], f"{mark}{number}", shown, shared))
            for number, name in enumerate(names, 1)
        }
        yield {
            name: Machine(name=name, root=roots[name], leader=_leader(process))
            for name, process in processes.items()
        }


@contextmanager
def _switch(mark: str) -> Iterator[None]:
    """A network that is in no way connected to ours."""
    _run("ip", "netns", "add", f"m{mark}")
    try:
        _run("ip", "-n", f"m{mark}", "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", f"m{mark}", "link", "set", "br0", "up")
        yield
    finally:
        _run("ip", "netns", "del", f"m{mark}")


@contextmanager
def _plugged(mark: str, number: int) -> Iterator[None]:
    """The network of one machine, with a cable to the switch."""
    space, switch, end = f"m{mark}{number}", f"m{mark}", f"p{number}"
    _run("ip", "netns", "add", space)
    try:
        _run("ip", "-n", space, "link", "set", "lo", "up")
        cable = ("link", "add", "host0", "netns", space, "type", "veth", "peer", "name", end, "netns", switch)
        _run("ip", *cable)
        _run("ip", "-n", switch, "link", "set", end, "master", "br0", "up")
        _run("ip", "-n", space, "addr", "add", f"{_NETWORK}.{number}/24", "dev", "host0")
        _run("ip", "-n", space, "link", "set", "host0", "up")
        yield
    finally:
        _run("ip", "netns", "del", space)


@contextmanager
def _files(directory: Path, name: str, hosts: str, shown: Sequence[Path]) -> Iterator[Path]:
    """Our files with a layer above them that takes what is written."""
    directory.mkdir()
    _run("mount", "-t", "tmpfs", "tmpfs", str(directory))
    try:
        upper, work, root = (directory / each for each in ("upper", "work", "root"))
        for each in (upper, work, root):
            each.mkdir(mode=0o755)
        layers = f"lowerdir=/,upperdir={upper},workdir={work}"
        _run("mount", "-t", "overlay", "overlay", "-o", layers, str(root))
        try:
            _settle(root, name, hosts, shown)
            yield root
        finally:
            _run("umount", "--recursive", "--lazy", str(root))
    finally:
        _run("umount", "--lazy", str(directory))


def _settle(root: Path, name: str, hosts: str, shown: Sequence[Path]) -> None:
    """Make the files those of another machine, which has nothing installed but Debian's packages."""
    etc = root / "etc"
    (etc / "hostname").write_text(f"{name}\n")
    (etc / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
    (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nshadow: files\nhosts: files\n")
    (etc / "machine-id").unlink(missing_ok=True)
    (etc / "machine-id").write_text(f"{secrets.token_hex(16)}\n")
    # What is installed here is not made newer there: there is nobody to ask.
    (etc / "apt" / "apt.conf.d" / "99-as-it-is").write_text('APT::Get::Upgrade "false";\n')
    (root / "usr" / "sbin" / "policy-rc.d").unlink(missing_ok=True)
    # What is shown may lie where each machine, and each service of it, has temporary files of its own.
    units = etc / "systemd" / "system"
    (units / "tmp.mount").symlink_to("/dev/null")
    (units / "service.d").mkdir()
    paths = "".join(f"BindReadOnlyPaths={each}\n" for each in shown)
    (units / "service.d" / "shown.conf").write_text(f"[Service]\n{paths}")
    for each in shown:
        for place in (each, *each.parents):
            there = root / place.relative_to("/")
            there.mkdir(parents=True, exist_ok=True)
            there.chmod(there.stat().st_mode | 0o555)


@contextmanager
def _process(
    root: Path, space: str, shown: Sequence[Path], shared: Mapping[str, Path]
) -> Iterator[subprocess.Popen[bytes]]:
    """The machine itself; it starts no service by itself."""
    binds = [f"--bind-ro={each}" for each in shown]
    binds += [f"--bind={ours}:{theirs}" for theirs, ours in shared.items()]
    with (root.parent / "console").open("wb") as console:
        process = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig=KILL"),
                *("systemd-nspawn", "--quiet", "--keep-unit", "--register=no", "--console=pipe"),
                *(
                    f"--directory={root}",
                    f"--network-namespace-path=/run/netns/m{space}",
                    f"--machine=m{space}",
                ),
                *("--resolv-conf=off", *binds, "--boot", "systemd.unit=basic.target"),
            ],
            env={**os.environ, "SYSTEMD_NSPAWN_TMPFS_TMP": "0"},
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for each in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.kill()
        process.wait()


def _leader(process: subprocess.Popen[bytes]) -> int:
    """Its systemd, when it has started what belongs to every machine."""

    def found() -> int | None:
        for each in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                if each.name() == "systemd" and each.ppid() != 1:
                    return int(each.pid)
        return None

    leader = wait_until(found)
    assert leader is not None
    enter = ("nsenter", f"--target={leader}", "--mount", "--net", "--pid", "--root")

    def is_up() -> bool:
        asked = [*enter, "systemctl", "is-active", "basic.target"]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() == "active"

    wait_until(is_up)
    return leader


def _run(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "LANG": "C"}
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
