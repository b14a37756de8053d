"""The job types that come with the program: copies of a program, and Monte Carlo production.

Source: JIM, `instances`; SAM-Grid, the number of jobs to be submitted.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pilotage.fabric.manager import handlers
from pilotage.fabric.manager.handlers import HandledJob, LocalCommand, SiteLimits, UnfitJob

#: Number of local jobs of a generic job, default 1.
LOCAL_JOBS = "LocalJobs"


class Generic:
    """Type `generic`: runs the executable `LocalJobs` times, each with its number."""

    def check(self, job: HandledJob) -> None:
        """Reject an invalid command or number."""
        handlers.read_whole(job.description, LOCAL_JOBS)
        self.command(job, 1)

    def number_of_jobs(self, job: HandledJob, site: SiteLimits) -> int:
        """The number that the user states."""
        number = handlers.read_whole(job.description, LOCAL_JOBS) or 1
        if number > site.max_local_jobs:
            raise UnfitJob(f"{LOCAL_JOBS}: {number} are too many, this site takes {site.max_local_jobs}")
        return number

    def prepare_work_area(self, job: HandledJob, n: int) -> Mapping[str, bytes]:  # noqa: ARG002 - others need them
        """No files besides the input sandbox."""
        return {}

    def command(self, job: HandledJob, n: int) -> LocalCommand:
        """The user's command, with `{local_job}` and `{local_jobs}` substituted."""
        return handlers.build_command(job.description, {"local_job": n, "local_jobs": job.number})


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
        if handlers.read_whole(job.description, EVENTS) is None:
            raise UnfitJob(
                f"{EVENTS}: is missing: a grid job of type montecarlo says how many events it wants"
            )
        handlers.read_whole(job.description, EVENTS_PER_JOB)
        handlers.read_whole(job.description, EVENTS_PER_FILE)
        handlers.read_seconds(job.description, CPU_PER_EVENT)
        handlers.read_whole(job.description, FIRST_EVENT, least=0)
        seed = handlers.read_whole(job.description, SEED, least=0)
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
        return handlers.build_command(job.description, values, size=part.events, details=details)


def events_per_job(job: HandledJob, site: SiteLimits) -> int:
    """Maximum events of a local job, from its CPU time and the user's limit; at least a file has to fit."""
    figures = []
    cpu_per_event = handlers.read_seconds(job.description, CPU_PER_EVENT)
    if cpu_per_event is None and site.cpu_per_event is not None:
        cpu_per_event = handlers.exact_fraction(site.cpu_per_event)
    if site.max_cpu_per_job is not None and cpu_per_event is not None:
        fit = int(handlers.exact_fraction(site.max_cpu_per_job) / cpu_per_event)
        if fit < 1:
            raise UnfitJob(
                f"{CPU_PER_EVENT}: one event takes {float(cpu_per_event):g} s,"
                f" a local job at this site has {site.max_cpu_per_job:g} s"
            )
        figures.append(fit)
    own = handlers.read_whole(job.description, EVENTS_PER_JOB)
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
    first = handlers.read_whole(job.description, FIRST_EVENT, least=0)
    seed = handlers.read_whole(job.description, SEED, least=0)
    return EventRange(
        events=min(size * (per_file or 1), _events(job) - before),
        first_event=(1 if first is None else first) + before,
        seed=((job.job_id * 7919 if seed is None else seed) + n - 1) % (LARGEST_SEED + 1),
        files=files,
        first_file=first_file,
    )


def _events_per_file(job: HandledJob) -> int | None:
    return handlers.read_whole(job.description, EVENTS_PER_FILE)


def _count_files(job: HandledJob) -> int:
    return -(-_events(job) // (_events_per_file(job) or 1))


def _events(job: HandledJob) -> int:
    return handlers.read_whole(job.description, EVENTS) or 0
