"""What `pilotage director` and `pilotage gateway` have in common: their options, check, cycles and end."""

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from threading import Event
from typing import Annotated, Protocol

import typer

from pilotage.cli import errors, output, process_setup
from pilotage.cli.errors import REFUSED
from pilotage.cli.settings import Settings
from pilotage.fabric.batch.settings import SystemSettings
from pilotage.fabric.cycle_summaries import DirectorSummary, GatewaySummary
from pilotage.fabric.manager.journal import StateUnusable
from pilotage.fabric.pilot.service.transport import Away, Refused

log = logging.getLogger(__name__)

Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Check the file, its queues, batch systems and directories, print the result, and exit.",
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Run one cycle, print its result, and exit.")]

Summary = DirectorSummary | GatewaySummary
#: Seconds that running work gets to end after a signal; killing it loses nothing.
_LAST_CYCLE = 30.0


class SiteProgram(Protocol):
    """A director or gateway with its file."""

    def list_risks(self) -> Collection[str]:
        """What jobs may read and do by what the file states."""

    def check(self) -> Mapping[str, str]:
        """What is wrong with each batch system, empty: nothing; an error where the file is wrong."""

    def run_once(self) -> Summary:
        """Run one cycle."""

    def run(self, stop: Event, show: Callable[[Summary], None]) -> None:
        """Run cycles until the event is set, and show each."""


def run(process: SiteProgram, chosen: Settings, *, once: bool, check: bool, as_json: bool) -> None:
    """Check a process, or run one cycle, or cycles until a signal; the exit status as `typer.Exit`."""
    process_setup.configure_logs(chosen.log_level, as_json=as_json)
    process_setup.raise_file_limit()
    for risk in process.list_risks():
        log.warning("%s", risk)
    show = partial(output.report_cycle, as_json=as_json)
    if check:
        status = _show_check(process.check(), as_json=as_json)
    elif once:
        show(summary := process.run_once())
        status = REFUSED if summary.has_failed else 0
    else:
        work = partial(run_until_signal, process, show, as_json=as_json)
        status = process_setup.run_apart(work, patience=_LAST_CYCLE)
    if status:
        raise typer.Exit(status)


def run_until_signal(process: SiteProgram, show: Callable[[Summary], None], *, as_json: bool) -> int:
    """Run cycles until a signal; errors are shown here, since this is a system process of its own."""
    stop = process_setup.stop_on_signals()
    try:
        process.run(stop, show)
    except Exception as error:  # noqa: BLE001 - the entry point of this process
        return errors.show(error, as_json=as_json)
    return 0


def isolate_errors(name: str, step: Callable[[], object]) -> None:
    """Log any error of a step, so that the next cycle still runs."""
    try:
        step()
    except (Away, Refused, StateUnusable) as error:
        log.error("%s was interrupted, the next one continues: %s", name, error)  # noqa: TRY400 - not our bug
    except Exception:
        log.exception("%s failed", name)


def list_readable(secrets: Collection[Path], systems: Mapping[str, SystemSettings]) -> list[str]:
    """The secrets that jobs can read: on the file system of the jobs' files, with the same account."""
    return [
        f"{secret}: jobs of the batch system {name} run as this account and may read it: "
        "keep it on a disk that its nodes do not see, or submit over ssh as another account"
        for name, each in systems.items()
        for secret in secrets
        if each.lets_jobs_read(secret)
    ]


def _show_check(answers: Mapping[str, str], *, as_json: bool) -> int:
    """Print what is wrong with each batch system; the exit status."""
    rows = (("failed" if error else "passed", name, error or "answers") for name, error in answers.items())
    table = output.table(("", "System", "Answer"), rows)
    output.emit(
        [{"system": name, "error": error} for name, error in answers.items()],
        as_json=as_json,
        render=lambda: table,
    )
    return REFUSED if any(answers.values()) else 0
