"""Splitting of a grid job into local jobs.

Their number, commands and files come from the handler of the job's type, which may be of any package.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pilotage.fabric.manager import grid_job, job_types
from pilotage.fabric.manager.context import ManagerContext
from pilotage.fabric.manager.grid_job import GridJobEntry, LocalJob, job_type
from pilotage.fabric.manager.job_types import HandledJob, Handler, LocalCommand, SiteLimits, UnfitJob


def split_grid_job(context: ManagerContext, entry: GridJobEntry) -> list[LocalJob]:
    """The local jobs of a grid job; `UnfitJob`, with a message for the user, if it can never run."""
    handler = _handler(context, entry)
    job = HandledJob(job_id=entry.taken.job_id, description=entry.taken.description)
    context.system_of(entry)
    limits = context.limits.get(job_type(job.description), SiteLimits())
    number = job_types.call_handler(handler, lambda: _check_and_count(handler, job, limits))
    job = replace(job, number=number)
    commands = job_types.call_handler(
        handler, lambda: [job_types.checked_command(handler.command(job, n)) for n in range(1, number + 1)]
    )
    manager, journal = context.options.name, context.journal.key
    return [
        LocalJob(
            key=entry.key,
            number=n,
            stamp=grid_job.stamp(manager, entry.key, n, 1, journal),
            size=command.size,
            details=dict(command.details),
        )
        for n, command in enumerate(commands, 1)
    ]


def _handler(context: ManagerContext, entry: GridJobEntry) -> Handler:
    name = job_type(entry.taken.description)
    found = context.handlers.get(name)
    if found is None:
        known = ", ".join(sorted(context.handlers))
        raise UnfitJob(f"JobType: this gateway has no handler for {name!r:.80}, only for {known}")
    return found


def _check_and_count(handler: Handler, job: HandledJob, limits: SiteLimits) -> int:
    handler.check(job)
    number = handler.number_of_jobs(job, limits)
    if not 1 <= number <= limits.max_local_jobs:
        raise UnfitJob(f"{number!r:.80} local jobs are not allowed, only 1 to {limits.max_local_jobs}")
    return number


def ask_handler(
    context: ManagerContext, entry: GridJobEntry, n: int
) -> tuple[LocalCommand, Mapping[str, bytes]]:
    """The command of the n-th local job and the files of its working directory."""
    handler, taken = _handler(context, entry), entry.taken
    job = HandledJob(job_id=taken.job_id, description=taken.description, number=entry.number or 0)
    files = job_types.call_handler(
        handler, lambda: job_types.checked_files(handler.prepare_work_area(job, n))
    )
    command = job_types.call_handler(handler, lambda: job_types.checked_command(handler.command(job, n)))
    return command, files


def describe_local_job(entry: GridJobEntry, job: LocalJob, command: LocalCommand) -> Mapping[str, Any]:
    """The description of the grid job with this local job's command."""
    stated = entry.taken.description
    own = stated.get("ExecutionEnvironment")
    numbers = {"LOCAL_JOB": str(job.number), "LOCAL_JOBS": str(entry.number)}
    return {
        **stated,
        "Executable": command.words[0],
        "Arguments": list(command.words[1:]),
        "ExecutionEnvironment": {
            **(own if isinstance(own, Mapping) else {}),
            **numbers,
            **command.environment,
        },
    }
