"""The command `pilotage`: its commands, their lazy import, and its exit status."""

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
    """A command of the program, imported only when it is run or completed."""

    function: str  #: registers the command, as `module:name`
    help: str  #: line in `pilotage --help`; the first paragraph of the help of the command itself

    def register(self, app: typer.Typer) -> None:
        """Import the command and add it."""
        module, _, name = self.function.partition(":")
        getattr(import_module(module), name)(app)


#: Only the module of the command that is run is imported: a client command must not wait until a database and
#: a web server are loaded, and neither must the list of all commands.
COMMANDS: Mapping[str, Command] = {
    "up": Command(
        "pilotage.cli.processes.up:register",
        "Run the whole system in one process: database, service, optimizers, agents; with --site, pilots.",
    ),
    "job": Command(
        "pilotage.cli.commands.job:register",
        "Submit, list, inspect, kill and reschedule jobs; fetch their output.",
    ),
    "pool": Command(
        "pilotage.cli.commands.pool:register",
        "List SubmitPools: Requirements of jobs, with the queues eligible for them.",
    ),
    "queue": Command("pilotage.cli.commands.queue:register", "List, explain, drain and resume batch queues."),
    "site": Command("pilotage.cli.commands.site:register", "Show, advertise, ban and allow sites."),
    "config": Command(
        "pilotage.cli.commands.config:register",
        "Check, show, change, import and export the configuration.",
    ),
    "accounting": Command(
        "pilotage.cli.commands.accounting:register",
        "Sum jobs, wall time, CPU time and causes of waiting of the jobs that you may see.",
    ),
    "pilot": Command(
        "pilotage.cli.commands.pilots:register_pilot",
        "Run a pilot on this machine: --site S --ce C --queue Q; see `pilotage pilot --help`.",
    ),
    "pilots": Command(
        "pilotage.cli.commands.pilots:register_pilots",
        "List pilots, with their status and their success rates.",
    ),
    "serve": Command(
        "pilotage.cli.processes.serve:register",
        "Run the HTTP service; several can run, on any hosts, behind a load balancer.",
    ),
    "worker": Command(
        "pilotage.cli.processes.worker:register",
        "Run the optimizers: they prepare submitted jobs for matching, woken through Redis.",
    ),
    "agent": Command(
        "pilotage.cli.processes.agent:register",
        "Run background agents: refresh pools, recover lost jobs, find missed jobs, delete old data.",
    ),
    "director": Command(
        "pilotage.cli.processes.director:register",
        "Submit pilots to batch queues, as many as there is work for, and follow them.",
    ),
    "gateway": Command(
        "pilotage.cli.processes.gateway:register",
        "Fetch grid jobs for the queues of a site and run each as many local jobs in its batch system.",
    ),
    "token": Command(
        "pilotage.cli.commands.tokens:register_token",
        "Create a token with the signing key of this installation and print it.",
    ),
    "login": Command(
        "pilotage.cli.commands.tokens:register_login",
        "Print a link that signs a browser in to the web pages; valid once, for five minutes.",
    ),
    "key": Command(
        "pilotage.cli.commands.tokens:register_key",
        "List, rotate and retire the keys that sign tokens.",
    ),
    "db": Command(
        "pilotage.cli.commands.db:register",
        "Create, upgrade and check the tables of the database; recover from lost commits.",
    ),
    "doctor": Command(
        "pilotage.cli.checks.doctor:register",
        "Check this installation and list problems; exit status 1 if there are any. Changes nothing.",
    ),
}


#: The variable by which the shell's script calls the program for completions (Typer derives its name).
_COMPLETION = "_PILOTAGE_COMPLETE"


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - Typer calls it with the flag alone
    if wanted:
        typer.echo(f"pilotage {metadata.version('pilotage')}")
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """A task queue and pilot matcher: jobs state their requirements, pilots at the sites pull them.

    Start with `pilotage up`, then `pilotage job submit FILE`.
    """


def application(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The program with the commands `names`."""
    app = typer.Typer(name="pilotage", pretty_exceptions_enable=False)
    app.callback()(_root)
    for name in names:
        COMMANDS[name].register(app)
    return app


def overview() -> typer.Typer:
    """The program with the names and help lines of all commands, none of them imported."""
    app = application(())
    for name, command in COMMANDS.items():
        app.command(name, help=command.help, add_help_option=False)(_not_imported)
    return app


def _not_imported() -> None:
    raise AssertionError("the overview only lists commands")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 refused or not found, 2 wrong usage or configuration."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    typed = typed_words(os.environ) if _COMPLETION in os.environ else words
    chosen = [name for name in typed[:1] if name in COMMANDS]
    run(lambda: application(chosen) if chosen else overview(), words, name="pilotage")


def typed_words(environment: Mapping[str, str]) -> list[str]:
    """The words before the one that a shell wants completed, as Typer's scripts for the shells pass them."""
    if "COMP_CWORD" in environment:  # bash
        return environment.get("COMP_WORDS", "").split()[1 : int(environment["COMP_CWORD"])]
    line = environment.get("_TYPER_COMPLETE_ARGS", "")  # zsh, fish
    words = line.split()[1:]
    return words if line.endswith(" ") else words[:-1]


def run(make: Callable[[], typer.Typer], words: Sequence[str], *, name: str) -> NoReturn:
    """Run the program that `make` returns, print each error as one line, and exit."""
    output.write_all_signs()
    try:
        status = make()(list(words), prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe. Without this, Python reports it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = errors.REFUSED
    except KeyboardInterrupt:
        status = errors.INTERRUPTED
    except errors.SHOWN_ERRORS as error:
        status = errors.show_error(error, as_json="--json" in words)
    except Exception as error:  # noqa: BLE001 - the entry point: users see no traceback
        status = errors.show_bug(error)
    sys.exit(status or 0)
