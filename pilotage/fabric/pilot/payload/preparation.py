"""Preparation of a job: its sandbox, its program, its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from pilotage.fabric.pilot.allotment import DEVICES, OTHER_DEVICES, Allotment
from pilotage.fabric.pilot.node.gpus import are_withheld
from pilotage.fabric.pilot.payload import archives, container, description, payload
from pilotage.fabric.pilot.payload.container import UnfitImage
from pilotage.fabric.pilot.payload.description import PayloadDescription, UnfitDescription
from pilotage.fabric.pilot.payload.isolation import Isolation
from pilotage.fabric.pilot.payload.payload import Report
from pilotage.fabric.pilot.payload.work_area import WorkArea
from pilotage.fabric.pilot.service.service_client import Match
from pilotage.fabric.pilot.service.transport import TooLarge
from pilotage.fabric.pilot.settings import PayloadOptions, QueuePlace

#: Variables of the pilot that are passed on: the system's, none that could be a secret.
_PASSED_ON = ("PATH", "LANG", "LANGUAGE", "TZ", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH")
_PASSED_ON_PREFIXES = ("LC_",)
#: Of these, what says where programs and libraries of this host are: containers have their own.
_OF_HOST = frozenset({"PATH", "LD_LIBRARY_PATH", "SHELL"})
#: Prefix of variables that are never passed on, even by --pass-env.
_OURS = "PILOTAGE_"
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


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
    cpus: tuple[int, ...] = ()  #: of the kernel, to which it is bound; none: all of the slot's
    is_contained: bool = False  #: whether it runs in a container


class Sandboxes(Protocol):
    """Source of input sandboxes: usually the service."""

    def fetch_sandbox(self, lease: str, to: BinaryIO, *, limit: int) -> bool:
        """Write the input sandbox of an attempt to a file; False if its job has none.

        Raises `Away`, `Refused`, or `TooLarge` if it has more than `limit` bytes.
        """
        ...


@dataclass(frozen=True)
class Preparer:
    """Prepares the jobs of one pilot."""

    service: Sandboxes
    payload_options: PayloadOptions
    place: QueuePlace
    whole: Allotment  #: the slot
    environment: Mapping[str, str]  #: the pilot's own

    def prepare(self, match: Match, area: WorkArea, share: Allotment) -> Prepared:
        """Fill the work area of a job, which may use a share of the slot.

        Raises:
            CannotRun: The job is to blame.
            Away, Refused: The input sandbox could not be fetched.
            OSError: This host is to blame.
        """
        try:
            asked = description.read_description(match.description)
            self._unpack_sandbox(match, asked, area)
            isolation = self._isolate(asked, area, share)
            on_host = isolation.has_programs_of_host
            variables = self.build_environment(match.job_id, area, share, asked.environment, on_host=on_host)
            program = description.find_program(
                asked.executable, home=area.home, environment=variables, on_host=on_host
            )
        except UnfitDescription as error:
            raise CannotRun(payload.failure_report(payload.UNFIT, str(error))) from None
        except description.NotFound as error:
            raise CannotRun(payload.failure_report(payload.NOT_FOUND, str(error))) from None
        except UnfitImage as error:
            raise CannotRun(payload.failure_report(payload.NO_IMAGE, str(error))) from None
        words = (program, *asked.arguments)
        wrapped = isolation.wrapped(words, variables, self.environment, area)
        return Prepared(asked, *wrapped, cpus=share.cpus, is_contained=not on_host)

    def _isolate(self, asked: PayloadDescription, area: WorkArea, share: Allotment) -> Isolation:
        """The isolation of this payload: that of all, or a container of its own image."""
        site = self.payload_options.isolation
        if not asked.image:
            return site
        return container.choose_container(asked.image, area, site, gpus=share.gpus, own=self.environment)

    def _unpack_sandbox(self, match: Match, asked: PayloadDescription, area: WorkArea) -> None:
        limit = self.payload_options.sandbox_limit
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

    def build_environment(
        self,
        job_id: int,
        area: WorkArea,
        share: Allotment,
        stated: Mapping[str, str],
        *,
        on_host: bool = True,
    ) -> dict[str, str]:
        """The variables of one payload, named as in DIRAC where jobs rely on them.

        They are built from an allowlist, so that no variable of the pilot leaks. `stated` is the job's
        ExecutionEnvironment, which replaces none of ours. One that is not `on_host` is in a container.
        """
        wanted = {*_PASSED_ON} - (set() if on_host else _OF_HOST) | {*self.payload_options.passed_on}
        kept = {
            name: value
            for name, value in self.environment.items()
            if (name in wanted or name.startswith(_PASSED_ON_PREFIXES)) and not name.startswith(_OURS)
        }
        ours = {
            "HOME": str(area.home),
            "PWD": str(area.home),
            "TMPDIR": str(area.scratch),
            "JOBID": str(job_id),
            "DIRACSITE": self.place.site,
            "DIRAC_CE": self.place.ce,
            "DIRAC_QUEUE": self.place.queue,
            "DIRAC_PROCESSORS": str(self.whole.processors),
            "DIRAC_JOB_PROCESSORS": str(share.processors),
            "DIRAC_WHOLENODE": str(share.whole_node),
            "PILOTAGE_JOB_GPUS": str(len(share.gpus)),
            # The last line that it writes there is its progress.
            "PILOTAGE_PROGRESS_FILE": str(area.progress),
        }
        if share.ram_mb is not None:
            ours["PILOTAGE_JOB_RAM"] = str(share.ram_mb)
        if self.whole.gpus or are_withheld(self.environment):  # else they are unknown
            ours |= dict.fromkeys((DEVICES, *OTHER_DEVICES), ",".join(share.gpus))
        settable = {name: value for name, value in stated.items() if name not in ours}
        path = {"PATH": DEFAULT_PATH} if on_host else {}
        return {**path, **kept, **ours, **settable}
