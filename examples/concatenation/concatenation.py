"""Grid jobs of type `concatenation`: many small files become a few large ones, some files per local job.

A job says `InputData` and, if it likes, `FilesPerJob`, which the VO allows by
`Operations/JobDescription/Extra: [FilesPerJob]`.
"""

from collections.abc import Mapping

from pilotage.fabric.manager import job_types
from pilotage.fabric.manager.job_types import HandledJob, LocalCommand, SiteLimits, UnfitJob

FILES_PER_JOB = "FilesPerJob"
#: In the directory of a local job: the names of its files, one a line.
LIST = "files.txt"


class Concatenation:
    """The executable finds the names of its files in `files.txt`."""

    def check(self, job: HandledJob) -> None:
        """Refuse a job without files."""
        if not _files(job):
            raise UnfitJob("InputData: is missing: there is nothing to concatenate")
        _per_job(job)

    def number_of_jobs(self, job: HandledJob, site: SiteLimits) -> int:
        """As many as it takes with so many files each."""
        number = -(-len(_files(job)) // _per_job(job))
        if number > site.max_local_jobs:
            raise UnfitJob(f"InputData: {number} local jobs, this site takes {site.max_local_jobs}")
        return number

    def prepare_work_area(self, job: HandledJob, n: int) -> Mapping[str, bytes]:
        """The list of this local job's files."""
        return {LIST: "".join(f"{name}\n" for name in _part(job, n)).encode()}

    def command(self, job: HandledJob, n: int) -> LocalCommand:
        """The user's own; its progress is counted in files."""
        return job_types.build_command(job.description, {"local_job": n}, size=len(_part(job, n)))


def _files(job: HandledJob) -> list[str]:
    return list(job.description.get("InputData") or ())


def _per_job(job: HandledJob) -> int:
    return job_types.read_whole(job.description, FILES_PER_JOB) or 20


def _part(job: HandledJob, n: int) -> list[str]:
    each = _per_job(job)
    return _files(job)[(n - 1) * each : n * each]
