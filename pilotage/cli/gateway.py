"""`pilotage gateway`: grid jobs from the service, materialised as local jobs in a site's batch systems."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from pilotage.cli import batch_systems, gatewaying, logs, options, rounds, settings, stopping
from pilotage.fabric.gateway.configuration import Told
from pilotage.fabric.gateway.gateway import Gateway
from pilotage.fabric.manager.errors import StateUnusable
from pilotage.fabric.pilot.pulse import Pulse
from pilotage.fabric.pilot.transport import Away

log = logging.getLogger(__name__)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("gateway")(gateway)


def gateway(
    *,
    config: Annotated[
        Path, typer.Option("--config", metavar="FILE", help="The service, batch systems, queues, job types.")
    ],
    once: Annotated[bool, typer.Option("--once", help="One round, tell what it did, and end.")] = False,
    log_level: options.LogLevel = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
) -> None:
    """Take grid jobs for the queues of a site and run each as many local jobs in its batch system.

    Tells of each round in a line. May be killed at any time; started again it goes on where it was.
    """
    chosen = settings.load({"home": home, "log_level": log_level})
    logs.configure(chosen.log_level, as_json=as_json)
    told = gatewaying.read(config)
    with gatewaying.opened(told, config) as made:
        batch_systems.warn_of_readable([told.token_file, told.directory], told.systems)
        if once:
            _once(made, as_json=as_json)
        else:
            _run(made, told, as_json=as_json)


def _once(made: Gateway, *, as_json: bool) -> None:
    summary = made.talk(datetime.now(UTC))
    made.work()
    try:
        made.deliver()
    except Away as error:
        summary.away.append(str(error))
    rounds.tell(summary, as_json=as_json)


def _run(made: Gateway, told: Told, *, as_json: bool) -> None:
    stop = stopping.on_signals()
    every = told.work_every
    with _thread("work", made.work, every), _thread("delivery", made.deliver, every):
        while not stop.is_set():
            _careful("talk", lambda: rounds.tell(made.talk(datetime.now(UTC)), as_json=as_json))
            stop.wait(min(told.every, made.leases.heartbeat_seconds or told.every))


def _thread(name: str, step: Callable[[], object], every: float) -> Pulse:
    """Does a step in a thread of its own, again and again."""

    def turn() -> float:
        _careful(name, step)
        return every

    return Pulse(turn, name=name)


def _careful(name: str, step: Callable[[], object]) -> None:
    """Whatever goes wrong, the next round goes on."""
    try:
        step()
    except Away as error:
        log.warning("%s: the service is away: %s", name, error)
    except StateUnusable as error:
        log.error("%s: the round was cut off: %s", name, error)  # noqa: TRY400 - the directory's fault
    except Exception:
        log.exception("%s: the round broke", name)
