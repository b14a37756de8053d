"""The flags of the pilot, group by group, and the numbers in them.

The command line of the pilot.
"""

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
#: Said instead of a power.
MEASURE = "measure"


def add_connection(group: argparse._ArgumentGroup) -> None:
    """How the service is reached, and by whom."""
    group.add_argument("--url", metavar="URL", help="where it is; else PILOTAGE_URL")
    shown = group.add_mutually_exclusive_group()
    shown.add_argument(
        "--token-file",
        metavar="FILE",
        help="file that holds the token, - for standard input; else the variable PILOTAGE_TOKEN",
    )
    shown.add_argument(
        "--secret-file",
        metavar="FILE",
        help="file that holds a one-use secret to exchange for a token, - for standard input; "
        "it is removed once it was read",
    )
    group.add_argument("--stamp", metavar="ID", help="the pilot that the secret was made for")
    group.add_argument(
        "--authorities",
        "--ca",
        type=Path,
        metavar="PATH",
        help="CA certificates that the service is believed by: a file or a directory; else the system's",
    )
    group.add_argument(
        "--proxy",
        metavar="URL",
        help="HTTP proxy on the way there, or none; else HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
    )


def add_place(group: argparse._ArgumentGroup) -> None:
    """Where the pilot is."""
    for name in ("site", "ce", "queue"):
        group.add_argument(f"--{name}", metavar=name.upper())
    group.add_argument(
        "--landings",
        metavar="FILE",
        help="where a broker picked the queue: JSON object with Site/CE/Queue by batch queue; "
        "PILOTAGE_PLACE, or a file /etc/pilotage/place on the node, may say it as well",
    )
    group.add_argument("--reference", metavar="ID", help="the CE's id of this pilot")


def add_filters(group: argparse._ArgumentGroup) -> None:
    """Which jobs it asks for."""
    group.add_argument("--vo", metavar="VO", help="needed where the token does not say")
    group.add_argument(
        "--pools",
        metavar="@FILE|ID,…",
        help="serve these SubmitPools; else ask which the queue is eligible for",
    )
    group.add_argument("--owner-group", action="append", default=[], metavar="GROUP", help="may be repeated")
    group.add_argument("--job-type", action="append", default=[], metavar="TYPE", help="may be repeated")


def add_slot(group: argparse._ArgumentGroup) -> None:
    """What its slot offers."""
    group.add_argument(
        "--cpu-time", type=_positive, metavar="S", help="seconds of CPU time that a job may use"
    )
    group.add_argument(
        "--lifetime",
        type=_positive,
        metavar="S",
        help="seconds that the slot lasts from now on; else as the batch system says (Slurm, PBS, OAR)",
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
        help="the slot has all processors, memory and GPUs of its node, and may be given to one job whole",
    )
    group.add_argument(
        "--cpu-power",
        type=_power,
        metavar="X",
        help="normalised seconds in a second of one processor, by which CPU time is offered, or measure: "
        "a benchmark of a second; else CPUNormalizationFactor of the queue, else 1",
    )
    group.add_argument(
        "--probes",
        type=Path,
        metavar="DIR",
        help="run each executable of this directory (30 s at most): it prints name=value, a fact about this "
        "node, or a word, a tag that the slot offers",
    )
    group.add_argument(
        "--facts",
        metavar="FILE",
        help="JSON object with more facts about this node, such as a benchmark; over what the pilot "
        "measures; variables such as $SLURMD_NODENAME in its name are replaced",
    )


def add_ends(group: argparse._ArgumentGroup) -> None:
    """When it ends."""
    group.add_argument("--max-jobs", type=_positive, metavar="N", help="after so many jobs")
    group.add_argument(
        "--max-empty",
        type=_counting,
        default=_ENDS.max_empty,
        metavar="N",
        help="after so many answers in a row without a job; 0: never (default %(default)s)",
    )
    group.add_argument("--max-idle", type=_seconds, metavar="S", help="after so many seconds without a job")
    group.add_argument(
        "--whole-every",
        type=_seconds_or_never,
        metavar="S",
        help="small jobs that follow each other keep large ones out: after so many seconds all that run are "
        "waited for, and the slot is offered whole; 0: never (default: a day where the slot has no end, "
        "else never, as the next pilot offers it whole)",
    )
    group.add_argument(
        "--drain-file",
        type=Path,
        metavar="FILE",
        help="while this file is there: take no more work, end when what runs has finished; as with the "
        "signal USR1. TERM and USR2 end it at once, its jobs are handed back",
    )
    group.add_argument(
        "--patience",
        type=_seconds,
        default=_ENDS.patience,
        metavar="S",
        help="when the service is away, or does not accept the token, for so long and there is no job "
        "(default %(default)g)",
    )


def add_payload_options(group: argparse._ArgumentGroup) -> None:
    """How it looks after payloads."""
    care = PayloadOptions(work_dir=Path())
    group.add_argument(
        "--work-dir",
        type=Path,
        metavar="DIR",
        help="each job gets a fresh directory below; else the one for temporary files",
    )
    group.add_argument("--keep-work", action="store_true", help="do not remove the jobs' directories")
    group.add_argument(
        "--pass-env", action="append", default=[], metavar="NAME", help="variable that jobs see too"
    )
    seconds = (
        ("--heartbeat", care.heartbeat, "seconds between two heartbeats at most"),
        ("--grace", care.grace, "seconds between TERM and KILL"),
        (
            "--report-patience",
            care.report_patience,
            "seconds that a result is kept while the service is away or does not accept the token",
        ),
    )
    for flag, default, text in seconds:
        group.add_argument(
            flag, type=_seconds, default=default, metavar="S", help=f"{text} (default %(default)g)"
        )
    sizes = (
        ("--sandbox-limit", care.sandbox_limit, "bytes of an input sandbox, unpacked"),
        ("--output-limit", care.output_limit, "bytes of all output files of a job"),
    )
    for flag, size, text in sizes:
        group.add_argument(
            flag, type=_positive, default=size, metavar="N", help=f"{text} (default %(default)d)"
        )


def add_isolation(group: argparse._ArgumentGroup) -> None:
    """What it keeps payloads from."""
    group.add_argument(
        "--isolation",
        choices=KINDS,
        default=NONE,
        help="none: they run as this user and may do what it may; userns: in user, mount and process "
        "namespaces of their own; apptainer: in a container; command: behind a command of yours "
        "(default %(default)s)",
    )
    group.add_argument("--image", metavar="IMAGE", help="of the container")
    group.add_argument(
        "--isolation-command",
        metavar="WORDS",
        help="the command, {home}, {scratch} and {area} in it are directories of the job; for apptainer what "
        "runs a container (default apptainer exec)",
    )
    group.add_argument(
        "--hide",
        action="append",
        type=Path,
        default=[],
        metavar="PATH",
        help="userns: a file or directory that jobs do not see, beside the work directory, HOME and those "
        "of temporary files; may be repeated",
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
        raise argparse.ArgumentTypeError(f"{text} is no number above 0, nor {MEASURE}")
    return number


def _seconds_or_never(text: str) -> float:
    return 0.0 if float(text) == 0 else _seconds(text)


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return number


class _Doubting(argparse.ArgumentParser):
    """Raises where its parent ends the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        del status  # whatever it is
        raise ValueError(message or "asks for help, and for nothing to be done")


def check_words(words: Sequence[str]) -> None:
    """Whether a pilot elsewhere would understand these words.

    Raises:
        ValueError: It would not; the message says which.
    """
    parser(_Doubting).parse_args(words)


def parser(kind: type[argparse.ArgumentParser] = argparse.ArgumentParser) -> argparse.ArgumentParser:
    """All words that the pilot understands."""
    made = kind(
        prog="pilotage pilot",
        allow_abbrev=False,
        description="Takes jobs that fit this batch queue, as many at a time as its slot has room "
        "for, and runs them here.",
        epilog="Exit status: 0 ended as it should, 1 refused by the service, 2 wrong usage, "
        "3 the service stayed away, 4 trouble with this host, 5 another process has used the secret: that "
        "one is the pilot, this one has touched nothing.",
    )
    add_connection(made.add_argument_group("the service"))
    add_place(made.add_argument_group("the batch queue that it runs in"))
    add_filters(made.add_argument_group("which jobs"))
    add_slot(made.add_argument_group("what the slot offers; else what the queue is configured with"))
    add_ends(made.add_argument_group("when it ends by itself"))
    add_payload_options(made.add_argument_group("how jobs are looked after"))
    add_isolation(made.add_argument_group("what jobs are kept from"))
    made.add_argument("--json", action="store_true", help="at the end, say in JSON what became of it")
    made.add_argument("--verbose", action="store_true", help="say more")
    return made


def read_settings(said: argparse.Namespace, environment: Mapping[str, str]) -> PilotSettings:
    """The settings that the command line states.

    Raises:
        ValueError: They make no sense; the message says which.
    """
    url = said.url or environment.get("PILOTAGE_URL")
    if not url:
        raise ValueError("no service known: give --url or set PILOTAGE_URL")
    if (said.secret_file is None) != (said.stamp is None):
        raise ValueError("--secret-file and --stamp need each other")
    return PilotSettings(
        url=url,
        authorities=said.authorities or _path(environment.get("PILOTAGE_AUTHORITIES")),
        proxy=said.proxy,
        place=_place(said, environment),
        wishes=JobFilters(
            vo=said.vo,
            pools=_pools(said.pools),
            owner_groups=tuple(said.owner_group),
            job_types=tuple(said.job_type),
            reference=said.reference,
        ),
        slot=Slot(
            cpu_time=said.cpu_time,
            lifetime=said.lifetime,
            max_ram=said.max_ram,
            processors=said.processors,
            gpus=said.gpus,
            platform=said.platform,
            tags=tuple(said.tag),
            required_tags=tuple(said.required_tag),
            facts=facts.read_facts(_expand_file(said.facts, environment)) if said.facts else {},
            probes=said.probes,
            cpu_power=None if said.cpu_power == MEASURE else said.cpu_power,
            measures_cpu=said.cpu_power == MEASURE,
            whole_node=said.whole_node,
        ),
        ends=StopConditions(
            max_jobs=said.max_jobs,
            max_empty=said.max_empty,
            max_idle=said.max_idle,
            whole_every=said.whole_every,
            drain_file=said.drain_file,
            patience=said.patience,
        ),
        care=PayloadOptions(
            work_dir=(said.work_dir or Path(tempfile.gettempdir())).absolute(),
            keep_work=said.keep_work,
            heartbeat=said.heartbeat,
            grace=said.grace,
            report_patience=said.report_patience,
            sandbox_limit=said.sandbox_limit,
            output_limit=said.output_limit,
            passed_on=tuple(said.pass_env),
            isolation=_isolation(said, environment),
        ),
    )


def _isolation(said: argparse.Namespace, environment: Mapping[str, str]) -> Isolation:
    token = None if said.token_file in (None, "-") else Path(said.token_file)
    hidden = isolation.private_paths(environment, said.work_dir, token, *said.hide)
    return isolation.choose_isolation(
        said.isolation, command=said.isolation_command, image=said.image, hidden=hidden, own=environment
    )


def _expand_file(file: str, environment: Mapping[str, str]) -> Path:
    """A file whose name may contain variables: nodes that see one directory have a file each."""
    return Path(Template(file).safe_substitute(environment))


def _place(said: argparse.Namespace, environment: Mapping[str, str]) -> QueuePlace:
    """The queue that is stated, or where we have landed."""
    stated = (said.site, said.ce, said.queue)
    if all(stated):
        return QueuePlace(*stated)
    if any(stated):
        raise ValueError("--site, --ce and --queue need each other")
    return offer.find_place({} if said.landings is None else offer.read_landings(said.landings), environment)


def _path(said: str | None) -> Path | None:
    return Path(said) if said else None


def _pools(said: str | None) -> tuple[str, ...]:
    """Pool ids separated by commas, blanks or lines, given directly or in a file."""
    if said is None:
        return ()
    try:
        text = Path(said[1:]).read_text(encoding="ascii") if said.startswith("@") else said
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--pools: {error}") from None
    pools = text.replace(",", " ").split()
    if not pools:
        raise ValueError("--pools: names no pool")
    return tuple(pools)
