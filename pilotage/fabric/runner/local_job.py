"""One try of a local job on its node: unpacked into a fresh directory, run, packed again, told.

The same parts as in a pilot do the work; where a pilot speaks to the service, marks are left in a directory.
"""

from __future__ import annotations

import logging
import shutil
import threading
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from pilotage.fabric.pilot import attempt, delivery, limits, report, retrying, tail, watching
from pilotage.fabric.pilot.description import UnfitDescription
from pilotage.fabric.pilot.ending import HOST
from pilotage.fabric.pilot.execution import Execution
from pilotage.fabric.pilot.heart import Heart
from pilotage.fabric.pilot.host import HostTrouble
from pilotage.fabric.pilot.memory import Memory
from pilotage.fabric.pilot.payload import NotStarted
from pilotage.fabric.pilot.preparation import CannotRun, Prepared, Preparer
from pilotage.fabric.pilot.service import Match
from pilotage.fabric.pilot.settings import Care, Place
from pilotage.fabric.pilot.share import Share
from pilotage.fabric.pilot.transport import Away, TooLarge
from pilotage.fabric.pilot.watching import Watched
from pilotage.fabric.pilot.work_area import WorkArea
from pilotage.fabric.runner import marks, progress
from pilotage.fabric.runner.marks import JOB, PAYLOAD, SITE, End, Marks
from pilotage.fabric.runner.order import Order

log = logging.getLogger(__name__)

#: Seconds that the shared directory may be away while we hold a result.
_PATIENCE = 900.0
#: The input sandbox in the archive.
SANDBOX = "sandbox.tar"
#: By which a payload says how far it is.
COMMAND = "pilotage-progress"
_COMMAND = """\
#!/bin/sh
# pilotage-progress PHASE DONE OF
test $# -eq 3 || { echo "usage: pilotage-progress PHASE DONE OF" >&2; exit 2; }
printf '%s %s of %s\\n' "$1" "$2" "$3" >>"$PILOTAGE_PROGRESS_FILE"
"""


class Packed:
    """The archive that the local job came with, in which its sandbox is."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive

    def fetch_sandbox(self, lease: str, to: BinaryIO, *, limit: int) -> bool:
        """Write the input sandbox to a file; False if there is none.

        Raises:
            TooLarge: It has more than `limit` bytes.
        """
        del lease
        with zipfile.ZipFile(self._archive) as members:
            if SANDBOX not in members.namelist():
                return False
            if members.getinfo(SANDBOX).file_size > limit:
                raise TooLarge(f"has more than {limit} bytes")
            with members.open(SANDBOX) as sandbox:
                shutil.copyfileobj(sandbox, to)
        return True


class LocalJob:
    """One try."""

    def __init__(
        self, order: Order, archive: Path, environment: Mapping[str, str], stop: threading.Event
    ) -> None:
        self._order = order
        self._archive = archive
        self._environment = environment
        self._stop = stop  #: set when the batch system wants it to end
        self._marks = Marks(Path(order.marks))
        self._phases: tuple[progress.Progress, ...] = ()

    def run(self, area: WorkArea) -> int:
        """Run it in a fresh area, leave the marks; the exit status for the batch system."""
        try:
            end = self._ended(area)
            self._persistently(lambda: self._marks.end(end))
        except Away as error:
            log.error("%s: nobody will hear of the end of this job", error)  # noqa: TRY400 - not ours
            return HOST
        if end.cause == SITE:
            return HOST
        return end.report.exit_code or int(end.report.status != report.DONE)

    def _ended(self, area: WorkArea) -> End:
        try:
            return self._executed(self._prepared(area), area)
        except CannotRun as error:
            return End(JOB, error.report)
        except (UnfitDescription, NotStarted) as error:
            return End(JOB, report.failed(report.UNFIT, str(error)))
        except (HostTrouble, OSError) as error:
            return End(SITE, report.failed("trouble with the host", str(error)))

    def _prepared(self, area: WorkArea) -> Prepared:
        order = self._order
        for name, content in order.files.items():
            (area.home / Path(name).name).write_bytes(content)
        slot = Share(processors=order.processors, ram_mb=order.memory)
        preparer = Preparer(
            service=Packed(self._archive),
            care=Care(work_dir=area.top, sandbox_limit=order.sandbox_limit),
            place=Place(*order.place),
            whole=slot,
            environment=self._environment,
        )
        job = Match(
            job_id=order.job_id,
            epoch=order.number,
            lease="",
            lease_seconds=0.0,
            description=order.description,
        )
        ready = preparer.prepare(job, area, slot)
        return replace(ready, environment=_with_command(ready.environment, area))

    def _executed(self, ready: Prepared, area: WorkArea) -> End:
        order = self._order
        allowed = limits.for_job(ready.description, seconds_left=order.wall_time, max_ram=order.memory)
        with Execution(ready, area, allowed, Memory(order.memory).account(order.memory)) as execution:

            def news() -> dict[str, object]:
                self._phases = progress.read(tail.of_path(area.progress), self._phases)
                return marks.news(execution.news, self._phases)

            heart = Heart(self._marks, "", every=order.beat, news=news)
            with heart.beating():
                watched = execution.until_end(heart, self._stop, grace=order.grace)
            packed = delivery.pack(ready.description, area, limit=order.output_limit)
            self._persistently(lambda: self._marks.heartbeat("", news()))
        self._persistently(lambda: self._marks.output(area.output))
        said = delivery.with_shortcomings(attempt.judge(watched), packed)
        return End(_cause(watched), said)

    def _persistently(self, request: Callable[[], object]) -> None:
        """Do what a shared directory that is away for minutes must not prevent."""
        retrying.patiently(request, patience=_PATIENCE, stop=threading.Event())


def _cause(watched: Watched) -> str:
    """The site is to blame where its batch system ended us, or the payload says that it cannot run here."""
    if watched.why == watching.STOPPED:
        return SITE
    return SITE if watched.why is None and report.asks_again(watched.end) else PAYLOAD


def _with_command(environment: Mapping[str, str], area: WorkArea) -> dict[str, str]:
    programs = area.scratch / "bin"
    programs.mkdir()
    command = programs / COMMAND
    command.write_text(_COMMAND, encoding="ascii")
    command.chmod(0o700)
    return {**environment, "PATH": f"{programs}:{environment['PATH']}"}
