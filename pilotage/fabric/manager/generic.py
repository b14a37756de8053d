"""Grid jobs of type `generic`: a number of copies of the same program."""

from collections.abc import Mapping

from pilotage.fabric.manager import handlers
from pilotage.fabric.manager.errors import UnfitJob
from pilotage.fabric.manager.handlers import HandledJob, LocalCommand, SiteLimits

#: Number of local jobs, default 1. Source: JIM, `instances`.
LOCAL_JOBS = "LocalJobs"


class Generic:
    """Runs the executable `LocalJobs` times, each with its number."""

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
