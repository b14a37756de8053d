"""The command `pilotage`: which commands there are, and what its exit status means."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module, metadata
from typing import Annotated, NoReturn

import typer

from pilotage.cli import errors, output

#: Each command and the module that registers it. Only the module that is asked for is imported:
#: a client command must not wait until a database and a web server are loaded.
COMMANDS: Mapping[str, str] = {
    "up": "pilotage.cli.processes.up",
    "job": "pilotage.cli.commands.job",
    "pool": "pilotage.cli.commands.pool",
    "queue": "pilotage.cli.commands.queue",
    "site": "pilotage.cli.commands.site",
    "config": "pilotage.cli.commands.config",
    "accounting": "pilotage.cli.commands.accounting",
    "pilot": "pilotage.cli.commands.pilots",
    "pilots": "pilotage.cli.commands.pilots",
    "serve": "pilotage.cli.processes.serve",
    "worker": "pilotage.cli.processes.worker",
    "agent": "pilotage.cli.processes.agent",
    "director": "pilotage.cli.processes.director",
    "gateway": "pilotage.cli.processes.gateway",
    "token": "pilotage.cli.commands.tokens",
    "login": "pilotage.cli.commands.tokens",
    "key": "pilotage.cli.commands.tokens",
    "db": "pilotage.cli.commands.db",
    "doctor": "pilotage.cli.checks.doctor",
}


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - Typer calls it with the flag alone
    if wanted:
        typer.echo(f"pilotage {metadata.version('pilotage')}")
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """A task queue and pilot matcher: jobs state what they need, pilots at the sites pull them.

    Start with `pilotage up`, then `pilotage job submit FILE`.
    """


def application(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The program with the commands `names`."""
    app = typer.Typer(name="pilotage", add_completion=False, pretty_exceptions_enable=False)
    app.callback()(_root)
    for name in names:
        import_module(COMMANDS[name]).register(app)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 refused or not found, 2 wrong usage or configuration."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    names = [words[0]] if words[0] in COMMANDS else COMMANDS
    run(lambda: application(names), words, name="pilotage")


def run(make: Callable[[], typer.Typer], words: Sequence[str], *, name: str) -> NoReturn:
    """Run the program that `make` gives, tell its errors in a line each, and exit."""
    output.write_all_signs()
    try:
        status = make()(list(words), prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough. Without this, Python complains once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = errors.REFUSED
    except KeyboardInterrupt:
        status = errors.INTERRUPTED
    except errors.SHOWN_ERRORS as error:
        status = errors.show_error(error, as_json="--json" in words)
    except Exception as error:  # noqa: BLE001 - the entry point: whatever it is, no traceback for users
        status = errors.show_bug(error)
    sys.exit(status or 0)
