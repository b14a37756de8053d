"""`pilotage director`: submits pilots to batch queues, as many as there is work for.

Builds the parts of a director from its file: clients, batch systems and the script of its pilots.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pilotage.cli import options, output, process_setup, settings
from pilotage.cli.processes import batch, site_file
from pilotage.cli.settings import Settings
from pilotage.fabric import node_script
from pilotage.fabric.batch.reliable import ReliableSystem
from pilotage.fabric.batch.settings import Connections, open_system
from pilotage.fabric.client import ApiError, Client, ServiceAway
from pilotage.fabric.director import configuration
from pilotage.fabric.director.configuration import DirectorFile, InvalidDirector
from pilotage.fabric.director.director import Director
from pilotage.fabric.director.targets import DirectorTargets
from pilotage.fabric.node_script import PilotScript
from pilotage.fabric.pilot import bundle
from requirements.values import fold


def read_director_file(file: Path) -> DirectorFile:
    """The settings in the file of a director."""
    return configuration.read_file(settings.load_yaml(file, InvalidDirector), str(file))


@contextmanager
def open_director(described: DirectorFile) -> Iterator[Director]:
    """The director described by a file; its connections are closed at the end of the block."""
    with ExitStack() as stack:
        clients = {
            fold(vo): stack.enter_context(_client(described, vo, each.token_file))
            for vo, each in described.vos.items()
        }
        connections = Connections(stack=stack)
        systems = {
            name: ReliableSystem(system=open_system(each, connections), evidence=described.gone)
            for name, each in described.systems.items()
        }
        sites = DirectorTargets(
            outlets={each.queue: each.outlet() for each in described.queues},
            brokers=described.brokers,
            systems=systems,
            habits=described,
            script=_script(described),
        )
        yield Director(sites=sites, clients=clients)


def _client(described: DirectorFile, vo: str, file: Path) -> Client:
    shown = site_file.token_reader(file, InvalidDirector)
    return Client(
        described.url, shown, whose=f"vos/{vo}/token_file: {file}", authorities=described.authorities
    )


def _script(described: DirectorFile) -> Callable[[PilotScript], str]:
    """The function that builds the script of a pilot, which contains the whole program."""
    zipapp = bundle.content()
    authorities = None if described.authorities is None else described.authorities.read_text(encoding="ascii")

    def script(pilot: PilotScript) -> str:
        whole = replace(pilot, words=(*pilot.words, *described.pilot))
        url = described.pilot_url or described.url
        return node_script.pilot_text(whole, zipapp, url=url, authorities=authorities)

    return script


log = logging.getLogger(__name__)


@settings.command_with("log_level")
def director(
    chosen: Settings,
    *,
    as_json: bool,
    config: Annotated[
        Path, options.option("FILE", "Director file: service, VOs, batch systems and queues.", "--config")
    ],
    once: site_file.Once = False,
) -> None:
    """Submit pilots to batch queues, as many as there is work for, and follow them.

    Prints one line for each cycle. It can be killed at any time: a new start continues from there.
    """
    process_setup.configure_logs(chosen.log_level, as_json=as_json)
    described = read_director_file(config)
    with open_director(described) as made:
        batch.warn_of_readable([each.token_file for each in described.vos.values()], described.systems)
        if once:
            output.report_cycle(made.cycle(datetime.now(UTC)), as_json=as_json)
        else:
            _run(made, every=described.every, as_json=as_json)


def _run(made: Director, *, every: float, as_json: bool) -> None:
    stop = process_setup.stop_on_signals()
    while not stop.is_set():
        try:
            output.report_cycle(made.cycle(datetime.now(UTC)), as_json=as_json)
        except (ServiceAway, ApiError) as error:
            log.error("the cycle was interrupted, the next one continues: %s", error)  # noqa: TRY400 - not our bug
        except Exception:
            log.exception("the cycle failed")
        stop.wait(every)
