"""One try of a local job on its node: unpack into a new directory, run, pack the output, report.

It uses the pilot's modules, with status files in a shared directory instead of requests to the service.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import threading
import zipfile
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from pilotage.fabric.pilot import attempt
from pilotage.fabric.pilot.allotment import Allotment
from pilotage.fabric.pilot.errors import HOST, HostTrouble
from pilotage.fabric.pilot.job_agent import PilotControl
from pilotage.fabric.pilot.payload import container, isolation, monitor, payload, work_area
from pilotage.fabric.pilot.payload.description import UnfitDescription
from pilotage.fabric.pilot.payload.isolation import STRONGEST, Isolation
from pilotage.fabric.pilot.payload.monitor import SlotMemory, SlotShare
from pilotage.fabric.pilot.payload.payload import NotStarted
from pilotage.fabric.pilot.payload.preparation import DEFAULT_PATH, CannotRun, Prepared, Preparer
from pilotage.fabric.pilot.payload.work_area import WorkArea
from pilotage.fabric.pilot.service import service_client
from pilotage.fabric.pilot.service.heartbeat import Heartbeat
from pilotage.fabric.pilot.service.service_client import Match
from pilotage.fabric.pilot.service.transport import Away, TooLarge
from pilotage.fabric.pilot.settings import PayloadOptions, QueuePlace
from pilotage.fabric.runner import status_files
from pilotage.fabric.runner.status_files import JOB, PAYLOAD, SITE, LocalJobEnd, StatusFiles

log = logging.getLogger(__name__)

#: Seconds to retry while the shared directory is away and a result is held.
_PATIENCE = 900.0
#: Name of the input sandbox in the archive.
SANDBOX = "sandbox.tar"
#: Command with which a payload reports its progress.
COMMAND = "pilotage-progress"
_COMMAND = """\
#!/bin/sh
# pilotage-progress PHASE DONE OF
test $# -eq 3 || { echo "usage: pilotage-progress PHASE DONE OF" >&2; exit 2; }
printf '%s %s of %s\\n' "$1" "$2" "$3" >>"$PILOTAGE_PROGRESS_FILE"
"""


@dataclass(frozen=True)
class JobSpec:
    """Specification of one try of a local job."""

    job_id: int  #: of the grid job
    number: int  #: of the local job
    place: tuple[str, str, str]  #: site, CE, queue
    description: Mapping[str, Any]  #: of the grid job, with the command of this local job
    #: Directory for its status files and its output, which the manager sees, or gets from the batch system;
    #: relative to the working directory of the batch job.
    marks: str
    files: Mapping[str, bytes] = field(default_factory=dict)  #: to add to its work directory, by name
    processors: int = 1
    memory: int | None = None  #: MB of the slot
    wall_time: int | None = None  #: seconds of the slot
    beat: float = 10.0  #: seconds between two status reports
    grace: float = 10.0  #: seconds between TERM and KILL
    sandbox_limit: int = 1 << 30  #: maximum bytes of the input sandbox
    output_limit: int = 1 << 30  #: maximum bytes of all output files
    isolation: str = STRONGEST  #: of the payload: a kind of `payload.isolation`
    isolation_command: str | None = None
    image: str | None = None  #: of containers

    def as_json(self) -> bytes:
        """Serialise the specification."""
        files = {name: b64encode(content).decode("ascii") for name, content in self.files.items()}
        return json.dumps({**vars(self), "files": files}).encode()


def read_spec(file: Path) -> JobSpec:
    """Read the specification on the node."""
    raw = json.loads(file.read_bytes())
    files = {name: b64decode(content) for name, content in raw.pop("files").items()}
    marks = str(Path(raw["marks"]).absolute())
    return JobSpec(**{**raw, "files": files, "place": tuple(raw["place"]), "marks": marks})


def choose_isolation(
    spec: JobSpec, own: Mapping[str, str], *, below: Path, hidden: Sequence[Path] = ()
) -> Isolation:
    """The isolation of a payload that works on this node.

    It hides the shared directory with the files of other local jobs, that of the specification (`below`), and
    the paths of the gateway.

    Raises:
        HostTrouble: The stated kind does not work here, or the strongest does not work now.
    """
    # In it are the directories of grid jobs, and in these the directories of tries.
    shared = Path(spec.marks).parents[1]
    try:
        chosen = isolation.choose_isolation(
            spec.isolation,
            command=spec.isolation_command,
            image=spec.image,
            hidden=isolation.private_paths(own, below, shared, *hidden),
            own=own,
        )
    except ValueError as error:
        raise HostTrouble(str(error)) from None
    return isolation.find_working(chosen, below=below, own=own)


class LocalJobArchive:
    """The runner's own archive as the source of the input sandbox."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive

    def fetch_sandbox(self, lease: str, to: BinaryIO, *, limit: int) -> bool:
        """Write the input sandbox to a file, as `Sandboxes.fetch_sandbox`."""
        del lease
        with zipfile.ZipFile(self._archive) as members:
            if SANDBOX not in members.namelist():
                return False
            if members.getinfo(SANDBOX).file_size > limit:
                raise TooLarge(f"has more than {limit} bytes")
            with members.open(SANDBOX) as sandbox:
                shutil.copyfileobj(sandbox, to)
        return True


def main(archive: Path, words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the local job whose job spec is the first of `words`; `archive` also contains its sandbox.

    The other words are paths to hide from the payload: no part of the specification, since runners of
    earlier releases, which grid jobs may have, refuse what they do not know in it.

    Returns the exit status of the payload, 4 if the site is to blame.
    """
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, stream=sys.stderr)
    orders = PilotControl()
    orders.listen()
    file = Path(words[0])
    spec = read_spec(file)
    area = work_area.make_work_area(file.parent, job_id=spec.job_id, epoch=spec.number)
    try:
        hidden = tuple(map(Path, words[1:]))
        return LocalJob(spec, archive, environment, orders.stop, hidden=hidden).run(area)
    finally:
        area.remove()


class LocalJob:
    """One try of a local job."""

    def __init__(
        self,
        order: JobSpec,
        archive: Path,
        environment: Mapping[str, str],
        stop: threading.Event,
        *,
        hidden: Sequence[Path] = (),
    ) -> None:
        self._order = order
        self._archive = archive
        self._environment = environment
        self._stop = stop  #: set when the batch system ends the job
        self._hidden = hidden  #: paths of the gateway, from the payload
        self._marks = StatusFiles(Path(order.marks))
        self._phases: tuple[status_files.Progress, ...] = ()

    def run(self, area: WorkArea) -> int:
        """Run the job in a new area and write its status files; return the exit status of the batch job."""
        try:
            end = self._run_to_end(area)
            self._persistently(lambda: self._marks.end(end))
        except Away as error:
            log.error("%s: the end of this job cannot be reported", error)  # noqa: TRY400 - not ours
            return HOST
        if end.cause == SITE:
            return HOST
        return end.report.exit_code or int(end.report.status != payload.DONE)

    def _run_to_end(self, area: WorkArea) -> LocalJobEnd:
        try:
            chosen = choose_isolation(
                self._order, self._environment, below=area.top.parent, hidden=self._hidden
            )
            end = self._execute(self._prepare(area, chosen), area)
            return replace(end, not_isolated=chosen.missing)
        except CannotRun as error:
            return LocalJobEnd(JOB, error.report)
        except (UnfitDescription, NotStarted) as error:
            return LocalJobEnd(JOB, payload.failure_report(payload.UNFIT, str(error)))
        except (HostTrouble, OSError) as error:
            return LocalJobEnd(SITE, payload.failure_report("trouble with the host", str(error)))

    def _prepare(self, area: WorkArea, chosen: Isolation) -> Prepared:
        order = self._order
        for name, content in order.files.items():
            (area.home / Path(name).name).write_bytes(content)
        slot = Allotment(processors=order.processors, ram_mb=order.memory)
        preparer = Preparer(
            service=LocalJobArchive(self._archive),
            payload_options=PayloadOptions(
                work_dir=area.top, sandbox_limit=order.sandbox_limit, isolation=chosen
            ),
            place=QueuePlace(*order.place),
            whole=slot,
            environment=self._environment,
        )
        job = Match(
            job_id=order.job_id,
            epoch=order.number,
            lease="",
            lease_seconds=0.0,
            description=self._with_command(order.description, area),
        )
        return preparer.prepare(job, area, slot)

    def _with_command(self, description: Mapping[str, Any], area: WorkArea) -> Mapping[str, Any]:
        """The description with a PATH that finds the command for progress."""
        programs = area.scratch / "bin"
        programs.mkdir()
        command = programs / COMMAND
        command.write_text(_COMMAND, encoding="ascii")
        command.chmod(0o700)
        stated = description.get("ExecutionEnvironment")
        variables = dict(stated) if isinstance(stated, Mapping) else {}
        path = variables.get("PATH") or self._environment.get("PATH") or DEFAULT_PATH
        variables["PATH"] = f"{programs}:{path}"
        return {**description, "ExecutionEnvironment": variables}

    def _execute(self, ready: Prepared, area: WorkArea) -> LocalJobEnd:
        order = self._order
        allowed = monitor.job_limits(
            ready.description, SlotShare(order.wall_time, order.memory, cores=order.processors)
        )
        account = SlotMemory(order.memory).account(order.memory)
        with monitor.run_payload(ready, area, allowed, account) as running:

            def news() -> dict[str, object]:
                self._phases = status_files.read_progress(payload.tail_of_path(area.progress), self._phases)
                return status_files.news(running.news, self._phases)

            heartbeat = Heartbeat(self._marks, "", every=order.beat, news=news)
            with heartbeat.running():
                watched = running.until_end(heartbeat, self._stop, grace=order.grace)
            packed = attempt.pack_output(ready.description, area, limit=order.output_limit)
            self._persistently(lambda: self._marks.heartbeat("", news()))
        self._persistently(lambda: self._marks.output(area.output))
        is_stopped = watched.why == monitor.STOPPED
        failure = attempt.find_start_failure(watched, ready, area)
        if is_stopped:
            said = payload.failure_report(status_files.ENDED_BY_BATCH_SYSTEM, "", watched.end)
        else:
            said = attempt.judge(watched, failure)
        # The site, if its batch system ended the job, or the payload requested rescheduling.
        is_of_site = is_stopped or (watched.why is None and payload.asks_for_reschedule(watched.end))
        if failure is not None:
            is_of_site = failure.fault != container.OF_JOB
        return LocalJobEnd(SITE if is_of_site else PAYLOAD, attempt.with_shortcomings(said, packed))

    def _persistently(self, request: Callable[[], object]) -> None:
        """Retry while the shared directory is away, for minutes if necessary."""
        service_client.retry_while_away(request, patience=_PATIENCE, stop=threading.Event())
