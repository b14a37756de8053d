"""The job types that come with the program: copies of a program, and Monte Carlo production.

Source: JIM, `instances`; SAM-Grid, the number of jobs to be submitted.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

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
    """The events of one local job."""

    events: int
    first_event: int
    seed: int


class MonteCarlo:
    """Type `montecarlo`: `Events` events, spread evenly; each local job has its own seed and event range."""

    def check(self, job: HandledJob) -> None:
        """Reject invalid numbers."""
        if handlers.read_whole(job.description, EVENTS) is None:
            raise UnfitJob(
                f"{EVENTS}: is missing: a grid job of type montecarlo says how many events it wants"
            )
        handlers.read_whole(job.description, EVENTS_PER_JOB)
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
        number = -(-events // each)
        if number > site.max_local_jobs:
            raise UnfitJob(
                f"{EVENTS}: {events} with at most {each} per local job are {number} local jobs,"
                f" this site takes {site.max_local_jobs}"
            )
        return number

    def prepare_work_area(self, job: HandledJob, n: int) -> Mapping[str, bytes]:
        """A file with the events of this local job."""
        part = event_range(job, n)
        content = {"events": part.events, "first_event": part.first_event, "seed": part.seed}
        return {PART: json.dumps(content).encode()}

    def command(self, job: HandledJob, n: int) -> LocalCommand:
        """Fill `{events}`, `{first_event}`, `{seed}`, `{local_job}` and `{local_jobs}` into the command."""
        part = event_range(job, n)
        values = {
            "events": part.events,
            "first_event": part.first_event,
            "seed": part.seed,
            "local_job": n,
            "local_jobs": job.number,
        }
        details = {"Events": part.events, "First event": part.first_event, "Seed": part.seed}
        return handlers.build_command(job.description, values, size=part.events, details=details)


def events_per_job(job: HandledJob, site: SiteLimits) -> int:
    """Maximum events of one local job, from its CPU time and the user's limit; at least one has to fit."""
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
    return min(figures, default=RULE_OF_THUMB)


def event_range(job: HandledJob, n: int) -> EventRange:
    """The events of local job `n`: sizes differ by at most one, larger ones first."""
    number = max(job.number, 1)
    each, more = divmod(_events(job), number)
    before = (n - 1) * each + min(n - 1, more)
    first = handlers.read_whole(job.description, FIRST_EVENT, least=0)
    seed = handlers.read_whole(job.description, SEED, least=0)
    return EventRange(
        events=each + (n <= more),
        first_event=(1 if first is None else first) + before,
        seed=((job.job_id * 7919 if seed is None else seed) + n - 1) % (LARGEST_SEED + 1),
    )


def _events(job: HandledJob) -> int:
    return handlers.read_whole(job.description, EVENTS) or 0
