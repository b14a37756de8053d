"""A batch system that pretends: its jobs leave their marks without having run, when they are told to."""

import base64
import io
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pilotage.fabric.batch.batch_system import BatchJob, Capacity, Handle, JobReport, Output, State
from pilotage.fabric.pilot.payload import payload
from pilotage.fabric.runner import local_job
from pilotage.fabric.runner.local_job import JobSpec
from pilotage.fabric.runner.status_files import PAYLOAD, LocalJobEnd, StatusFiles

_ORDER = re.compile(r"\('order\.json', '''\n(.*?)'''\)", re.DOTALL)


class PretendedBatch:
    """It outlives managers, as a batch system does."""

    def __init__(self, directory: Path) -> None:
        self.submissions: Counter[str] = Counter()  #: by stamp
        self.executed: Counter[int] = Counter()  #: by number of the local job
        self.states: dict[str, State] = {}
        self._orders: dict[str, JobSpec] = {}
        self._directory = directory

    def submit(self, job: BatchJob) -> str:
        self.submissions[job.stamp] += 1
        self.states[job.stamp] = State.WAITING
        self._orders[job.stamp] = self._order(job)
        return str(len(self.states))

    def status(self, handles: Sequence[Handle]) -> Mapping[str, JobReport]:
        return {each.stamp: self._report(each.stamp) for each in handles}

    def find(self, stamps: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        return {stamp: (self._reference(stamp),) for stamp in stamps if stamp in self.states}

    def kill(self, handles: Sequence[Handle]) -> None:
        for each in handles:
            if self.states.get(each.stamp) in (State.WAITING, State.RUNNING):
                self.states[each.stamp] = State.KILLED

    def output(self, handle: Handle) -> Output:
        return Output(stdout=f"{handle.stamp}\n".encode(), stderr=b"")

    def forget(self, handles: Sequence[Handle]) -> None:
        for each in handles:
            self.states.pop(each.stamp, None)

    def capacity(self) -> Mapping[str, Capacity]:
        return {}

    def run(self, exit_code: int = 0) -> None:
        """Start what waits, and end what was started before."""
        for stamp, state in self.states.items():
            if state is State.RUNNING:
                self._leave_marks(self._orders[stamp], exit_code)
                self.states[stamp] = State.DONE if exit_code == 0 else State.FAILED
            elif state is State.WAITING:
                self.executed[self._orders[stamp].number] += 1
                self.states[stamp] = State.RUNNING

    def order_of(self, stamp: str) -> JobSpec:
        return self._orders[stamp]

    def _leave_marks(self, wanted: JobSpec, exit_code: int) -> None:
        marks = StatusFiles(Path(wanted.marks))
        archive = self._directory / "output"
        with tarfile.open(archive, "w:gz") as members:
            member = tarfile.TarInfo("std.out")
            member.size = 2
            members.addfile(member, io.BytesIO(b"ok"))
        marks.output(archive)
        done = payload.Report(payload.DONE, payload.COMPLETE, exit_code=0)
        marks.end(
            LocalJobEnd(
                PAYLOAD,
                done if exit_code == 0 else payload.failure_report(payload.ERRORS, f"exit code {exit_code}"),
            )
        )

    def _report(self, stamp: str) -> JobReport:
        if stamp not in self.states:
            return JobReport(state=State.MISSING)
        return JobReport(state=self.states[stamp], reference=self._reference(stamp))

    def _reference(self, stamp: str) -> str:
        return str(list(self.states).index(stamp) + 1)

    def _order(self, job: BatchJob) -> JobSpec:
        packed = _ORDER.search(job.script)
        assert packed is not None
        file = self._directory / "order.json"
        file.write_bytes(zlib.decompress(base64.b64decode(packed[1])))
        return local_job.read_spec(file)
