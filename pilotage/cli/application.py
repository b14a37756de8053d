"""The command `pilotage`: its commands, their lazy import, and its exit status."""

import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from cs_config import gc_pause
from pilotage import entry_points, extensions
from pilotage.cli import errors, options, output
from pilotage.extensions import Command, CommandGroup

#: Only the module of the command that is run is imported: a client command must not wait until a database and
#: a web server are loaded, and neither must the list of all commands.
COMMANDS: Mapping[str, Command | CommandGroup] = {
    "up": Command(
        "processes.up:up",
        "Run the whole system in one process: database, service, optimizers, agents; with --site, pilots.",
    ),
    "job": CommandGroup(
        "Submit, list, inspect, kill, delete and reschedule jobs; fetch their output.",
        {
            "submit": "job_submit:submit",
            "list": "job_list:list_jobs",
            "top": "job_list:top",
            "show": "job_show:show",
            "log": "job_show:log",
            "explain": "job_show:explain",
            "forecast": "job_show:forecast",
            "queues": "job_show:list_queues",
            "logs": "job_show:logs",
            "resubmit": "job:resubmit",
            "kill": "job:kill",
            "delete": "job:delete",
            "reschedule": "job:reschedule",
            "reset": "job:reset",
            "hold": "job:hold",
            "release": "job:release",
            "edit": "job:edit",
            "output": "job:fetch_output",
            "wait": "job:wait",
        },
    ),
    "pool": CommandGroup(
        "List SubmitPools: Requirements of jobs, with the queues eligible for them.",
        {"list": "pool:list_pools", "show": "pool:show", "for-queue": "pool:for_queue"},
    ),
    "queue": CommandGroup(
        "List, find, explain, drain and resume batch queues.",
        {
            "list": "queue:list_queues",
            "find": "queue:find",
            "show": "queue:show",
            "explain": "queue:explain",
            "drain": "queue:drain",
            "resume": "queue:resume",
        },
    ),
    "site": CommandGroup(
        "Show, advertise, ban and allow sites; readmit nodes.",
        {
            "list": "site:list_sites",
            "show": "site:show",
            "advertise": "site:advertise",
            "ban": "site:ban",
            "allow": "site:allow",
            "limits": "site:show_limits",
            "hardware": "site:list_hardware",
            "nodes": "site:list_nodes",
            "readmit": "site:readmit",
            "processes": "site:list_processes",
            "forget": "site:forget",
        },
    ),
    "downtime": CommandGroup(
        "Plan, list, remove and import downtimes of sites and CEs.",
        {
            "add": "downtime:add",
            "list": "downtime:list_downtimes",
            "remove": "downtime:remove",
            "import": "downtime:import_feed",
        },
    ),
    "share": CommandGroup(
        "Show shares of groups and owners, and why one job comes before another.",
        {"show": "share:show", "compare": "share:compare"},
    ),
    "config": CommandGroup(
        "Check, show, change, import and export the configuration.",
        {
            "check": "config.show:check",
            "show": "config.show:show",
            "set": "config.edit:set_",
            "diff": "config.edit:show_difference",
            "preview": "config.edit:preview",
            "apply": "config.edit:apply",
            "history": "config.show:history",
            "rollback": "config.show:rollback",
            "temporary": "config.show:list_temporary",
        },
    ),
    "accounting": Command(
        "commands.accounting:accounting",
        "Sum jobs, wall time, CPU time and causes of waiting of the jobs that you may see.",
    ),
    "replay": Command(
        "commands.replay:replay",
        "Replay a recorded day, as it was and with another configuration, and compare. Changes nothing.",
    ),
    "pilot": Command(
        "commands.pilots:pilot",
        "Run a pilot on this machine: --site S --ce C --queue Q; see `pilotage pilot --help`.",
        reads_own_options=True,
    ),
    "pilots": CommandGroup(
        "List pilots, with their status and their success rates.",
        {"list": "pilots:list_pilots", "show": "pilots:show", "summary": "pilots:summary"},
    ),
    "serve": Command(
        "processes.serve:serve",
        "Run the HTTP service; several can run, on any hosts, behind a load balancer.",
    ),
    "worker": Command(
        "processes.worker:worker",
        "Run the optimizers: they prepare submitted jobs for matching, woken through Redis.",
    ),
    "agent": Command(
        "processes.agent:agent",
        "Run background agents: refresh pools, recover lost jobs, find missed jobs, delete old data.",
    ),
    "director": Command(
        "processes.director:director",
        "Submit pilots to batch queues, as many as there is work for, and follow them.",
    ),
    "gateway": Command(
        "processes.gateway:gateway",
        "Fetch grid jobs for the queues of a site and run each as several local jobs in its batch system.",
    ),
    "token": Command(
        "commands.tokens:token", "Create a token with the signing key of this installation and print it."
    ),
    "login": Command(
        "commands.login:login",
        "Print a link that signs a browser in to the web pages; valid once, for five minutes.",
    ),
    "whoami": Command("commands.login:whoami", "Show the role, VOs and sites of your token."),
    "revoke": Command(
        "commands.login:revoke", "Revoke a token, for operators: it is refused within seconds."
    ),
    "key": CommandGroup(
        "List, rotate and retire the keys that sign tokens.",
        {"list": "tokens:show_keys", "rotate": "tokens:rotate", "retire": "tokens:retire"},
    ),
    "db": CommandGroup(
        "Create, upgrade and check the tables of the database; recover from lost commits.",
        {
            "upgrade": "db:upgrade",
            "check": "db:check",
            "recover": "db:recover",
            "partition": "db:partition",
        },
    ),
    "blobs": CommandGroup(
        "Move the archives of sandboxes and outputs to another store.",
        {"copy": "blobs:copy"},
        package="pilotage.cli.processes",
    ),
    "doctor": Command(
        "doctor:doctor",
        "Check this installation and list problems; exit status 1 if there are any. Changes nothing.",
    ),
}

#: The variable by which the shell's script calls the program for completions (Typer derives its name).
_COMPLETION = "_PILOTAGE_COMPLETE"


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - Typer calls it with the flag alone
    if wanted:
        from importlib import metadata  # only here: 0.03 s that no other command needs

        name = "pilotage" if next(iter(metadata.distributions(name="pilotage")), None) else "pilotage-client"
        typer.echo(f"pilotage {metadata.version(name)}")
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


def list_commands() -> Mapping[str, Command | CommandGroup]:
    """The commands of the program and of its plug-ins."""
    return extensions.add_commands(COMMANDS)


def _find_commands(path: Sequence[str]) -> Mapping[str, Command | CommandGroup]:
    """The commands that have the one at a path: without plug-ins, which take time, if it is the program's."""
    below: object = COMMANDS
    for word in path:
        if not isinstance(below, Mapping):
            break
        found = below.get(word)
        below = found.commands if isinstance(found, CommandGroup) else found
    return list_commands() if below is None or isinstance(below, Mapping) else COMMANDS


def application(path: Sequence[str] = ()) -> typer.Typer:
    """The program with the commands at and below a path such as `job list`; others are not imported."""
    app = _program()
    _add_commands(app, _find_commands(path), path, package="pilotage.cli")
    return app


def overview() -> typer.Typer:
    """The program with the names and help lines of all commands, none of them imported."""
    app = _program()
    for name, command in list_commands().items():
        if name in COMMANDS and not _is_installed(command):
            continue
        app.command(name, help=command.help, add_help_option=False)(_not_imported)
    return app


def _is_installed(command: Command | CommandGroup) -> bool:
    """Whether the module of a command is there: the light client has those of users only."""
    own = [command.function] if isinstance(command, Command) else command.commands.values()
    module = next(each for each in own if isinstance(each, str)).partition(":")[0]
    file = f"{command.package}.{module}".replace(".", "/")
    return (Path(__file__).parents[2] / f"{file}.py").exists()


def _program() -> typer.Typer:
    app = typer.Typer(name="pilotage", pretty_exceptions_enable=False)
    app.callback()(_root)
    return app


def _not_imported() -> None:
    raise AssertionError("the overview only lists commands")


def _add_commands(
    app: typer.Typer,
    commands: Mapping[str, Command | CommandGroup | str],
    path: Sequence[str],
    *,
    package: str,
) -> None:
    """Add commands, or the one that the path begins with; the functions named by text are in the package."""
    named = [name for name in path[:1] if name in commands]
    for name in named or commands:
        command = commands[name]
        if isinstance(command, CommandGroup):
            group = typer.Typer(help=command.help)
            _add_commands(group, command.commands, path[1:], package=command.package)
            if command.installed is not None:
                _add_installed(group, command, *command.installed)
            app.add_typer(group, name=name)
        elif isinstance(command, str):
            app.command(name)(_import_function(command, package))
        else:
            own = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
            context = own if command.reads_own_options else None
            function = _import_function(command.function, command.package)
            app.command(name, context_settings=context)(function)


def _add_installed(app: typer.Typer, group: CommandGroup, points: str, maker: str) -> None:
    make = extensions.find(maker, group.package)
    for name in entry_points.list_present(points):
        if name not in group.commands:
            app.command(name)(options.expand_groups(make(name)))


def _import_function(place: str, package: str) -> options.CommandFunction:
    return options.expand_groups(extensions.find(place, package))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 refused or not found, 2 wrong usage or configuration."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    # `token` has options of its own: as a group it could not require them.
    if words[:2] == ["token", "revoke"]:
        words = words[1:]
    typed = typed_words(os.environ) if _COMPLETION in os.environ else words
    program = partial(_find_program, typed)
    run(program, words, name="pilotage", owns_process=arguments is None)


def _find_program(words: Sequence[str]) -> typer.Typer:
    """The program with the command of these words, or the overview if there is none."""
    is_command = bool(words) and (words[0] in COMMANDS or words[0] in list_commands())
    return application(words) if is_command else overview()


def typed_words(environment: Mapping[str, str]) -> list[str]:
    """The words before the one that a shell wants completed, as Typer's scripts for the shells pass them."""
    if "COMP_CWORD" in environment:  # bash
        return environment.get("COMP_WORDS", "").split()[1 : int(environment["COMP_CWORD"])]
    line = environment.get("_TYPER_COMPLETE_ARGS", "")  # zsh, fish
    words = line.split()[1:]
    return words if line.endswith(" ") else words[:-1]


def _hide_types(command: Any) -> None:
    """Show no `<bool>` behind an option that takes no value, and no `<list[str]>` behind a named argument."""
    help_option = command.get_help_option(typer.Context(command))
    for each in filter(None, (*command.params, help_option)):
        if getattr(each, "is_flag", False):
            each.metavar = ""
        elif each.param_type_name == "argument" and each.metavar:
            each.display_type = _show_no_type
    for inner in getattr(command, "commands", {}).values():
        _hide_types(inner)


def _show_no_type(_context: object) -> None:
    """Show no type for an argument: its name is enough."""


def run(
    make: Callable[[], typer.Typer], words: Sequence[str], *, name: str, owns_process: bool = False
) -> NoReturn:
    """Run the program that `make` returns, print each error as one line, and exit."""
    output.write_all_signs()
    try:
        with gc_pause.pause_collection():  # while it imports what it needs: a sixth of its time
            command: Any = typer.main.get_command(make())
            if owns_process:
                # Modules live as long as it: the first collection of all that was imported would take longer
                # than the imports of most commands.
                gc.freeze()
        _hide_types(command)
        status = command(list(words), prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe. Without this, Python reports it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = errors.REFUSED
    except KeyboardInterrupt:
        status = errors.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the entry point: users see no traceback
        status = errors.show(error, as_json="--json" in words)
    sys.exit(status or 0)
