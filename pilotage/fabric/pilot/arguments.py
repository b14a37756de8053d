"""The command line of the pilot: its options by group, and the settings made from them."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from string import Template
from typing import Any, Callable, NamedTuple, NoReturn, TypeVar

from pilotage.fabric.pilot import offer
from pilotage.fabric.pilot.node import db12, facts
from pilotage.fabric.pilot.offer import MOST_POWER
from pilotage.fabric.pilot.payload import isolation
from pilotage.fabric.pilot.payload.isolation import KINDS, NONE, Isolation
from pilotage.fabric.pilot.settings import (
    JobFilters,
    PayloadOptions,
    PilotSettings,
    QueuePlace,
    Slot,
    StopConditions,
)

T = TypeVar("T")

#: Value instead of a number for --cpu-power.
MEASURE = "measure"


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _counting(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return number


def _power(text: str) -> float | str:
    if text == MEASURE:
        return text
    number = float(text)
    if not 0 < number <= MOST_POWER:
        raise argparse.ArgumentTypeError(f"{text} is neither a positive number nor {MEASURE}")
    return number


def _benchmark_time(text: str) -> str:
    if text not in db12.TIMES:
        raise argparse.ArgumentTypeError(f"{text} is none of {', '.join(db12.TIMES)}")
    return text


def _seconds_or_never(text: str) -> float:
    return 0.0 if float(text) == 0 else _seconds(text)


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return number


class _Option(NamedTuple):
    names: str
    metavar: str | None = None
    kind: Callable[[str], object] = str  #: `bool`: a switch without a value; `list`: may be repeated
    field: str | None = None  #: of the settings, if it has another name


_Options = Mapping[_Option, str]

_URL: _Options = {_Option("--url", "URL"): "its address; default PILOTAGE_URL"}
_CREDENTIALS: _Options = {
    _Option("--token-file", "FILE"): "file with the token, - for standard input; default: the variable "
    "PILOTAGE_TOKEN",
    _Option("--secret-file", "FILE"): "file with a one-use secret to exchange for a token, - for standard "
    "input; the file is removed after reading",
}
_CONNECTION: _Options = {
    _Option("--stamp", "ID"): "the pilot that the secret belongs to",
    _Option("--authorities --ca", "PATH", Path): "trusted CA certificates of the service: a file or a "
    "directory; default: the system's",
    _Option("--proxy", "URL"): "HTTP proxy, or none; default: from HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
}
_PLACE: _Options = {
    _Option("--site", "SITE"): "",
    _Option("--ce", "CE"): "",
    _Option("--queue", "QUEUE"): "",
    _Option("--possible-queues", "FILE"): "where a broker picks the queue: JSON object from batch queue to "
    "Site/CE/Queue; the variable PILOTAGE_PLACE, or a file /etc/pilotage/place on the node, may name the "
    "queue as well",
    _Option("--reference", "ID"): "the CE's id of this pilot",
}
_FILTERS: _Options = {
    _Option("--vo", "VO"): "needed if the token does not name one",
    _Option(
        "--pools", "@FILE|ID,…"
    ): "serve these SubmitPools; default: those that the queue is eligible for",
    _Option("--owner-group", "GROUP", list, "owner_groups"): "may be repeated",
    _Option("--job-type", "TYPE", list, "job_types"): "may be repeated",
}
_SLOT: _Options = {
    _Option("--cpu-time", "S", _positive): "seconds of CPU time available to a job",
    _Option("--lifetime", "S", _positive): "seconds from now until the slot ends; default: from the batch "
    "system (Slurm, PBS, OAR)",
    _Option("--max-ram", "MB", _positive): "memory",
    _Option("--processors", "N", _positive): "",
    _Option("--gpus", "N", _counting): "",
    _Option("--platform", "NAME"): "",
    _Option("--tag", "TAG", list, "tags"): "may be repeated",
    _Option("--required-tag", "TAG", list, "required_tags"): "may be repeated",
    _Option("--whole-node", kind=bool): "the slot is a whole node, with all its processors, memory and GPUs; "
    "one job may get all of it",
    _Option("--cpu-power", "X", _power): "normalised seconds per second of one processor, for CPU times, or "
    "measure: run a benchmark of a second; default: CPUNormalizationFactor of the queue, else 1",
    _Option("--db12", "WHEN", _benchmark_time): "run the benchmark DB12 once for this node and user, unless "
    "the site states its power: idle: after an answer without a job; start: before the first request; never "
    "(default idle)",
    _Option("--probes", "DIR", Path): "run each executable of this directory (at most 30 s): it prints facts "
    "about this node as name=value, or single words, tags that the slot offers",
    _Option("--facts", "FILE"): "JSON object with more facts about this node, such as a benchmark; replaces "
    "what the pilot measures; variables such as $SLURMD_NODENAME in the file name are replaced",
}
_ENDS: _Options = {
    _Option("--max-jobs", "N", _positive): "after this number of jobs",
    _Option("--max-empty", "N", _counting): "after N requests in a row without a job; 0: never "
    "(default %(default)s)",
    _Option("--max-idle", "S", _seconds): "after this many seconds without a job",
    _Option("--whole-every", "S", _seconds_or_never): "so that large jobs get a slot: "
    "after this many seconds wait for all running jobs and offer the whole slot; 0: never (default: a day if "
    "the slot has no end, else never, as the next pilot offers it whole)",
    _Option("--drain-file", "FILE", Path): "while this file exists: take no more jobs, and end when the "
    "running ones have finished; like the signal USR1. TERM and USR2 end the pilot at once; its jobs are "
    "handed back",
    _Option(
        "--patience", "S", _seconds
    ): "after this many seconds without a job in which the service is away "
    "or does not accept the token (default %(default)g)",
}
_PAYLOAD: _Options = {
    _Option("--work-dir", "DIR", Path): "each job gets a new directory in it; default: the directory for "
    "temporary files",
    _Option("--least-space", "MB", _counting): "request jobs only while so much is free there, else end "
    "(default %(default)g)",
    _Option("--keep-work", kind=bool): "do not remove the jobs' directories",
    _Option("--pass-env", "NAME", list, "passed_on"): "variable to pass on to jobs",
    _Option("--heartbeat", "S", _seconds): "maximum seconds between two heartbeats (default %(default)g)",
    _Option("--grace", "S", _seconds): "seconds between TERM and KILL (default %(default)g)",
    _Option(
        "--report-patience", "S", _seconds
    ): "seconds to retry a report while the service is away or does "
    "not accept the token (default %(default)g)",
    _Option("--sandbox-limit", "N", _positive): "maximum bytes of an unpacked input sandbox "
    "(default %(default)d)",
    _Option("--output-limit", "N", _positive): "maximum bytes of all output files of a job "
    "(default %(default)d)",
}
_ISOLATION: _Options = {
    _Option("--image", "IMAGE"): "container image",
    _Option(
        "--isolation-command", "WORDS"
    ): "the wrapper; {home}, {scratch} and {area} in it are directories "
    "of the job; for apptainer the command that runs a container (default apptainer exec)",
    _Option("--hide", "PATH", list): "userns: a file or directory to hide from jobs, besides the work "
    "directory, HOME and the directories for temporary files; may be repeated",
}


class _RaisingParser(argparse.ArgumentParser):
    """Raises ValueError where its parent ends the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        del status
        raise ValueError(message or "only shows help")


def check_words(words: Sequence[str]) -> None:
    """Check the options of a pilot that will run elsewhere; raises ValueError."""
    parser(_RaisingParser).parse_args(words)


def find_isolation(words: Sequence[str]) -> str:
    """The kind of isolation in the options of a pilot that will run elsewhere; raises ValueError."""
    return str(parser(_RaisingParser).parse_args(words).isolation)


def parser(kind: type[argparse.ArgumentParser] = argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Make the pilot's argument parser."""
    made = kind(
        prog="pilotage pilot",
        allow_abbrev=False,
        description="Runs jobs that fit this batch queue, as many at a time as its slot has room for.",
        epilog="Exit status: 0 normal end, 1 refused by the service, 2 wrong usage, "
        "3 the service was unreachable, 4 trouble with this host, 5 another process has used the secret: it "
        "is the pilot, and this one has changed nothing.",
    )
    service = made.add_argument_group("the service")
    _add(service, _URL)
    _add(service.add_mutually_exclusive_group(), _CREDENTIALS)
    _add(service, _CONNECTION)
    _add(made.add_argument_group("the batch queue that the pilot runs in"), _PLACE)
    _add(made.add_argument_group("filters for jobs"), _FILTERS)
    _add(made.add_argument_group("resources of the slot; default: the parameters of the queue"), _SLOT)
    _add(made.add_argument_group("when the pilot ends by itself"), _ENDS)
    _add(made.add_argument_group("execution of jobs"), _PAYLOAD)
    isolating = made.add_argument_group("isolation of jobs")
    isolating.add_argument(
        "--isolation",
        choices=KINDS,
        default=NONE,
        help="none: jobs have all rights of this user; userns: run them in user, mount and process "
        "namespaces of their own; strongest: userns where this host allows it, else none; apptainer: in a "
        "container; command: with a wrapper command (default %(default)s; of a director's pilots strongest)",
    )
    _add(isolating, _ISOLATION)
    made.add_argument("--json", action="store_true", help="print a summary as JSON at the end")
    made.add_argument("--verbose", action="store_true", help="log more")
    return made


#: Of options that fill a field of the settings.
_DEFAULTS: Mapping[str, object] = {
    field.name: field.default
    for kind in (StopConditions, PayloadOptions)
    for field in fields(kind)
    if field.default is not MISSING
}


def _add(group: argparse._ArgumentGroup, options: _Options) -> None:
    for (names, metavar, kind, field), text in options.items():
        shown: dict[str, Any] = {"help": text or None}
        if kind is bool:
            group.add_argument(names, action="store_true", **shown)
            continue
        shown["metavar"] = metavar
        if kind is list:
            group.add_argument(names, action="append", default=[], dest=field, **shown)
        else:
            default = _DEFAULTS.get(names[2:].replace("-", "_"))
            group.add_argument(*names.split(), type=kind, default=default, **shown)


def read_settings(options: argparse.Namespace, environment: Mapping[str, str]) -> PilotSettings:
    """Make the settings from the parsed command line.

    Raises:
        ValueError: Options contradict each other or are incomplete.
    """
    url = options.url or environment.get("PILOTAGE_URL")
    if not url:
        raise ValueError("no address of a service: give --url or set PILOTAGE_URL")
    if (options.secret_file is None) != (options.stamp is None):
        raise ValueError("--secret-file and --stamp need each other")
    authorities = environment.get("PILOTAGE_AUTHORITIES")
    # Nodes that share a directory have one file each.
    facts_file = Template(options.facts or "").safe_substitute(environment)
    return PilotSettings(
        url=url,
        authorities=options.authorities or (Path(authorities) if authorities else None),
        proxy=options.proxy,
        place=_place(options, environment),
        job_filters=_fill(JobFilters, options, pools=_pools(options.pools)),
        slot=_fill(
            Slot,
            options,
            facts=facts.read_facts(Path(facts_file)) if options.facts else {},
            cpu_power=None if options.cpu_power == MEASURE else options.cpu_power,
            measures_cpu=options.cpu_power == MEASURE,
            db12=options.db12 or db12.IDLE,
        ),
        stop_conditions=_fill(StopConditions, options),
        payload_options=_fill(
            PayloadOptions,
            options,
            work_dir=(options.work_dir or Path(tempfile.gettempdir())).absolute(),
            isolation=_isolation(options, environment),
        ),
    )


def _fill(kind: type[T], options: argparse.Namespace, **others: object) -> T:
    """Make a group of settings, each field from the option with its name unless it is among `others`."""
    named = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(options).items()
        if name in kind.__annotations__
    }
    return kind(**{**named, **others})


def _isolation(options: argparse.Namespace, environment: Mapping[str, str]) -> Isolation:
    token = None if options.token_file in (None, "-") else Path(options.token_file)
    hidden = isolation.private_paths(environment, options.work_dir, token, *map(Path, options.hide))
    return isolation.choose_isolation(
        options.isolation,
        command=options.isolation_command,
        image=options.image,
        hidden=hidden,
        own=environment,
    )


def _place(options: argparse.Namespace, environment: Mapping[str, str]) -> QueuePlace:
    """The queue on the command line, else found out from the environment."""
    stated = (options.site, options.ce, options.queue)
    if all(stated):
        return QueuePlace(*stated)
    if any(stated):
        raise ValueError("--site, --ce and --queue need each other")
    return offer.find_place(
        {} if options.possible_queues is None else offer.read_possible_queues(options.possible_queues),
        environment,
    )


def _pools(stated: str | None) -> tuple[str, ...]:
    """Pool ids separated by commas, white space or lines, given directly or in a file."""
    if stated is None:
        return ()
    try:
        text = Path(stated[1:]).read_text(encoding="ascii") if stated.startswith("@") else stated
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--pools: {error}") from None
    pools = text.replace(",", " ").split()
    if not pools:
        raise ValueError("--pools: names no pool")
    return tuple(pools)
