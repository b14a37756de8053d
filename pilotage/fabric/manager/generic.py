"""Grid jobs of type `generic`: the same program so many times."""

from collections.abc import Mapping

from pilotage.fabric.manager import handlers
from pilotage.fabric.manager.errors import UnfitJob
from pilotage.fabric.manager.handlers import HandledJob, LocalCommand, SiteLimits

#: How many local jobs; 1 if nothing is said. Source: JIM, `instances`.
LOCAL_JOBS = "LocalJobs"


class Generic:
    """`LocalJobs` times the executable, which is told its number."""

    def check(self, job: HandledJob) -> None:
        """Refuse what cannot be run, or be counted."""
        handlers.read_whole(job.description, LOCAL_JOBS)
        self.command(job, 1)

    def number_of_jobs(self, job: HandledJob, site: SiteLimits) -> int:
        """As many as the user says."""
        number = handlers.read_whole(job.description, LOCAL_JOBS) or 1
        if number > site.max_local_jobs:
            raise UnfitJob(f"{LOCAL_JOBS}: {number} are too many, this site takes {site.max_local_jobs}")
        return number

    def prepare_work_area(self, job: HandledJob, n: int) -> Mapping[str, bytes]:  # noqa: ARG002 - others need them
        """Nothing beside the input sandbox."""
        return {}

    def command(self, job: HandledJob, n: int) -> LocalCommand:
        """The user's own, with `{local_job}` and `{local_jobs}`."""
        return handlers.build_command(job.description, {"local_job": n, "local_jobs": job.number})
