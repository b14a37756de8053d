"""The command line of the pilot: its options by group, and the settings made from them."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import NoReturn

from pilotage.fabric.pilot import offer
from pilotage.fabric.pilot.node import facts
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

_ENDS = StopConditions()
#: Value instead of a number for --cpu-power.
MEASURE = "measure"


def add_connection(group: argparse._ArgumentGroup) -> None:
    """Options for the service's address and the pilot's credentials."""
    group.add_argument("--url", metavar="URL", help="its address; default PILOTAGE_URL")
    shown = group.add_mutually_exclusive_group()
    shown.add_argument(
        "--token-file",
        metavar="FILE",
        help="file with the token, - for standard input; default: the variable PILOTAGE_TOKEN",
    )
    shown.add_argument(
        "--secret-file",
        metavar="FILE",
        help="file with a one-use secret to exchange for a token, - for standard input; "
        "the file is removed after reading",
    )
    group.add_argument("--stamp", metavar="ID", help="the pilot that the secret belongs to")
    group.add_argument(
        "--authorities",
        "--ca",
        type=Path,
        metavar="PATH",
        help="trusted CA certificates of the service: a file or a directory; default: the system's",
    )
    group.add_argument(
        "--proxy",
        metavar="URL",
        help="HTTP proxy, or none; default: from HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
    )


def add_place(group: argparse._ArgumentGroup) -> None:
    """Options for the queue that the pilot runs in."""
    for name in ("site", "ce", "queue"):
        group.add_argument(f"--{name}", metavar=name.upper())
    group.add_argument(
        "--landings",
        metavar="FILE",
        help="where a broker picks the queue: JSON object from batch queue to Site/CE/Queue; the variable "
        "PILOTAGE_PLACE, or a file /etc/pilotage/place on the node, may name the queue as well",
    )
    group.add_argument("--reference", metavar="ID", help="the CE's id of this pilot")


def add_filters(group: argparse._ArgumentGroup) -> None:
    """Options that restrict the jobs."""
    group.add_argument("--vo", metavar="VO", help="needed if the token does not name one")
    group.add_argument(
        "--pools",
        metavar="@FILE|ID,…",
        help="serve these SubmitPools; default: those that the queue is eligible for",
    )
    group.add_argument("--owner-group", action="append", default=[], metavar="GROUP", help="may be repeated")
    group.add_argument("--job-type", action="append", default=[], metavar="TYPE", help="may be repeated")


def add_slot(group: argparse._ArgumentGroup) -> None:
    """Options for the resources of the slot."""
    group.add_argument(
        "--cpu-time", type=_positive, metavar="S", help="seconds of CPU time available to a job"
    )
    group.add_argument(
        "--lifetime",
        type=_positive,
        metavar="S",
        help="seconds from now until the slot ends; default: from the batch system (Slurm, PBS, OAR)",
    )
    group.add_argument("--max-ram", type=_positive, metavar="MB", help="memory")
    group.add_argument("--processors", type=_positive, metavar="N")
    group.add_argument("--gpus", type=_positive, metavar="N")
    group.add_argument("--platform", metavar="NAME")
    group.add_argument("--tag", action="append", default=[], metavar="TAG", help="may be repeated")
    group.add_argument("--required-tag", action="append", default=[], metavar="TAG", help="may be repeated")
    _add_node(group)


def _add_node(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--whole-node",
        action="store_true",
        help="the slot is a whole node, with all its processors, memory and GPUs; one job may get all of it",
    )
    group.add_argument(
        "--cpu-power",
        type=_power,
        metavar="X",
        help="normalised seconds per second of one processor, for CPU times, or measure: run a benchmark "
        "of a second; default: CPUNormalizationFactor of the queue, else 1",
    )
    group.add_argument(
        "--probes",
        type=Path,
        metavar="DIR",
        help="run each executable of this directory (at most 30 s): it prints facts about this node as "
        "name=value, or single words, tags that the slot offers",
    )
    group.add_argument(
        "--facts",
        metavar="FILE",
        help="JSON object with more facts about this node, such as a benchmark; replaces what the pilot "
        "measures; variables such as $SLURMD_NODENAME in the file name are replaced",
    )


def add_ends(group: argparse._ArgumentGroup) -> None:
    """Options for the conditions under which the pilot ends."""
    group.add_argument("--max-jobs", type=_positive, metavar="N", help="after this number of jobs")
    group.add_argument(
        "--max-empty",
        type=_counting,
        default=_ENDS.max_empty,
        metavar="N",
        help="after N requests in a row without a job; 0: never (default %(default)s)",
    )
    group.add_argument("--max-idle", type=_seconds, metavar="S", help="after this many seconds without a job")
    group.add_argument(
        "--whole-every",
        type=_seconds_or_never,
        metavar="S",
        help="small jobs that follow each other keep large ones out: after this many seconds wait for all "
        "running jobs and offer the whole slot; 0: never (default: a day if the slot has no end, "
        "else never, as the next pilot offers it whole)",
    )
    group.add_argument(
        "--drain-file",
        type=Path,
        metavar="FILE",
        help="while this file exists: take no more jobs, and end when the running ones have finished; like "
        "the signal USR1. TERM and USR2 end the pilot at once; its jobs are handed back",
    )
    group.add_argument(
        "--patience",
        type=_seconds,
        default=_ENDS.patience,
        metavar="S",
        help="after this many seconds without a job in which the service is away or does not accept the "
        "token (default %(default)g)",
    )


def add_payload_options(group: argparse._ArgumentGroup) -> None:
    """Options for the execution of jobs."""
    care = PayloadOptions(work_dir=Path())
    group.add_argument(
        "--work-dir",
        type=Path,
        metavar="DIR",
        help="each job gets a new directory in it; default: the directory for temporary files",
    )
    group.add_argument("--keep-work", action="store_true", help="do not remove the jobs' directories")
    group.add_argument(
        "--pass-env", action="append", default=[], metavar="NAME", help="variable to pass on to jobs"
    )
    seconds = (
        ("--heartbeat", care.heartbeat, "maximum seconds between two heartbeats"),
        ("--grace", care.grace, "seconds between TERM and KILL"),
        (
            "--report-patience",
            care.report_patience,
            "seconds to retry a report while the service is away or does not accept the token",
        ),
    )
    for flag, default, text in seconds:
        group.add_argument(
            flag, type=_seconds, default=default, metavar="S", help=f"{text} (default %(default)g)"
        )
    sizes = (
        ("--sandbox-limit", care.sandbox_limit, "maximum bytes of an unpacked input sandbox"),
        ("--output-limit", care.output_limit, "maximum bytes of all output files of a job"),
    )
    for flag, size, text in sizes:
        group.add_argument(
            flag, type=_positive, default=size, metavar="N", help=f"{text} (default %(default)d)"
        )


def add_isolation(group: argparse._ArgumentGroup) -> None:
    """Options for the isolation of jobs."""
    group.add_argument(
        "--isolation",
        choices=KINDS,
        default=NONE,
        help="none: jobs have all rights of this user; userns: run them in user, mount and process "
        "namespaces of their own; apptainer: in a container; command: with a wrapper command "
        "(default %(default)s)",
    )
    group.add_argument("--image", metavar="IMAGE", help="container image")
    group.add_argument(
        "--isolation-command",
        metavar="WORDS",
        help="the wrapper; {home}, {scratch} and {area} in it are directories of the job; for apptainer the "
        "command that runs a container (default apptainer exec)",
    )
    group.add_argument(
        "--hide",
        action="append",
        type=Path,
        default=[],
        metavar="PATH",
        help="userns: a file or directory to hide from jobs, besides the work directory, HOME and the "
        "directories for temporary files; may be repeated",
    )


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


def _seconds_or_never(text: str) -> float:
    return 0.0 if float(text) == 0 else _seconds(text)


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return number


class _RaisingParser(argparse.ArgumentParser):
    """Raises ValueError where its parent ends the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        del status
        raise ValueError(message or "only shows help")


def check_words(words: Sequence[str]) -> None:
    """Check the options of a pilot that will run elsewhere.

    Raises:
        ValueError: An option is unknown or invalid.
    """
    parser(_RaisingParser).parse_args(words)


def parser(kind: type[argparse.ArgumentParser] = argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Make the pilot's argument parser."""
    made = kind(
        prog="pilotage pilot",
        allow_abbrev=False,
        description="Runs jobs that fit this batch queue, as many at a time as its slot has room for.",
        epilog="Exit status: 0 normal end, 1 refused by the service, 2 wrong usage, "
        "3 the service stayed away, 4 trouble with this host, 5 another process has used the secret: it "
        "is the pilot, and this one has changed nothing.",
    )
    add_connection(made.add_argument_group("the service"))
    add_place(made.add_argument_group("the batch queue that the pilot runs in"))
    add_filters(made.add_argument_group("filters for jobs"))
    add_slot(made.add_argument_group("resources of the slot; default: the parameters of the queue"))
    add_ends(made.add_argument_group("when the pilot ends by itself"))
    add_payload_options(made.add_argument_group("execution of jobs"))
    add_isolation(made.add_argument_group("isolation of jobs"))
    made.add_argument("--json", action="store_true", help="print a summary as JSON at the end")
    made.add_argument("--verbose", action="store_true", help="log more")
    return made


def read_settings(options: argparse.Namespace, environment: Mapping[str, str]) -> PilotSettings:
    """Make the settings from the parsed command line.

    Raises:
        ValueError: Options contradict each other or are incomplete.
    """
    url = options.url or environment.get("PILOTAGE_URL")
    if not url:
        raise ValueError("no service known: give --url or set PILOTAGE_URL")
    if (options.secret_file is None) != (options.stamp is None):
        raise ValueError("--secret-file and --stamp need each other")
    return PilotSettings(
        url=url,
        authorities=options.authorities or _path(environment.get("PILOTAGE_AUTHORITIES")),
        proxy=options.proxy,
        place=_place(options, environment),
        wishes=JobFilters(
            vo=options.vo,
            pools=_pools(options.pools),
            owner_groups=tuple(options.owner_group),
            job_types=tuple(options.job_type),
            reference=options.reference,
        ),
        slot=Slot(
            cpu_time=options.cpu_time,
            lifetime=options.lifetime,
            max_ram=options.max_ram,
            processors=options.processors,
            gpus=options.gpus,
            platform=options.platform,
            tags=tuple(options.tag),
            required_tags=tuple(options.required_tag),
            facts=facts.read_facts(_expand_file(options.facts, environment)) if options.facts else {},
            probes=options.probes,
            cpu_power=None if options.cpu_power == MEASURE else options.cpu_power,
            measures_cpu=options.cpu_power == MEASURE,
            whole_node=options.whole_node,
        ),
        ends=StopConditions(
            max_jobs=options.max_jobs,
            max_empty=options.max_empty,
            max_idle=options.max_idle,
            whole_every=options.whole_every,
            drain_file=options.drain_file,
            patience=options.patience,
        ),
        care=PayloadOptions(
            work_dir=(options.work_dir or Path(tempfile.gettempdir())).absolute(),
            keep_work=options.keep_work,
            heartbeat=options.heartbeat,
            grace=options.grace,
            report_patience=options.report_patience,
            sandbox_limit=options.sandbox_limit,
            output_limit=options.output_limit,
            passed_on=tuple(options.pass_env),
            isolation=_isolation(options, environment),
        ),
    )


def _isolation(options: argparse.Namespace, environment: Mapping[str, str]) -> Isolation:
    token = None if options.token_file in (None, "-") else Path(options.token_file)
    hidden = isolation.private_paths(environment, options.work_dir, token, *options.hide)
    return isolation.choose_isolation(
        options.isolation,
        command=options.isolation_command,
        image=options.image,
        hidden=hidden,
        own=environment,
    )


def _expand_file(file: str, environment: Mapping[str, str]) -> Path:
    """A file name with variables: nodes that share a directory have one file each."""
    return Path(Template(file).safe_substitute(environment))


def _place(options: argparse.Namespace, environment: Mapping[str, str]) -> QueuePlace:
    """The queue on the command line, else found out from the environment."""
    stated = (options.site, options.ce, options.queue)
    if all(stated):
        return QueuePlace(*stated)
    if any(stated):
        raise ValueError("--site, --ce and --queue need each other")
    return offer.find_place(
        {} if options.landings is None else offer.read_landings(options.landings), environment
    )


def _path(stated: str | None) -> Path | None:
    return Path(stated) if stated else None


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
