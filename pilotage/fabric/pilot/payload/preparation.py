"""Preparation of a job: its sandbox, its program, its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from pilotage.fabric.pilot.allotment import Allotment
from pilotage.fabric.pilot.payload import archives, description, environment, payload
from pilotage.fabric.pilot.payload.description import PayloadDescription, UnfitDescription
from pilotage.fabric.pilot.payload.payload import Report
from pilotage.fabric.pilot.payload.work_area import WorkArea
from pilotage.fabric.pilot.service.service_client import Match
from pilotage.fabric.pilot.service.transport import TooLarge
from pilotage.fabric.pilot.settings import PayloadOptions, QueuePlace


class CannotRun(Exception):
    """The job would fail on every host; `report` has the reason."""

    def __init__(self, why: Report) -> None:
        super().__init__(f"{why.minor_status}: {why.application_status}")
        self.report = why


@dataclass(frozen=True)
class Prepared:
    """A job ready to start."""

    description: PayloadDescription
    words: tuple[str, ...]  #: the command, including the isolation's wrapper
    environment: Mapping[str, str]  #: of that command


class Sandboxes(Protocol):
    """Source of input sandboxes: usually the service."""

    def fetch_sandbox(self, lease: str, to: BinaryIO, *, limit: int) -> bool:
        """Write the input sandbox of an attempt to a file; False if its job has none.

        Raises:
            Away: The service does not respond; retry later.
            Refused: The service does not send it.
            TooLarge: It has more than `limit` bytes.
        """
        ...


@dataclass(frozen=True)
class Preparer:
    """Prepares the jobs of one pilot."""

    service: Sandboxes
    care: PayloadOptions
    place: QueuePlace
    whole: Allotment  #: the slot
    environment: Mapping[str, str]  #: the pilot's own

    def prepare(self, match: Match, area: WorkArea, share: Allotment) -> Prepared:
        """Fill the work area of a job.

        Args:
            match: The job.
            area: Its work area.
            share: Part of the slot that it may use.

        Raises:
            CannotRun: The job is to blame.
            Away, Refused: The input sandbox could not be fetched.
            OSError: This host is to blame.
        """
        try:
            asked = description.read_description(match.description)
            self._unpack_sandbox(match, asked, area)
            variables = self._environment(match, asked, area, share)
            program = description.find_program(
                asked.executable,
                home=area.home,
                environment=variables,
                on_host=self.care.isolation.has_programs_of_host,
            )
        except UnfitDescription as error:
            raise CannotRun(payload.failure_report(payload.UNFIT, str(error))) from None
        except description.NotFound as error:
            raise CannotRun(payload.failure_report(payload.NOT_FOUND, str(error))) from None
        words = (program, *asked.arguments)
        return Prepared(asked, *self.care.isolation.wrapped(words, variables, self.environment, area))

    def _unpack_sandbox(self, match: Match, asked: PayloadDescription, area: WorkArea) -> None:
        limit = self.care.sandbox_limit
        try:
            with area.sandbox.open("w+b") as archive:
                found = self.service.fetch_sandbox(match.lease, archive, limit=limit)
                if found:
                    archives.unpack(archive, area.home, limit=limit)
            area.sandbox.unlink()
        except (TooLarge, archives.UnsafeArchive) as error:
            raise CannotRun(payload.failure_report(payload.NO_SANDBOX, f"the archive {error}")) from None
        if not found and asked.input_files:
            raise CannotRun(payload.failure_report(payload.NO_SANDBOX, "the service has it no more"))

    def _environment(
        self, match: Match, asked: PayloadDescription, area: WorkArea, share: Allotment
    ) -> dict[str, str]:
        return environment.payload_environment(
            self.environment,
            job_id=match.job_id,
            place=self.place,
            whole=self.whole,
            share=share,
            home=area.home,
            scratch=area.scratch,
            progress=area.progress,
            stated=asked.environment,
            passed_on=self.care.passed_on,
        )
