"""The command `pilotage`: which commands there are, and what its exit status means."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Annotated, NoReturn

import typer

from pilotage.cli import errors, output


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the program, which is imported only when it is needed."""

    function: str  #: that registers it, as `module:name`
    help: str  #: its line in `pilotage --help`

    def register(self, app: typer.Typer) -> None:
        """Import the command and add it."""
        module, _, name = self.function.partition(":")
        getattr(import_module(module), name)(app)


#: Only the module of the command that is run is imported: a client command must not wait until a database and
#: a web server are loaded, and neither must the list of all commands.
COMMANDS: Mapping[str, Command] = {
    "up": Command(
        "pilotage.cli.processes.up:register",
        "Run everything here: database, service, optimizers, agents and, with --site, pilots.",
    ),
    "job": Command("pilotage.cli.commands.job:register", "Submit jobs, follow them, end them."),
    "pool": Command(
        "pilotage.cli.commands.pool:register",
        "SubmitPools: Requirements of jobs with the queues eligible for them.",
    ),
    "queue": Command("pilotage.cli.commands.queue:register", "Batch queues of the resource tree."),
    "site": Command(
        "pilotage.cli.commands.site:register", "Sites: advertisements, throttles, limits and bans."
    ),
    "config": Command(
        "pilotage.cli.commands.config:register",
        "The configuration: resource tree, operations options, registry.",
    ),
    "accounting": Command(
        "pilotage.cli.commands.accounting:register",
        "Sum jobs, wall time, CPU time and what jobs waited for, as far as it concerns you.",
    ),
    "pilot": Command(
        "pilotage.cli.commands.pilots:register_pilot",
        "Run a pilot here, now: --site S --ce C --queue Q; see `pilotage pilot --help`.",
    ),
    "pilots": Command(
        "pilotage.cli.commands.pilots:register_pilots",
        "Pilots that were sent or came: how they stand and how they fared.",
    ),
    "serve": Command(
        "pilotage.cli.processes.serve:register",
        "Serve HTTP, until SIGINT or SIGTERM; any number of these, on any hosts, behind a load balancer.",
    ),
    "worker": Command(
        "pilotage.cli.processes.worker:register",
        "Prepare submitted jobs for matching: the optimizer chain, rung for through Redis.",
    ),
    "agent": Command(
        "pilotage.cli.processes.agent:register",
        "Run agents: pools fresh, lost jobs back, missed jobs found, old rows gone.",
    ),
    "director": Command(
        "pilotage.cli.processes.director:register",
        "Send pilots to batch queues: follow those that are there, see what waits, submit what is missing.",
    ),
    "gateway": Command(
        "pilotage.cli.processes.gateway:register",
        "Take grid jobs for the queues of a site and run each as many local jobs in its batch system.",
    ),
    "token": Command(
        "pilotage.cli.commands.tokens:register_token",
        "Mint a token with the key of this installation and print it.",
    ),
    "login": Command(
        "pilotage.cli.commands.tokens:register_login",
        "Print a link that signs a browser in to the web pages: once, within five minutes.",
    ),
    "key": Command(
        "pilotage.cli.commands.tokens:register_key",
        "The keys that sign tokens: list them, replace the one that signs.",
    ),
    "db": Command(
        "pilotage.cli.commands.db:register",
        "The database: make or renew its tables, see whether they are right, recover from lost commits.",
    ),
    "doctor": Command(
        "pilotage.cli.checks.doctor:register",
        "Say what is wrong with this installation; status 1 if anything is. Changes nothing.",
    ),
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
        COMMANDS[name].register(app)
    return app


def overview() -> typer.Typer:
    """The program as its own help lists it: names and one line each, nothing behind them."""
    app = application(())
    for name, command in COMMANDS.items():
        app.command(name, help=command.help, add_help_option=False)(_not_imported)
    return app


def _not_imported() -> None:
    raise AssertionError("the overview lists commands, it runs none")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 refused or not found, 2 wrong usage or configuration."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    run(lambda: application([words[0]]) if words[0] in COMMANDS else overview(), words, name="pilotage")


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
