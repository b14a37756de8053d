"""The output of a grid job: one tar of what its local jobs left, file names suffixed with their numbers.

Some local jobs' outputs are fetched in each round; what was fetched stays, so a manager that was killed goes
on. Every archive is unpacked as one that somebody hostile sent, and packed as if he had left the files.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from pilotage.fabric.batch.errors import BatchSystemAway
from pilotage.fabric.manager import outcome
from pilotage.fabric.manager.book import Book
from pilotage.fabric.manager.gathered import LOG, TABLE, Gathered
from pilotage.fabric.manager.grid_job import LocalState
from pilotage.fabric.manager.records import Entry, LocalJob
from pilotage.fabric.manager.shared_area import SharedArea
from pilotage.fabric.manager.station import Farm, Habits
from pilotage.fabric.pilot import delivery

#: Bytes of what a batch job wrote itself, where it left no output.
_LAST_WORDS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering:
    """Fetches, and puts together."""

    habits: Habits
    book: Book
    clock: Callable[[], datetime]

    def begin(self, entry: Entry) -> None:
        """Note that a grid job may gather from now on."""
        log = ["all local jobs have ended: gathering their output"]
        self.book.write(entry.key, now=self.clock(), entry=replace(entry, gathering=True), log=log)

    def advance(self, entry: Entry, farm: Farm, area: SharedArea) -> None:
        """Fetch some outputs; when all are there, pack them, and say how the grid job ended.

        Raises:
            BatchSystemAway: They cannot be read now.
            OSError: There is no room for them.
        """
        if not area.is_there and not entry.cancelled:
            raise BatchSystemAway(f"{area.directory}: cannot be seen; the output of local jobs is there")
        jobs = self.book.local_jobs(entry.key)
        place = self._place(entry)
        wanted = [each for each in jobs if each.was_submitted and not place.has(each)]
        for job in wanted[: self.habits.at_once]:
            self._fetch(job, farm, area, place)
        if len(wanted) <= self.habits.at_once:
            self._finish(entry, place)

    def remove(self, entry: Entry) -> None:
        """Remove what was gathered."""
        self._place(entry).remove()

    def _place(self, entry: Entry) -> Gathered:
        directory = self.habits.directory / "outputs" / entry.taken.name
        return Gathered(directory=directory, limit=self.habits.local_output_limit)

    def _fetch(self, job: LocalJob, farm: Farm, area: SharedArea, place: Gathered) -> None:
        archive = area.output(job, limit=self.habits.local_output_limit)
        log = place.add_archive(job, archive) if archive else place.add_files(job, _last_words(job, farm))
        if log:
            # A job that is done, and whose output is not here, is not as done as it should be.
            lacking = [replace(job, message=log[0])] if job.state is LocalState.DONE else []
            self.book.write(job.key, now=self.clock(), local_jobs=lacking, log=log)

    def _finish(self, entry: Entry, place: Gathered) -> None:
        jobs = self.book.local_jobs(entry.key)
        said = outcome.of(entry, jobs)
        place.write(LOG, self.book.log(entry.key).encode())
        place.write(TABLE, outcome.table(jobs))
        packed = place.pack(self.habits.output_limit)
        ended = replace(entry, output=str(place.archive), outcome=delivery.with_shortcomings(said, packed))
        log = [f"{said.minor_status}: {said.application_status}; output of {packed.files} files"]
        self.book.write(entry.key, now=self.clock(), entry=ended, log=log)
        place.clear()


def _last_words(job: LocalJob, farm: Farm) -> dict[str, bytes]:
    """What there is of a local job that left no output."""
    wrote = farm.system.output(job.handle)
    found = {
        "batch.out": wrote.stdout[-_LAST_WORDS:],
        "batch.err": wrote.stderr[-_LAST_WORDS:],
        "tail": job.tail.encode(),
    }
    return {name: content for name, content in found.items() if content}
