"""From the file of a director to its parts: clients, batch systems, the script of its pilots.

`pilotage director`: pilots into the batch queues of sites, as many as there is work for.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from pilotage.cli import options, output, process_setup, settings
from pilotage.cli.processes import batch, site_file
from pilotage.fabric import node_script
from pilotage.fabric.batch.reliable import ReliableSystem
from pilotage.fabric.client import ApiError, Client, ServiceAway
from pilotage.fabric.director import configuration
from pilotage.fabric.director.configuration import DirectorFile, InvalidDirector
from pilotage.fabric.director.director import Director
from pilotage.fabric.director.targets import DirectorTargets, PilotIntent
from pilotage.fabric.node_script import PilotScript
from pilotage.fabric.pilot import bundle
from requirements.values import fold


def read_director_file(file: Path) -> DirectorFile:
    """What the file of a director says.

    Raises:
        InvalidDirector: It cannot be read as what it should be; with every problem.
    """
    return configuration.read_file(site_file.parse_file(file, InvalidDirector), str(file))


@contextmanager
def open_director(told: DirectorFile) -> Iterator[Director]:
    """The director that a file describes; its connections end with the block."""
    with ExitStack() as stack:
        clients = {
            fold(vo): stack.enter_context(_client(told, vo, each.token_file)) for vo, each in told.vos.items()
        }
        systems = {
            name: ReliableSystem(system=batch.open_system(each, stack), evidence=told.evidence())
            for name, each in told.systems.items()
        }
        sites = DirectorTargets(
            outlets={each.queue: each.outlet() for each in told.queues},
            brokers={name: each.broker(name) for name, each in told.brokers.items()},
            systems=systems,
            habits=told.habits(),
            script=_script(told),
        )
        yield Director(sites=sites, clients=clients)


def _client(told: DirectorFile, vo: str, file: Path) -> Client:
    shown = site_file.token_reader(file, InvalidDirector)
    return Client(told.url, shown, whose=f"vos/{vo}/token_file: {file}", authorities=told.authorities)


def _script(told: DirectorFile) -> Callable[[PilotIntent], str]:
    """Makes the text that holds a whole pilot."""
    zipapp = bundle.content()
    authorities = None if told.authorities is None else told.authorities.read_text(encoding="ascii")

    def script(intent: PilotIntent) -> str:
        wanted = PilotScript(
            url=told.pilot_url or told.url,
            stamp=intent.stamp,
            secret=intent.secret,
            queue=intent.outlet.queue,
            landings=intent.landings,
            pools=intent.pools,
            authorities=authorities,
            words=(*_slot_arguments(intent), *told.pilot),
        )
        return node_script.pilot_text(wanted, zipapp)

    return script


def _slot_arguments(intent: PilotIntent) -> list[str]:
    """What the pilot is told of its slot; what it is not told it takes from the queue's parameters."""
    asked = intent.outlet.resources
    known: Mapping[str, int | None] = {
        "--lifetime": asked.wall_time,
        "--max-ram": asked.memory,
        "--processors": asked.cores if asked.cores > 1 else None,
        "--gpus": asked.gpus or None,
    }
    return [f"{name}={value}" for name, value in known.items() if value is not None]


log = logging.getLogger(__name__)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("director")(director)


def director(
    *,
    config: Annotated[
        Path, typer.Option("--config", metavar="FILE", help="The service, the VOs, batch systems and queues.")
    ],
    once: Annotated[bool, typer.Option("--once", help="One cycle, tell what it did, and end.")] = False,
    log_level: options.LogLevel = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
) -> None:
    """Send pilots to batch queues: follow those that are there, see what waits, submit what is missing.

    Tells of each cycle in a line. May be killed at any time; started again it goes on where it was.
    """
    chosen = settings.load({"home": home, "log_level": log_level})
    process_setup.configure_logs(chosen.log_level, as_json=as_json)
    told = read_director_file(config)
    with open_director(told) as made:
        batch.warn_of_readable([each.token_file for each in told.vos.values()], told.systems)
        if once:
            output.report_cycle(made.cycle(datetime.now(UTC)), as_json=as_json)
        else:
            _run(made, every=told.every, as_json=as_json)


def _run(made: Director, *, every: float, as_json: bool) -> None:
    stop = process_setup.stop_on_signals()
    while not stop.is_set():
        try:
            output.report_cycle(made.cycle(datetime.now(UTC)), as_json=as_json)
        except (ServiceAway, ApiError) as error:
            log.error("the cycle was cut off, the next one goes on: %s", error)  # noqa: TRY400 - theirs
        except Exception:
            log.exception("the cycle broke")
        stop.wait(every)
