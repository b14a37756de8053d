"""The plan of a grid job: its validity, the number of its local jobs, and the command of each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pilotage.fabric.manager import records
from pilotage.fabric.manager.context import ManagerContext
from pilotage.fabric.manager.errors import UnfitJob
from pilotage.fabric.manager.grid_job import job_type
from pilotage.fabric.manager.handlers import (
    HandledJob,
    Handler,
    LocalCommand,
    SiteLimits,
    call_handler,
    checked_command,
    checked_files,
)
from pilotage.fabric.manager.records import GridJobEntry, LocalJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A local job as planned by its handler."""

    command: LocalCommand
    files: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """Calls the handlers, which may come from any package."""

    station: ManagerContext
    manager: str  #: name of the manager
    book: str  #: key of the journal

    def plan(self, entry: GridJobEntry) -> list[LocalJob]:
        """Plan the local jobs of a grid job.

        Raises:
            UnfitJob: The job can never run; the message is for the user.
        """
        handler, job = self._handler(entry), _job(entry)
        self.station.farm_of(entry)
        limits = self.station.limits.get(_type(entry), SiteLimits())
        number = call_handler(handler, lambda: _number(handler, job, limits))
        job = replace(job, number=number)
        sizes = call_handler(
            handler, lambda: [checked_command(handler.command(job, n)).size for n in range(1, number + 1)]
        )
        return [
            LocalJob(
                key=entry.key,
                number=n,
                stamp=records.stamp(self.manager, entry.key, n, 1, self.book),
                size=size,
            )
            for n, size in enumerate(sizes, 1)
        ]

    def piece(self, entry: GridJobEntry, n: int) -> Piece:
        """Command and files of local job `n`.

        Raises:
            UnfitJob: The handler fails to provide them.
        """
        handler, job = self._handler(entry), replace(_job(entry), number=entry.number or 0)
        files = call_handler(handler, lambda: checked_files(handler.prepare_work_area(job, n)))
        return Piece(
            command=call_handler(handler, lambda: checked_command(handler.command(job, n))), files=files
        )

    def _handler(self, entry: GridJobEntry) -> Handler:
        found = self.station.handlers.get(_type(entry))
        if found is None:
            known = ", ".join(sorted(self.station.handlers))
            raise UnfitJob(f"JobType: this gateway has no handler for {_type(entry)!r:.80}, only for {known}")
        return found


def _number(handler: Handler, job: HandledJob, limits: SiteLimits) -> int:
    handler.check(job)
    number = handler.number_of_jobs(job, limits)
    if not 1 <= number <= limits.max_local_jobs:
        raise UnfitJob(f"{number!r:.80} local jobs are not allowed, only 1 to {limits.max_local_jobs}")
    return number


def _type(entry: GridJobEntry) -> str:
    return job_type(entry.taken.description)


def _job(entry: GridJobEntry) -> HandledJob:
    return HandledJob(job_id=entry.taken.job_id, description=entry.taken.description)
