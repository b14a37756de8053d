"""From the settings of a batch system to the adapter that works it."""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

from pilotage.fabric.batch.arc import rest as arc_rest
from pilotage.fabric.batch.arc.arc import Arc
from pilotage.fabric.batch.arc.rest import ArcRest, Connect
from pilotage.fabric.batch.arc.settings import ComputingElement
from pilotage.fabric.batch.batch_system import BatchSystem
from pilotage.fabric.batch.dialect.command import Command
from pilotage.fabric.batch.dialect.dialect import Dialect
from pilotage.fabric.batch.grid_engine import GridEngine
from pilotage.fabric.batch.htcondor.htcondor import HTCondor
from pilotage.fabric.batch.local_host import LocalHost
from pilotage.fabric.batch.settings import Kind, System
from pilotage.fabric.batch.shell import LocalShell, Shell
from pilotage.fabric.batch.slurm.slurm import Slurm
from pilotage.fabric.batch.ssh_shell import Host, SshShell
from pilotage.fabric.batch.work_area import WorkAreas

log = logging.getLogger(__name__)

_OWN: Mapping[Kind, Callable[..., BatchSystem]] = {
    Kind.SLURM: Slurm,
    Kind.GRID_ENGINE: GridEngine,
    Kind.HTCONDOR: HTCondor,
}


def system(told: System, stack: ExitStack) -> BatchSystem:
    """The batch system that a file describes; its connections end with the stack."""
    if told.ce is not None:
        return arc(told.ce, stack, flags=told.flags)
    directory = str(told.directory)
    if told.kind is Kind.LOCAL:
        return LocalHost(directory=directory, cores=told.cores or 0, memory=told.memory or 0)
    areas = WorkAreas(directory=directory, shell=shell(told, stack))
    return commanded(told.kind, areas, flags=told.flags, dialect=told.dialect)


def warn_of_readable(secrets: Iterable[Path], systems: Mapping[str, System]) -> None:
    """Warn of secrets that jobs can read: those on the file system of the jobs' files, of the same account.

    Args:
        secrets: Files and directories of our own.
        systems: By name. Those over SSH have jobs of another account, HTCondor shares no directory with its
            nodes, and ARC has none.
    """
    for name, each in systems.items():
        if each.ssh is None and each.directory is not None and each.kind is not Kind.HTCONDOR:
            for secret in secrets:
                if each.kind is Kind.LOCAL or _share_a_disk(secret, each.directory):
                    log.warning(
                        "%s: jobs of the batch system %s run as this account and may read it: "
                        "keep it on a disk that its nodes do not see, or submit over ssh as another account",
                        secret,
                        name,
                    )


def _share_a_disk(one: Path, other: Path) -> bool:
    try:
        return one.stat().st_dev == other.stat().st_dev
    except OSError:  # not made yet, or away
        return False


def shell(told: System, stack: ExitStack) -> Shell:
    """Where the commands of a batch system are; its connection ends with the stack."""
    if told.ssh is None:
        return LocalShell(environment=told.environment)
    host = Host(
        name=told.ssh.host,
        known_hosts=told.ssh.known_hosts,
        user=told.ssh.user,
        key=told.ssh.key,
        port=told.ssh.port,
        environment=told.environment,
    )
    remote = SshShell(host)
    stack.callback(remote.close)
    return remote


def commanded(
    kind: Kind, areas: WorkAreas, *, flags: tuple[str, ...] = (), dialect: Dialect | None = None
) -> BatchSystem:
    """A batch system that is worked by commands; one that is told in a dialect needs it."""
    if dialect is not None:
        return Command(areas=areas, flags=flags, dialect=dialect)
    return _OWN[kind](areas=areas, flags=flags)


def arc(
    ce: ComputingElement,
    stack: ExitStack,
    *,
    flags: tuple[str, ...] = (),
    connect: Connect = arc_rest.connect,
) -> BatchSystem:
    """A CE that is worked over HTTP; its connections end with the stack."""
    rest = ArcRest(ce.url, ce.credentials(), connect=connect)
    stack.callback(rest.close)
    return Arc(rest=rest, environments=flags)
