"""The command line of the pilot."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import NoReturn

from pilotage.fabric.pilot import facts, flags, isolation, landing, namespaces
from pilotage.fabric.pilot.isolation import Isolation
from pilotage.fabric.pilot.settings import Care, Ends, Place, Settings, Slot, Wishes


class _Doubting(argparse.ArgumentParser):
    """Raises where its parent ends the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        del status  # whatever it is
        raise ValueError(message or "asks for help, and for nothing to be done")


def check(words: Sequence[str]) -> None:
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
    flags.connection(made.add_argument_group("the service"))
    flags.place(made.add_argument_group("the batch queue that it runs in"))
    flags.wishes(made.add_argument_group("which jobs"))
    flags.slot(made.add_argument_group("what the slot offers; else what the queue is configured with"))
    flags.ends(made.add_argument_group("when it ends by itself"))
    flags.care(made.add_argument_group("how jobs are looked after"))
    flags.isolation(made.add_argument_group("what jobs are kept from"))
    made.add_argument("--json", action="store_true", help="at the end, say in JSON what became of it")
    made.add_argument("--verbose", action="store_true", help="say more")
    return made


def settings(said: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """The settings that the command line states.

    Raises:
        ValueError: They make no sense; the message says which.
    """
    url = said.url or environment.get("PILOTAGE_URL")
    if not url:
        raise ValueError("no service known: give --url or set PILOTAGE_URL")
    if (said.secret_file is None) != (said.stamp is None):
        raise ValueError("--secret-file and --stamp need each other")
    return Settings(
        url=url,
        authorities=said.authorities or _path(environment.get("PILOTAGE_AUTHORITIES")),
        proxy=said.proxy,
        place=_place(said, environment),
        wishes=Wishes(
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
            facts=facts.read(_named(said.facts, environment)) if said.facts else {},
            probes=said.probes,
            cpu_power=None if said.cpu_power == flags.MEASURE else said.cpu_power,
            measures_cpu=said.cpu_power == flags.MEASURE,
            whole_node=said.whole_node,
        ),
        ends=Ends(
            max_jobs=said.max_jobs,
            max_empty=said.max_empty,
            max_idle=said.max_idle,
            whole_every=said.whole_every,
            drain_file=said.drain_file,
            patience=said.patience,
        ),
        care=Care(
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
    hidden = namespaces.private(environment, said.work_dir, token, *said.hide)
    return isolation.choose(
        said.isolation, command=said.isolation_command, image=said.image, hidden=hidden, own=environment
    )


def _named(file: str, environment: Mapping[str, str]) -> Path:
    """A file whose name may contain variables: nodes that see one directory have a file each."""
    return Path(Template(file).safe_substitute(environment))


def _place(said: argparse.Namespace, environment: Mapping[str, str]) -> Place:
    """The queue that is stated, or where we have landed."""
    stated = (said.site, said.ce, said.queue)
    if all(stated):
        return Place(*stated)
    if any(stated):
        raise ValueError("--site, --ce and --queue need each other")
    return landing.find({} if said.landings is None else landing.read(said.landings), environment)


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
