"""Options that many commands share; groups of options; job ids and their ranges."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields, is_dataclass, make_dataclass
from datetime import UTC, date, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.models import ArgumentInfo, OptionInfo

from pilotage.cli.errors import WrongUsage
from requirements.errors import PilotageError
from requirements.job_fields import FILTERED, FILTERS, JOB_ID, TIMES

#: A function that Typer can call as a command.
CommandFunction = Callable[..., None]


def option(
    metavar: str, text: str, *names: str, convert: Callable[[str | None], str | None] | None = None
) -> OptionInfo:
    """An option with a value, which may be converted; without names, that of its parameter."""
    made: OptionInfo = typer.Option(*names, metavar=metavar, help=text, callback=convert)
    return made


def argument(metavar: str, text: str, *, check: Callable[[str], str] | None = None) -> ArgumentInfo:
    """An argument, which may be checked."""
    made: ArgumentInfo = typer.Argument(metavar=metavar, help=text, callback=check)
    return made


def _check_site(word: str) -> str:
    """Refuse a CE or queue: in an address of the service it would be another resource, which is not found."""
    site, below, _ = word.partition("/")
    if below:
        raise WrongUsage(f"{word!r} is below a site; allowed is the site alone, {site}")
    return word


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Home = Annotated[
    Path | None,
    option("DIR", "Home directory of the installation (default: PILOTAGE_HOME or $XDG_DATA_HOME/pilotage)."),
]
Url = Annotated[
    str | None,
    option(
        "URL",
        "The service (default: PILOTAGE_URL or client.env in the home directory). "
        "The token comes from PILOTAGE_TOKEN or client.env.",
    ),
]
JobIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Job ids or ranges such as 12-40.", show_default=False),
]
JobId = Annotated[int, argument("ID", "Job id.")]
Site = Annotated[str, argument("SITE", "Site, such as LCG.CERN.ch.", check=_check_site)]
Queue = Annotated[str, argument("Site/CE/Queue", "Batch queue, such as LCG.CERN.ch/ce01.cern.ch/long.")]
#: Of commands that only read a configuration.
ConfigFile = Annotated[
    Path | None, option("FILE", "Read this file instead of the configuration in force.", "--file")
]


def expand_groups(function: CommandFunction) -> CommandFunction:
    """`function` for Typer: in place of a parameter whose type is a dataclass, an option for each field.

    Its errors name the options in place of the fields of the HTTP interface.
    """
    signature = inspect.signature(function)
    groups: dict[str, Any] = {
        each.name: each.annotation for each in signature.parameters.values() if is_dataclass(each.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for each in signature.parameters.values():
        parameters += _options_of(each.annotation) if each.name in groups else [each]

    @wraps(function)
    def command(**given: object) -> None:
        values = {
            name: group(**{each.name: given.pop(each.name) for each in fields(group)})
            for name, group in groups.items()
        }
        try:
            function(**given, **values)
        except PilotageError as error:
            error.args = (_replace_fields(str(error), _list_options(parameters)),)
            raise

    return with_signature(command, parameters)


def with_signature(function: CommandFunction, parameters: Iterable[inspect.Parameter]) -> CommandFunction:
    """`function` with the parameters that Typer is to see; all of them are given by name."""
    named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    function.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    return function


def parameter(name: str, annotation: object, *, default: object = None) -> inspect.Parameter:
    """A parameter of a command."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _options_of(group: Any) -> list[inspect.Parameter]:
    return [parameter(each.name, each.type, default=each.default) for each in fields(group)]


def _list_options(parameters: Iterable[inspect.Parameter]) -> Mapping[str, str]:
    """The options with a value, by the names that fields of the HTTP interface may have for them."""
    found: dict[str, str] = {}
    for each in parameters:
        for info in getattr(each.annotation, "__metadata__", ()):
            if isinstance(info, OptionInfo):
                name = info.default if isinstance(info.default, str) else f"--{each.name.replace('_', '-')}"
                found |= dict.fromkeys((each.name, name.strip("-").replace("-", "_")), name)
    return found


#: A field, or one of several values in it, at the start of the line about its problem.
_FIELD = re.compile(r"^([a-z_]+)(?:/[0-9]+)?(?=: )", re.MULTILINE)


def _replace_fields(message: str, names: Mapping[str, str]) -> str:
    """A message of the service with the option that was typed in place of a field."""
    return _FIELD.sub(lambda found: names.get(found[1], found[0]), message)


_SECONDS: Mapping[str, int] = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_duration(word: str) -> float:
    """Seconds of a duration such as `90s`, `30m`, `6h` or `2d`."""
    number, unit = word[:-1], word[-1:]
    if not number.isdecimal() or not int(number) or unit not in _SECONDS:
        raise WrongUsage(f"{word!r:.60} is not a duration; allowed are 90s, 30m, 6h, 2d and the like")
    return int(number) * _SECONDS[unit]


def convert_moment(word: str | None) -> str | None:
    """Convert what a service of 1.0 refuses (ages), or takes for seconds since 1970 (`20260328`).

    All else is sent as it was typed.
    """
    with suppress(ValueError, OverflowError, WrongUsage):
        if word and word[-1] in _SECONDS:
            return (datetime.now(UTC) - timedelta(seconds=parse_duration(word))).isoformat()
        if word and len(word) == len("20260328"):
            return date.fromisoformat(word).isoformat()
    return word


def duration_option(text: str, *names: str) -> OptionInfo:
    """An option for a duration, for `parse_duration`."""
    return option("TIME", text, *names, convert=_check_duration)


def _check_duration(word: str | None) -> str | None:
    try:
        return None if word is None else f"{parse_duration(word):.0f}s"
    except WrongUsage as error:
        raise typer.BadParameter(str(error)) from None


def filter_option(name: str) -> OptionInfo:
    """The option of a filter of jobs."""
    each = FILTERS[name]
    convert = convert_moment if name in TIMES else None
    return option(each.metavar, each.help, f"--{each.option}", convert=convert)


VoFilter = Annotated[str | None, filter_option("vo")]
OwnerFilter = Annotated[str | None, filter_option("owner")]
SiteFilter = Annotated[str | None, filter_option("site")]


def _with_filters(group: type) -> type:
    """The group with an option for each filter of jobs but their ids, which are arguments."""
    made = [
        (name, Annotated[str | None, filter_option(name)], field(default=None))
        for name in FILTERS
        if FILTERED[name] is not JOB_ID
    ]
    return make_dataclass(group.__name__, made, bases=(group,), frozen=True, slots=True, kw_only=True)


@_with_filters
class JobFilters:
    """Filters of jobs, by their names in the HTTP interface."""


def given_options(group: Any) -> dict[str, Any]:
    """The options of a group that were given, by name."""
    values = {each.name: getattr(group, each.name) for each in fields(group)}
    return {name: value for name, value in values.items() if value is not None}


#: Maximum number of ids; more are probably a typing error.
_MOST = 100_000


def parse_ids(words: Sequence[str] | None) -> list[int]:
    """Distinct ids from words such as `12`, `12-40` or `12,13`, in order."""
    found: dict[int, None] = {}
    for word in words or ():
        for part in word.split(","):
            found.update(dict.fromkeys(_range(part)))
            if len(found) > _MOST:
                raise WrongUsage(f"more than {_MOST} job ids; use filters such as --status")
    return list(found)


def _range(part: str) -> range:
    first, dash, last = part.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise WrongUsage(f"{part!r} is not a job id; allowed are numbers and ranges such as 12-40")
    start, end = int(first), int(last or first)
    if end < start or end - start >= _MOST:
        raise WrongUsage(f"{part!r} is no range of job ids")
    return range(start, end + 1)
