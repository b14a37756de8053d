"""Snakemake's jobs as jobs of Pilotage.

Source: the interface of Snakemake 9 for executors, snakemake-interface-executor-plugins.
"""

import json
import shlex
import shutil
import tarfile
import tempfile
import uuid
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Optional

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import (
    CommonSettings,
    ExecutorSettingsBase,
    SharedFSUsage,
)

from pilotage import Client, JobRecord, PilotageError, ServiceAway
from snakemake_executor_plugin_pilotage.unpacking import unpack

#: Final states of jobs, as a filter.
_ENDED: Final = "Done,Failed,Killed,Deleted"
#: Keywords of a job, by what rules call the resource.
_RESOURCES: Final = {"mem_mb": "MinRAM", "gpu": "GPUs", "gpus": "GPUs"}
#: Resource of a rule with further keywords, as a JSON object.
_KEYWORDS: Final = "pilotage"
_INPUTS, _OUTPUTS = "inputs.tar", "outputs.tar"
#: Where outputs of jobs are unpacked, in the directory of the workflow.
_FETCHED: Final = Path(".snakemake/pilotage")
#: A job that has ended is seen by a list so much later, at most.
_MARGIN: Final = timedelta(minutes=10)


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Options of the command line, each with the prefix `--pilotage-`."""

    url: Optional[str] = field(  # noqa: UP045  (as Snakemake reads it)
        default=None, metadata={"help": "Address of the service (default: PILOTAGE_URL, or `pilotage up`)."}
    )
    keywords: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={"help": 'Keywords of all jobs as a JSON object, such as \'{"VO": "cms"}\'.'},
    )


common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_envvar_declarations_to_cmd=True,
    auto_deploy_default_storage_provider=False,
    can_transfer_local_files=True,
)


class Executor(RemoteExecutor):
    """Submits jobs, and watches them by one request for all."""

    def __post_init__(self) -> None:
        """Connect to the service; no request is sent yet."""
        settings = self.workflow.executor_settings
        self._keywords = _read_keywords(settings.keywords, "--pilotage-keywords")
        self._group = f"snakemake-{uuid.uuid4().hex[:12]}"  # of this run
        self._last_end: datetime | None = None  #: of the jobs seen, by the clock of the service
        self._client = Client(settings.url)
        shared = self.workflow.storage_settings.shared_fs_usage
        self._is_shared = SharedFSUsage.INPUT_OUTPUT in shared
        self.logger.info(f"Jobs of Pilotage: pilotage job list --group {self._group}")

    def run_job(self, job: JobExecutorInterface) -> None:
        """Submit a job with the script that Snakemake wrote for it."""
        script = Path(self.get_jobscript(job))
        self.write_jobscript(job, script)
        try:
            with self._describe(job, script) as description:
                submitted = self._client.submit(description)
        except PilotageError as error:
            return self.report_job_error(SubmittedJobInfo(job), msg=f"It was not submitted: {error}. ")
        for warning in submitted.warnings:
            self.logger.warning(f"Job {submitted[0]} of Pilotage: {warning}")
        return self.report_job_submission(SubmittedJobInfo(job, external_jobid=str(submitted[0])))

    @contextmanager
    def _describe(self, job: JobExecutorInterface, script: Path) -> Iterator[dict[str, Any]]:
        """The description of a job, while the files of its input sandbox exist."""
        description: dict[str, Any] = {
            "JobName": self.get_jobname(job),
            "NumberOfProcessors": max(1, job.threads),
            **{keyword: _count(job, name) for name, keyword in _RESOURCES.items() if _count(job, name)},
            **self._keywords,
            **_read_keywords(job.resources.get(_KEYWORDS), f"resource {_KEYWORDS}"),
            "JobGroup": self._group,
        }
        if minutes := _count(job, "runtime"):
            description.setdefault("MaxWallClockTime", 60 * minutes)
        if self._is_shared:
            yield {**description, "Executable": "/bin/sh", "Arguments": [str(script)]}
            return
        with tempfile.TemporaryDirectory() as directory:
            program = Path(directory, "job.sh")
            program.write_text(_wrap(script.read_text(), self._list_products(job)))
            with tarfile.open(Path(directory, _INPUTS), "w", dereference=True) as archive:
                for name in self._list_needed(job):
                    archive.add(name)
            yield {
                **description,
                "Executable": program.name,
                "InputSandbox": [str(program), str(Path(directory, _INPUTS))],
                "OutputSandbox": [_OUTPUTS],
            }

    def _list_needed(self, job: JobExecutorInterface) -> list[str]:
        """The workflow itself, and the input files of a job, below the directory of the workflow."""
        names = {*self.dag.get_sources(), *map(str, filter(_is_local, job.input))}
        if outside := sorted(each for each in names if Path(each).is_absolute() or ".." in Path(each).parts):
            raise WorkflowError(
                f"{', '.join(outside)}: without a shared file system all files have to be below the "
                "directory of the workflow, with relative names"
            )
        return sorted(each for each in names if Path(each).exists())

    def _list_products(self, job: JobExecutorInterface) -> list[str]:
        """All that a job writes; of a group also what its members hand to each other."""
        files: list[str] = []
        for member in job.jobs if job.is_group() else [job]:
            benchmark = [member.benchmark] if member.benchmark else []
            files += map(str, (*filter(_is_local, member.output), *member.log, *benchmark))
        return list(dict.fromkeys(files))

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Report the jobs that have ended, and yield the others; a service that is away is waited for."""
        ended: dict[str, JobRecord] = {}
        if active_jobs:
            async with self.status_rate_limiter:
                ended = self._find_ended()
        for info in active_jobs:
            record = ended.get(info.external_jobid or "")
            if record is None or not self._report_end(info, record):
                yield info

    def _find_ended(self) -> dict[str, JobRecord]:
        """The jobs that have ended, by their ids, but for those that ended long before others seen."""
        since = {} if self._last_end is None else {"updated_since": (self._last_end - _MARGIN).isoformat()}
        try:
            found = list(self._client.jobs(job_group=self._group, status=_ENDED, **since))
        except ServiceAway as error:
            self.logger.debug(f"{error}; tried again")
            return {}
        except PilotageError as error:
            raise WorkflowError(f"{error}; jobs go on: run Snakemake again to watch them") from error
        ends = [each.ended_at for each in found if each.ended_at is not None]
        self._last_end = max(ends, default=self._last_end)
        return {str(each.id): each for each in found}

    def _report_end(self, info: SubmittedJobInfo, record: JobRecord) -> bool:
        """Report a job that has ended; False: the service is away, and has its output."""
        is_done = record.status == "Done"
        try:
            log = self._fetch(record) if not self._is_shared or not is_done else None
        except ServiceAway as error:
            self.logger.debug(f"{error}; tried again")
            return False
        except (PilotageError, OSError, tarfile.TarError) as error:
            if is_done:
                self.report_job_error(info, msg=f"The output of job {record.id} is missing: {error}. ")
                return True
            log = None
        if is_done:
            self.report_job_success(info)
            return True
        reasons = (record.minor_status, record.application_status)
        reason = ", ".join(filter(None, (record.status, *reasons)))
        logs = {} if log is None else {"aux_logs": [str(log)]}
        self.report_job_error(info, msg=f"Job {record.id} of Pilotage: {reason}. ", **logs)
        return True

    def _fetch(self, record: JobRecord) -> Path | None:
        """Unpack the output of a job in the directory of the workflow; the file with its messages."""
        place = _FETCHED / str(record.id)
        shutil.rmtree(place, ignore_errors=True)  # of an attempt that was broken off
        files = {file.name: file for file in self._client.output(record.id, _FETCHED)}
        if _OUTPUTS in files:
            unpack(files[_OUTPUTS])
            files[_OUTPUTS].unlink()
        return files.get("std.err")

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Kill the jobs of a workflow that is cancelled."""
        ids = [int(each.external_jobid) for each in active_jobs if each.external_jobid]
        try:
            self._client.kill(*ids)
        except PilotageError as error:
            self.logger.warning(f"{error}; by hand: pilotage job kill --group {self._group}")

    def get_job_exec_prefix(self, job: JobExecutorInterface) -> str:
        """Shared files are those of the workflow's directory."""
        del job
        return f"cd {shlex.quote(self.workflow.workdir_init)}" if self._is_shared else ""


def _is_local(file: object) -> bool:
    """Whether a file is not in a storage that jobs reach by themselves."""
    return not getattr(file, "is_storage", False)


def _count(job: JobExecutorInterface, resource: str) -> int:
    value = job.resources.get(resource)
    return value if isinstance(value, int) and value > 0 else 0


def _read_keywords(text: object, where: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        found = json.loads(str(text))
    except ValueError as error:
        raise WorkflowError(f"{where}: {error}") from error
    if not isinstance(found, dict):
        raise WorkflowError(f"{where}: {text!r:.80} is no JSON object")
    return found


def _wrap(script: str, products: Iterable[str]) -> str:
    """A program that unpacks the input, runs the job, and packs what there is of its products."""
    names = " ".join(map(shlex.quote, products))
    return f"""#!/bin/sh
tar -xf {_INPUTS} && rm {_INPUTS} || exit
cat >.job.sh <<'END OF JOB'
{script}
END OF JOB
sh .job.sh
status=$?
set --
for each in {names}
do test -e "$each" && set -- "$@" "$each"
done
test $# -eq 0 || tar -cf {_OUTPUTS} "$@" || exit
exit $status
"""
