"""Handlers of job types: the parts of a job manager that differ between kinds of grid jobs.

With the program come the types for copies of a program and for Monte Carlo production. Source: JIM,
`instances`; SAM-Grid, the number of jobs to be submitted.

A further job type is a class in any package, registered under the entry point group `pilotage.job_types`; its
name there is the `JobType` of the jobs. A faulty handler fails its own grid jobs and nothing else. Source:
SAM-Grid, job manager adapters.
"""

import json
import logging
import shlex
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from importlib.metadata import EntryPoint
from typing import Any, Protocol, TypeVar, runtime_checkable

from pydantic import Field

from pilotage import entry_points
from pilotage.fabric.file_section import FileSection
from requirements.errors import PilotageError

GROUP = "pilotage.job_types"


class UnfitJob(PilotageError):
    """The handler refuses the grid job, here or in this form: the user or the site has to change it."""

    code = "unfit_job"


class SiteLimits(FileSection):
    """A site's settings for grid jobs of one type, in the file of its gateway."""

    max_cpu_per_job: float | None = Field(default=None, gt=0)  #: maximum seconds that a local job should take
    cpu_per_event: float | None = Field(default=None, gt=0)  #: seconds, default where the user states none
    max_local_jobs: int = Field(default=10_000, ge=1, le=100_000)  #: per grid job


@dataclass(frozen=True, slots=True, kw_only=True)
class HandledJob:
    """A grid job as passed to its handler."""

    job_id: int
    description: Mapping[str, Any]  #: as checked by the service, with keywords in its spelling
    number: int = 0  #: of local jobs, fixed once decided


#: A text, a number or a link (`https://…`).
Detail = str | int | float
#: Maximum details of a local job, and characters of a name and of a text.
_DETAILS, _DETAIL_NAME, _DETAIL_TEXT = 10, 50, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCommand:
    """The command of a local job."""

    words: tuple[str, ...]  #: the program, in the sandbox or on the node, and its arguments
    environment: Mapping[str, str] = field(default_factory=dict)  #: in addition to the user's
    size: int | None = None  #: units of work, such as events; None: not counted
    details: Mapping[str, Detail] = field(default_factory=dict)  #: shown to users with the local job, by name


@runtime_checkable
class Handler(Protocol):
    """A job type. Local jobs are numbered from 1."""

    def check(self, job: HandledJob) -> None:
        """Check a grid job before anything is done.

        Raise `UnfitJob` with a message for the user: which keyword, which value, which are allowed.
        """

    def number_of_jobs(self, job: HandledJob, site: SiteLimits) -> int:
        """Number of local jobs for a grid job; `UnfitJob` if it cannot run at this site."""

    def prepare_work_area(self, job: HandledJob, n: int) -> Mapping[str, bytes]:
        """Small files to add to the work directory of local job `n`, by name."""

    def command(self, job: HandledJob, n: int) -> LocalCommand:
        """The command of local job `n`."""


def installed_handlers() -> dict[str, Handler]:
    """The handlers of all installed packages by `JobType`; `TypeError` for what is not a handler."""
    return {name: _load_handler(point) for name, point in entry_points.list_present(GROUP).items()}


def _load_handler(entry: EntryPoint) -> Handler:
    handler = entry.load()()
    if not isinstance(handler, Handler):
        raise TypeError(f"{GROUP}: {entry.name} = {entry.value!r} is not a handler: methods are missing")
    return handler


def build_command(
    description: Mapping[str, Any],
    values: Mapping[str, int],
    *,
    size: int | None = None,
    details: Mapping[str, Detail] = {},
) -> LocalCommand:
    """Build the user's command, with values substituted for `{name}`.

    They are also set as environment variables with names in capitals. `size` is in units of work.
    """
    executable = str(description.get("Executable") or "").strip()
    if not executable:
        raise UnfitJob("Executable: is missing")
    words = [_fill_word(word, values) for word in _words(description.get("Arguments"))]
    environment = {name.upper(): str(value) for name, value in values.items()}
    return LocalCommand(words=(executable, *words), environment=environment, size=size, details=details)


def _words(stated: object) -> list[str]:
    if stated is None:
        return []
    if isinstance(stated, list | tuple):
        return [str(word) for word in stated]
    try:
        return shlex.split(str(stated))
    except ValueError as error:
        raise UnfitJob(f"Arguments: {str(stated)!r:.80}: {error}") from None


def _fill_word(word: str, values: Mapping[str, int]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", str(value))
    return word


#: Maximum number in a description.
MOST = 10**12


def read_whole(description: Mapping[str, Any], keyword: str, *, least: int = 1) -> int | None:
    """Read a whole number between `least` and `MOST`; None if it is not stated."""
    stated = description.get(keyword)
    if stated is None:
        return None
    if isinstance(stated, bool) or not isinstance(stated, int | float) or stated != stated // 1:
        raise UnfitJob(f"{keyword}: {stated!r:.80} is not a whole number")
    if not least <= stated <= MOST:
        raise UnfitJob(f"{keyword}: {stated!r:.80} is not allowed, only {least} to {MOST}")
    return int(stated)


def read_seconds(description: Mapping[str, Any], keyword: str) -> Fraction | None:
    """Read a positive time, exactly as written; None if it is not stated."""
    stated = description.get(keyword)
    if stated is None:
        return None
    if isinstance(stated, bool) or not isinstance(stated, int | float) or not 0 < stated <= MOST:
        raise UnfitJob(f"{keyword}: {stated!r:.80} is not a number of seconds above 0")
    return exact_fraction(stated)


def exact_fraction(number: float) -> Fraction:
    """Convert a number by its decimal digits: 0.3 / 0.1 is 3."""
    return Fraction(repr(number))


log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

#: Timeout of a call to a handler in seconds.
PATIENCE = 60.0
#: Maximum bytes of the files that a handler adds to a local job.
_MOST_ADDED = 1 << 20


def call_handler(handler: Handler, ask: Callable[[], _Answer], *, patience: float = PATIENCE) -> _Answer:
    """Call a handler in a thread, which is abandoned if it hangs; any failure becomes `UnfitJob`."""
    answer: Future[_Answer] = Future()
    name = f"handler {type(handler).__name__}"
    threading.Thread(target=_call, args=(ask, answer), name=name, daemon=True).start()
    try:
        return answer.result(patience)
    except UnfitJob:
        raise
    except TimeoutError:
        log.error("the %s does not return", name)  # noqa: TRY400 - our traceback would not help
        raise UnfitJob(f"the {name} gave no answer within {patience:g} s") from None
    except (Exception, SystemExit) as error:  # other people's code
        log.exception("the %s broke", name)
        raise UnfitJob(f"the {name} broke: {error!r:.300}") from error


def _call(ask: Callable[[], _Answer], answer: Future[_Answer]) -> None:
    try:
        answer.set_result(ask())
    except (Exception, SystemExit) as error:  # noqa: BLE001 - raised again in the calling thread
        answer.set_exception(error)


def checked_command(command: LocalCommand) -> LocalCommand:
    """Check that a handler's command has the form that the journal and the scripts need."""
    words: Any = command.words
    environment: Any = command.environment
    size: Any = command.size
    if not isinstance(words, tuple | list) or not words or not all(isinstance(each, str) for each in words):
        raise TypeError(f"words: {words!r:.100} are no strings, the program first")
    if not isinstance(environment, Mapping) or not all(
        isinstance(each, str) for pair in environment.items() for each in pair
    ):
        raise TypeError(f"environment: {environment!r:.100} does not map strings to strings")
    if size is not None and not (isinstance(size, int) and 0 <= size <= MOST):
        raise TypeError(f"size: {size!r:.100} is not a whole number from 0 to {MOST}")
    details: Any = command.details
    if (
        not isinstance(details, Mapping)
        or len(details) > _DETAILS
        or not all(map(_is_detail, details.items()))
    ):
        raise TypeError(
            f"details: {details!r:.200} does not map up to {_DETAILS} names of up to {_DETAIL_NAME} "
            f"characters to numbers and texts of up to {_DETAIL_TEXT} characters"
        )
    return command


def _is_detail(pair: tuple[object, object]) -> bool:
    name, value = pair
    if not (isinstance(name, str) and name.isprintable() and 1 <= len(name) <= _DETAIL_NAME):
        return False
    if isinstance(value, str):
        return value.isprintable() and len(value) <= _DETAIL_TEXT
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST


def checked_files(files: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Check a handler's files for a local job: bytes with plain names, not too large."""
    stated: dict[Any, Any] = dict(files)
    if not all(isinstance(name, str) and isinstance(content, bytes) for name, content in stated.items()):
        raise TypeError("files: they are no bytes by name")
    if sum(map(len, stated.values())) > _MOST_ADDED or not all(map(_is_plain, stated)):
        raise UnfitJob(f"the files of a local job are no plain names with {_MOST_ADDED} bytes at most")
    return stated


def _is_plain(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name and name.isprintable()


#: Number of local jobs of a generic job, default 1.
LOCAL_JOBS = "LocalJobs"


class Generic:
    """Type `generic`: runs the executable `LocalJobs` times, each with its number."""

    def check(self, job: HandledJob) -> None:
        """Reject an invalid command or number."""
        read_whole(job.description, LOCAL_JOBS)
        self.command(job, 1)

    def number_of_jobs(self, job: HandledJob, site: SiteLimits) -> int:
        """The number that the user states."""
        number = read_whole(job.description, LOCAL_JOBS) or 1
        if number > site.max_local_jobs:
            raise UnfitJob(f"{LOCAL_JOBS}: {number} are too many, this site takes {site.max_local_jobs}")
        return number

    def prepare_work_area(self, job: HandledJob, n: int) -> Mapping[str, bytes]:  # noqa: ARG002 - others need them
        """No files besides the input sandbox."""
        return {}

    def command(self, job: HandledJob, n: int) -> LocalCommand:
        """The user's command, with `{local_job}` and `{local_jobs}` substituted."""
        return build_command(job.description, {"local_job": n, "local_jobs": job.number})


EVENTS = "Events"
EVENTS_PER_JOB = "EventsPerJob"
EVENTS_PER_FILE = "EventsPerFile"
CPU_PER_EVENT = "CPUPerEvent"  #: seconds
FIRST_EVENT = "FirstEvent"
SEED = "Seed"
#: Events per local job if neither the user nor the site states a limit.
RULE_OF_THUMB = 250
#: File with the local job's events, in addition to its arguments and environment.
PART = "montecarlo.json"
#: Maximum seed of common generators: signed 32 bits.
LARGEST_SEED = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRange:
    """The events of one local job, and the output files into which each of its phases divides them."""

    events: int
    first_event: int
    seed: int
    files: int = 1
    first_file: int = 1  #: among those of all local jobs, from 1


class MonteCarlo:
    """Type `montecarlo`: `Events` events, spread evenly; each local job has its own seed and event range.

    With `EventsPerFile` each phase of a local job writes several files, of which no two share one.
    """

    def check(self, job: HandledJob) -> None:
        """Reject invalid numbers."""
        if read_whole(job.description, EVENTS) is None:
            raise UnfitJob(f"{EVENTS}: is missing: a grid job of type montecarlo states its number of events")
        read_whole(job.description, EVENTS_PER_JOB)
        read_whole(job.description, EVENTS_PER_FILE)
        read_seconds(job.description, CPU_PER_EVENT)
        read_whole(job.description, FIRST_EVENT, least=0)
        seed = read_whole(job.description, SEED, least=0)
        if seed is not None and seed > LARGEST_SEED:
            raise UnfitJob(f"{SEED}: {seed} is not allowed, only 0 to {LARGEST_SEED}")
        self.command(job, 1)

    def number_of_jobs(self, job: HandledJob, site: SiteLimits) -> int:
        """The smallest number of local jobs within the limits of site and user."""
        events = _events(job)
        each = events_per_job(job, site)
        per_file = _events_per_file(job) or 1
        number = -(-_count_files(job) // (each // per_file))
        if number > site.max_local_jobs:
            raise UnfitJob(
                f"{EVENTS}: {events} with at most {each} per local job are {number} local jobs,"
                f" this site takes {site.max_local_jobs}"
            )
        return number

    def prepare_work_area(self, job: HandledJob, n: int) -> Mapping[str, bytes]:
        """A file with the events of this local job."""
        part = event_range(job, n)
        return {PART: json.dumps(asdict(part)).encode()}

    def command(self, job: HandledJob, n: int) -> LocalCommand:
        """Fill the fields of its `EventRange`, `{local_job}` and `{local_jobs}` into the command."""
        part = event_range(job, n)
        values = {**asdict(part), "local_job": n, "local_jobs": job.number}
        details = {"Events": part.events, "First event": part.first_event, "Seed": part.seed}
        if _events_per_file(job):
            details |= {"Files": part.files, "First file": part.first_file}
        return build_command(job.description, values, size=part.events, details=details)


def events_per_job(job: HandledJob, site: SiteLimits) -> int:
    """Maximum events of a local job, from its CPU time and the user's limit; at least a file has to fit."""
    figures = []
    cpu_per_event = read_seconds(job.description, CPU_PER_EVENT)
    if cpu_per_event is None and site.cpu_per_event is not None:
        cpu_per_event = exact_fraction(site.cpu_per_event)
    if site.max_cpu_per_job is not None and cpu_per_event is not None:
        fit = int(exact_fraction(site.max_cpu_per_job) / cpu_per_event)
        if fit < 1:
            raise UnfitJob(
                f"{CPU_PER_EVENT}: one event takes {float(cpu_per_event):g} s,"
                f" a local job at this site has {site.max_cpu_per_job:g} s"
            )
        figures.append(fit)
    own = read_whole(job.description, EVENTS_PER_JOB)
    if own is not None:
        figures.append(own)
    per_file = _events_per_file(job) or 1
    most = min(figures, default=max(RULE_OF_THUMB, per_file))
    if most < per_file:
        raise UnfitJob(f"{EVENTS_PER_FILE}: {per_file} are too many, a local job has at most {most} events")
    return most


def event_range(job: HandledJob, n: int) -> EventRange:
    """The events of local job `n`: sizes differ by at most one event, or file, larger ones first."""
    number = max(job.number, 1)
    per_file = _events_per_file(job)
    whole = _count_files(job) if per_file else _events(job)
    each, more = divmod(whole, number)
    size, before = each + (n <= more), (n - 1) * each + min(n - 1, more)
    files, first_file = (size, before + 1) if per_file else (1, n)
    before *= per_file or 1
    first = read_whole(job.description, FIRST_EVENT, least=0)
    seed = read_whole(job.description, SEED, least=0)
    return EventRange(
        events=min(size * (per_file or 1), _events(job) - before),
        first_event=(1 if first is None else first) + before,
        seed=((job.job_id * 7919 if seed is None else seed) + n - 1) % (LARGEST_SEED + 1),
        files=files,
        first_file=first_file,
    )


def _events_per_file(job: HandledJob) -> int | None:
    return read_whole(job.description, EVENTS_PER_FILE)


def _count_files(job: HandledJob) -> int:
    return -(-_events(job) // (_events_per_file(job) or 1))


def _events(job: HandledJob) -> int:
    return read_whole(job.description, EVENTS) or 0
