"""From the file of a director to its parts: clients, batch systems, the script of its pilots."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pilotage.cli import batch_systems, told_file
from pilotage.fabric import pilot_script
from pilotage.fabric.batch.idealizer import Idealized
from pilotage.fabric.client import Client
from pilotage.fabric.director import configuration
from pilotage.fabric.director.configuration import InvalidDirector, Told
from pilotage.fabric.director.cycle import Director
from pilotage.fabric.director.outlets import Intent, Sites
from pilotage.fabric.pilot import bundle
from pilotage.fabric.pilot_script import PilotScript
from requirements.values import fold


def read(file: Path) -> Told:
    """What the file of a director says.

    Raises:
        InvalidDirector: It cannot be read as what it should be; with every problem.
    """
    return configuration.read(told_file.parsed(file, InvalidDirector), str(file))


@contextmanager
def opened(told: Told) -> Iterator[Director]:
    """The director that a file describes; its connections end with the block."""
    with ExitStack() as stack:
        clients = {
            fold(vo): stack.enter_context(_client(told, vo, each.token_file)) for vo, each in told.vos.items()
        }
        systems = {
            name: Idealized(system=batch_systems.system(each, stack), evidence=told.evidence())
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


def _client(told: Told, vo: str, file: Path) -> Client:
    shown = told_file.fresh_token(file, InvalidDirector)
    return Client(told.url, shown, whose=f"vos/{vo}/token_file: {file}", authorities=told.authorities)


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
