"""From the file of a director to its parts: clients, batch systems, the script of its pilots."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import yaml

from pilotage.cli import batch_systems
from pilotage.fabric import pilot_script
from pilotage.fabric.batch.batch_system import BatchSystem
from pilotage.fabric.batch.idealizer import Idealized
from pilotage.fabric.batch.local_host import LocalHost
from pilotage.fabric.batch.settings import Kind, System
from pilotage.fabric.batch.shell import LocalShell, Shell
from pilotage.fabric.batch.ssh_shell import Host, SshShell
from pilotage.fabric.batch.work_area import WorkAreas
from pilotage.fabric.client import Client
from pilotage.fabric.director import configuration
from pilotage.fabric.director.configuration import InvalidDirector, Told
from pilotage.fabric.director.cycle import Director
from pilotage.fabric.director.outlets import Intent, Sites
from pilotage.fabric.pilot import bundle
from pilotage.fabric.pilot_script import PilotScript
from requirements.errors import InvalidInput
from requirements.problem import Problem
from requirements.values import fold


def read(file: Path) -> Told:
    """What the file of a director says.

    Raises:
        InvalidDirector: It cannot be read as what it should be; with every problem.
    """
    return configuration.read(parsed(file, InvalidDirector), str(file))


def parsed(file: Path, invalid: type[InvalidInput]) -> object:
    """What a file of YAML holds.

    Raises:
        InvalidInput: Of the class `invalid`: it is none.
    """
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise invalid([Problem(path=str(file), message=f"is not UTF-8: {error.reason}")]) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        what = getattr(error, "problem", None) or "is not YAML"
        raise invalid([Problem(path="settings", message=what, file=str(file), line=line)]) from None


@contextmanager
def opened(told: Told) -> Iterator[Director]:
    """The director that a file describes; its connections end with the block."""
    with ExitStack() as stack:
        clients = {
            fold(vo): stack.enter_context(
                Client(told.url, fresh(each.token_file), whose=f"vos/{vo}/token_file: {each.token_file}")
            )
            for vo, each in told.vos.items()
        }
        systems = {
            name: Idealized(system=system(each, stack), evidence=told.evidence())
            for name, each in told.systems.items()
        }
        sites = Sites(
            outlets={each.queue: each.outlet() for each in told.queues},
            brokers={name: each.broker(name) for name, each in told.brokers.items()},
            systems=systems,
            habits=told.habits(),
            script=_script(told),
        )
        yield Director(sites=sites, clients=clients)


def token(file: Path) -> str:
    """The token in a file.

    Raises:
        InvalidDirector: There is none.
    """
    text = file.read_text(encoding="utf-8", errors="replace").strip()
    if not text or not text.isascii() or len(text.split()) != 1:
        raise InvalidDirector([Problem(path=str(file), message="holds no token")])
    return text


def fresh(file: Path) -> Callable[[], str]:
    """Tells the token that is in a file at that moment; while there is none, the one that was there before.

    Raises:
        InvalidDirector: There is none now.
    """
    last = token(file)

    def now() -> str:
        nonlocal last
        with suppress(OSError, InvalidDirector):
            last = token(file)
        return last

    return now


def system(told: System, stack: ExitStack) -> BatchSystem:
    """The batch system that a file describes; its connections end with the stack."""
    if told.ce is not None:
        return batch_systems.arc(told.ce, stack, flags=told.flags)
    directory = str(told.directory)
    if told.kind is Kind.LOCAL:
        return LocalHost(directory=directory, cores=told.cores or 0, memory=told.memory or 0)
    areas = WorkAreas(directory=directory, shell=shell(told, stack))
    return batch_systems.commanded(told.kind, areas, flags=told.flags, dialect=told.dialect)


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


def _script(told: Told) -> Callable[[Intent], str]:
    """Makes the text that holds a whole pilot."""
    zipapp = bundle.content()
    authorities = None if told.authorities is None else told.authorities.read_text(encoding="ascii")

    def script(intent: Intent) -> str:
        wanted = PilotScript(
            url=told.pilot_url or told.url,
            stamp=intent.stamp,
            secret=intent.secret,
            queue=intent.outlet.queue,
            landings=intent.landings,
            pools=intent.pools,
            authorities=authorities,
            words=(*_slot(intent), *told.pilot),
        )
        return pilot_script.text(wanted, zipapp)

    return script


def _slot(intent: Intent) -> list[str]:
    """What the pilot is told of its slot; what it is not told it takes from the queue's parameters."""
    asked = intent.outlet.resources
    known: Mapping[str, int | None] = {
        "--lifetime": asked.wall_time,
        "--max-ram": asked.memory,
        "--processors": asked.cores if asked.cores > 1 else None,
        "--gpus": asked.gpus or None,
    }
    return [f"{name}={value}" for name, value in known.items() if value is not None]
