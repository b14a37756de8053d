"""Parsl's blocks, in which its workers run, as jobs of Pilotage.

Source: the interface of Parsl for providers, `parsl.providers.base.ExecutionProvider`.
"""

import logging
import os
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from parsl.jobs.states import JobState, JobStatus
from parsl.launchers import SimpleLauncher
from parsl.launchers.base import Launcher
from parsl.providers.base import ExecutionProvider
from parsl.providers.errors import SubmitException
from parsl.utils import RepresentationMixin

from pilotage import Client, JobRecord, PilotageError, ServiceAway

_logger = logging.getLogger(__name__)
#: States of blocks by the status of their jobs.
_STATES: Final[Mapping[str, JobState]] = {
    **dict.fromkeys(("Received", "Checking", "Waiting", "Matched", "Rescheduled"), JobState.PENDING),
    **dict.fromkeys(("Running", "Stalled", "Completed"), JobState.RUNNING),
    **dict.fromkeys(("Killed", "Deleted"), JobState.CANCELLED),
    "Done": JobState.COMPLETED,
    "Failed": JobState.FAILED,
}
#: Changes that are read again, before the last one seen: longer than a transaction of the service takes.
_MARGIN: Final = timedelta(minutes=2)
#: Minor statuses that are no failure for Parsl, which starts another block.
_HELD, _TIME_IS_UP = "Held", "wall clock time"


class PilotageProvider(ExecutionProvider, RepresentationMixin):
    """Starts each block as a job; one that its pilot loses is started again by the service.

    Workers connect to the executor: its address has to be reached from worker nodes, which need Parsl.

    Args:
        url: Address of the service (default: PILOTAGE_URL, or `pilotage up`).
        keywords: Of the jobs, such as `{"VO": "cms", "MinRAM": 4000, "Image": "…"}`.
        walltime: `HH:MM:SS` after which a block is ended; None: as the queue allows.
        worker_init: Commands before the workers start.
        cores_per_node: Processors of a job; the workers of a block share them.
        mem_per_node: GB of memory of a job.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        keywords: Mapping[str, Any] | None = None,
        walltime: str | None = None,
        worker_init: str = "",
        cores_per_node: int | None = None,
        mem_per_node: float | None = None,
        init_blocks: int = 1,
        min_blocks: int = 0,
        max_blocks: int = 10,
        parallelism: float = 1,
        launcher: Launcher | None = None,
    ) -> None:
        self.url, self.keywords, self.walltime = url, dict(keywords or {}), walltime
        self.worker_init, self.launcher = worker_init, launcher or SimpleLauncher()
        self.cores_per_node, self.mem_per_node = cores_per_node, mem_per_node
        self.init_blocks, self.min_blocks, self.max_blocks = init_blocks, min_blocks, max_blocks
        self.parallelism = parallelism
        self.nodes_per_block = 1
        self.script_dir: str | None = None
        self.resources: dict[object, Any] = {}
        self._group = f"parsl-{uuid.uuid4().hex[:12]}"
        self._client = Client(url)
        self._last: datetime | None = None  #: of the changes that were seen

    @property
    def label(self) -> str:
        """The name of the provider."""
        return "pilotage"

    @property
    def status_polling_interval(self) -> int:
        """Seconds between two requests for statuses."""
        return 5

    def submit(self, command: str, tasks_per_node: int, job_name: str = "parsl.auto") -> str:
        """Submit a block; its job's id.

        Raises:
            SubmitException: It was refused, or the service is away for a minute.
        """
        with tempfile.TemporaryDirectory() as directory:
            script = Path(directory, "block.sh")
            started = self.launcher(command, tasks_per_node, self.nodes_per_block)
            script.write_text(
                "\n".join(("#!/bin/bash", *self._list_variables(), self.worker_init, started, ""))
            )
            try:
                submitted = self._client.submit(self._describe(script, job_name))
            except PilotageError as error:
                raise SubmitException(job_name, str(error)) from error
        for warning in submitted.warnings:
            _logger.warning("job %s: %s", submitted[0], warning)
        job_id = str(submitted[0])
        self.resources[job_id] = {"job_id": job_id, "status": JobStatus(JobState.PENDING)}
        return job_id

    def _list_variables(self) -> list[str]:
        """What Parsl's workers read of their node."""
        named = {"PARSL_CORES": self.cores_per_node, "PARSL_MEMORY_GB": self.mem_per_node}
        return [f"export {name}={value}" for name, value in named.items() if value is not None]

    def _describe(self, script: Path, job_name: str) -> dict[str, Any]:
        described: dict[str, Any] = {"JobName": job_name, **self.keywords}
        if self.cores_per_node is not None:
            described["NumberOfProcessors"] = self.cores_per_node
        if self.mem_per_node is not None:
            described["MinRAM"] = int(self.mem_per_node * 1000)
        if self.walltime is not None:
            hours, minutes, seconds = map(int, self.walltime.split(":"))
            described["MaxWallClockTime"] = (hours * 60 + minutes) * 60 + seconds
        files = {"Executable": script.name, "InputSandbox": [os.fspath(script)]}
        return {**described, **files, "JobGroup": self._group}

    def status(self, job_ids: Sequence[object]) -> list[JobStatus]:
        """The states of blocks; as before while the service is away."""
        if any(not self.resources[str(each)]["status"].terminal for each in job_ids):
            with suppress(ServiceAway):
                self._read_changes()
        return [self.resources[str(each)]["status"] for each in job_ids]

    def _read_changes(self) -> None:
        """Read the blocks that changed since the last change seen, or all at first.

        Changes may be visible in another order than that of their times: some are read again. What a broken
        list leaves out is read the next time, since only a whole one counts.
        """
        since = {} if self._last is None else {"updated_since": (self._last - _MARGIN).isoformat()}
        found = list(self._client.jobs(job_group=self._group, **since))
        for record in found:
            if (block := self.resources.get(str(record.id))) is not None and not block["status"].terminal:
                block["status"] = _read_status(record)
        times = [datetime.fromisoformat(each.fields["updated_at"]) for each in found]
        self._last = max(times, default=self._last)

    def cancel(self, job_ids: Sequence[object]) -> list[bool]:
        """Kill blocks; whether each is one that had not ended."""
        try:
            killed = self._client.kill(*map(int, map(str, job_ids)))
        except PilotageError:
            return [False] * len(job_ids)
        for job_id in killed:
            self.resources[str(job_id)]["status"] = JobStatus(JobState.CANCELLED)
        return [int(str(each)) in killed for each in job_ids]


def _read_status(record: JobRecord) -> JobStatus:
    reason = ", ".join(filter(None, (record.minor_status, record.application_status)))
    state = _STATES.get(record.status, JobState.UNKNOWN)
    if record.minor_status == _HELD:
        state = JobState.HELD
    elif state is JobState.FAILED and _TIME_IS_UP in record.minor_status:
        state = JobState.TIMEOUT
    return JobStatus(state, message=f"job {record.id}: {reason}", exit_code=record.exit_code)
