"""`pilotage director`: pilots into the batch queues of sites, as many as there is work for."""

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from pilotage.cli import batch_systems, directing, logs, options, rounds, settings, stopping
from pilotage.fabric.client import ApiError, ServiceAway
from pilotage.fabric.director.cycle import Director

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
    logs.configure(chosen.log_level, as_json=as_json)
    told = directing.read(config)
    with directing.opened(told) as made:
        batch_systems.warn_of_readable([each.token_file for each in told.vos.values()], told.systems)
        if once:
            rounds.tell(made.cycle(datetime.now(UTC)), as_json=as_json)
        else:
            _run(made, every=told.every, as_json=as_json)


def _run(made: Director, *, every: float, as_json: bool) -> None:
    stop = stopping.on_signals()
    while not stop.is_set():
        try:
            rounds.tell(made.cycle(datetime.now(UTC)), as_json=as_json)
        except (ServiceAway, ApiError) as error:
            log.error("the cycle was cut off, the next one goes on: %s", error)  # noqa: TRY400 - theirs
        except Exception:
            log.exception("the cycle broke")
        stop.wait(every)
