"""What plug-ins add to the program: commands, settings, agents, routes and pages.

An entry point of the group `pilotage.plugins` names a `Plugin`. Its parts are named as `module:name` below
its package and imported where they are used, so that no command waits for plug-ins that it does not need.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from importlib import import_module, resources
from pathlib import Path
from typing import Any, cast

from pilotage import entry_points
from pilotage.entry_points import BrokenPlugin

GROUP = "pilotage.plugins"


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the program, imported only when it is run or completed."""

    function: str  #: in the package, as `module:name`
    help: str  #: line in `pilotage --help`; the first paragraph of the help of the command itself
    reads_own_options: bool = False  #: gets all arguments that are not its options, `--help` too
    package: str = "pilotage.cli"


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """A command with subcommands."""

    help: str
    commands: Mapping[str, "str | CommandGroup"]  #: a function in the package, as `module:name`, or a group
    #: Group of entry points whose names are commands too, and the function in the package that makes them.
    installed: tuple[str, str] | None = None
    package: str = "pilotage.cli.commands"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginAgent:
    """A background agent of a plug-in."""

    every: float  #: seconds between two cycles
    #: Function of an `AgentContext` and the `Settings`: a context manager of the function that runs a cycle.
    open: str
    is_optional: bool = False  #: runs only where it is configured, and is never overdue


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """What a plug-in adds; modules are named below its package, as `module:name`."""

    package: str
    commands: Mapping[str, Command | CommandGroup] = field(default_factory=dict)
    #: Groups in one of the program's, by the words that call them, such as `config import`.
    subgroups: Mapping[str, CommandGroup] = field(default_factory=dict)
    #: Model with a default for each setting, in a module of its own: processes read it before all else.
    settings: str | None = None
    agents: Mapping[str, PluginAgent] = field(default_factory=dict)
    #: Readers of the job log by name, each a function that reads it further, `(engine, *, now, holder)`: what
    #: one of them has not read is not deleted.
    log_readers: Mapping[str, str] = field(default_factory=dict)
    routers: tuple[str, ...] = ()  #: of `/api/v1`
    #: For the description of the interface: a sentence on each new tag of the routes, and the code of the
    #: error 404 by the parameter of their paths that is not found.
    tags: Mapping[str, str] = field(default_factory=dict)
    not_found: Mapping[str, str] = field(default_factory=dict)
    pages: tuple[str, ...] = ()  #: routers of web pages, whose templates are in the folder `templates`

    def find(self, place: str) -> Any:
        """The object at a place of the plug-in."""
        return find(place, self.package)


def find(place: str, package: str) -> Any:
    """The object at `module:name` in a package."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"{package}.{module}"), name)


@cache
def list_plugins() -> Mapping[str, Plugin]:
    """The installed plug-ins by name; `BrokenPlugin` if one cannot be loaded."""
    present = entry_points.list_present(GROUP)
    return {name: entry_points.load(point, Plugin) for name, point in present.items()}


def hint_at_absent() -> str:
    """What to add where a name is unknown: the plug-ins that are left out may have it."""
    absent = [point.name for point in entry_points.list_all(GROUP) if entry_points.is_absent(point)]
    names = ", ".join(absent)
    return f"; plug-ins that are left out of this installation may have it: {names}" if names else ""


def list_agents() -> Mapping[str, PluginAgent]:
    """The agents of plug-ins by name."""
    return {name: agent for plugin in list_plugins().values() for name, agent in plugin.agents.items()}


def open_agent(
    name: str, context: object, settings: object
) -> AbstractContextManager[Callable[[datetime], object]]:
    """The function that runs a cycle of a plug-in's agent, until the end of the block."""
    [opened] = [
        plugin.find(plugin.agents[name].open)(context, settings)
        for plugin in list_plugins().values()
        if name in plugin.agents
    ]
    return cast("AbstractContextManager[Callable[[datetime], object]]", opened)


def list_intervals(own: Mapping[str, float], *, with_optional: bool) -> Mapping[str, float]:
    """Seconds between two cycles of each agent, those of plug-ins behind the program's own."""
    found = {name: agent for name, agent in list_agents().items() if with_optional or not agent.is_optional}
    return {**own, **{name: agent.every for name, agent in found.items()}}


def find_log_readers() -> Mapping[str, Callable[..., object]]:
    """The functions that read the job log further for plug-ins, by the name of the reader."""
    return {
        name: plugin.find(place)
        for plugin in list_plugins().values()
        for name, place in plugin.log_readers.items()
    }


def list_routers() -> list[Any]:
    """The routers of `/api/v1` of plug-ins."""
    return [plugin.find(place) for plugin in list_plugins().values() for place in plugin.routers]


def list_pages() -> list[Any]:
    """The routers of web pages of plug-ins."""
    return [plugin.find(place) for plugin in list_plugins().values() for place in plugin.pages]


def list_tags() -> Mapping[str, str]:
    """The tags of the routes of plug-ins, with a sentence on each."""
    return {tag: text for plugin in list_plugins().values() for tag, text in plugin.tags.items()}


def list_not_found() -> Mapping[str, str]:
    """The codes of the error 404 in the routes of plug-ins, by the parameter of the path."""
    return {name: code for plugin in list_plugins().values() for name, code in plugin.not_found.items()}


def list_templates() -> list[Path]:
    """The folders of the templates of the pages of plug-ins."""
    return [
        Path(str(resources.files(plugin.package))) / "templates"
        for plugin in list_plugins().values()
        if plugin.pages
    ]


def list_settings() -> Iterator[Any]:
    """The models of the settings of plug-ins."""
    for plugin in list_plugins().values():
        if plugin.settings is not None:
            yield plugin.find(plugin.settings)


def add_commands(
    commands: Mapping[str, Command | CommandGroup],
) -> Mapping[str, Command | CommandGroup]:
    """The commands of the program, and those of plug-ins."""
    found = dict(commands)
    for name, plugin in list_plugins().items():
        found |= plugin.commands
        for words, group in plugin.subgroups.items():
            first, _, second = words.partition(" ")
            above = found.get(first)
            if not isinstance(above, CommandGroup):
                raise BrokenPlugin(f"{GROUP}: {name}: there is no group of commands {first} for {words}")
            found[first] = replace(above, commands={**above.commands, second: group})
    return found
