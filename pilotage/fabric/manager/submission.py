"""Submission of the local jobs of a grid job: plan, pack one archive, submit each in two phases.

The journal records the stamp of a local job before its submission, and the reference afterwards. If a
submission was interrupted in between, the job is searched by its stamp (`polling`), and submitted again only
after the batch system has reported for long enough that it has no such job. It keeps its stamp then, so that
of two batch jobs, should the first one appear after all, only one starts.

The script of a local job contains its job spec and fetches the archive.
"""

import hashlib
import shlex
import tempfile
from collections.abc import Callable
from dataclasses import replace

from pilotage.fabric import bundle
from pilotage.fabric.batch.batch_system import BatchJob, SubmissionRefused, SubmissionUncertain
from pilotage.fabric.batch.shell import NoAnswer
from pilotage.fabric.manager import polling
from pilotage.fabric.manager.context import ManagerContext
from pilotage.fabric.manager.grid_job import GridJobEntry, LocalJob, LocalState
from pilotage.fabric.manager.job_types import UnfitJob
from pilotage.fabric.manager.splitting import ask_handler, describe_local_job, split_grid_job
from pilotage.fabric.node_script import NodeScript
from pilotage.fabric.pilot.attempt import RELEASED
from pilotage.fabric.pilot.payload import payload
from pilotage.fabric.pilot.payload.payload import Report
from pilotage.fabric.pilot.service.heartbeat import elapsed_time
from pilotage.fabric.pilot.service.transport import TooLarge
from pilotage.fabric.runner.local_job import JobSpec
from pilotage.fabric.runner.status_files import SITE
from requirements.errors import format_count

#: All VOs' jobs run as one account and could change the archive; the batch system protects the script.
_FETCH = """\
cp {archive} "$area/job.pyz" && {{
  [ "$(sha256sum <"$area/job.pyz")" = "{digest}  -" ] ||
  {{ echo "local-job: "{archive}" was changed since this job was submitted" >&2; false; }}
}}"""


def submit_local_jobs(
    context: ManagerContext, entry: GridJobEntry, is_time_left: Callable[[], bool] = lambda: True
) -> None:
    """Plan and pack a grid job if that is not done yet, and submit some of its local jobs.

    What raises holds it up until the next cycle: a batch system or a service that is away, no space here or
    there. After `NoAnswer` the interrupted submission is searched.
    """
    try:
        if not is_time_left():
            return
        if entry.number is None:
            entry = _plan(context, entry)
        jobs = context.journal.local_jobs(entry.key)
        waiting = [each for each in jobs if each.state is LocalState.UNSUBMITTED]
        if entry.digest is None or (waiting and context.area_of(entry).lacks_archive):
            entry = _pack(context, entry)
        for job in waiting[: context.options.max_jobs_per_cycle]:
            if not is_time_left() or not _submit(context, entry, job):
                return
    except UnfitJob as error:
        _fail(context, entry, payload.failure_report(payload.UNFIT, str(error)))
    except TooLarge as error:
        _fail(context, entry, payload.failure_report(payload.NO_SANDBOX, f"the archive {error}"))


def _plan(context: ManagerContext, entry: GridJobEntry) -> GridJobEntry:
    jobs = split_grid_job(context, entry)
    planned = replace(entry, number=len(jobs))
    count = format_count(len(jobs), "local job")
    log = [f"to be {count} of {entry.taken.queue}, {_requested(context, planned)}"]
    context.journal.write(entry.key, entry=planned, local_jobs=jobs, log=log)
    return planned


def _requested(context: ManagerContext, entry: GridJobEntry) -> str:
    """Resources that each local job requests, as text for the log."""
    asked = context.resources_of(entry)
    words = [format_count(asked.cores, "core")]
    words += [f"{asked.memory} MB"] if asked.memory else []
    words += [f"{asked.wall_time} s"] if asked.wall_time else []
    words += [format_count(asked.gpus, "GPU")] if asked.gpus else []
    return f"each with {', '.join([*words, *entry.taken.flags])}"


def _pack(context: ManagerContext, entry: GridJobEntry) -> GridJobEntry:
    archive, area = _archive(context, entry), context.area_of(entry)
    area.put_archive(archive)
    packed = replace(entry, digest=hashlib.sha256(archive).hexdigest())
    log = [f"archive of {len(archive)} bytes at {area.archive}"]
    context.journal.write(entry.key, entry=packed, log=log)
    return packed


def _archive(context: ManagerContext, entry: GridJobEntry) -> bytes:
    with tempfile.TemporaryFile(dir=context.options.directory) as sandbox:
        limit = context.options.sandbox_limit
        found = context.sandboxes.fetch_sandbox(entry.taken.lease, sandbox, limit=limit)
        return bundle.local_job_bundle(sandbox if found else None)


def _submit(context: ManagerContext, entry: GridJobEntry, job: LocalJob) -> bool:
    """Submit a local job; False: the batch system accepts no more now, `SubmissionRefused`: it refuses it."""
    batch_job = _batch_job(context, entry, job)
    intended = replace(job, state=LocalState.INTENDED)
    context.journal.write(job.key, local_jobs=[intended])
    shared = context.system_of(entry)
    try:
        reference = shared.measured.measure_submission(lambda: shared.system.submit(batch_job))
    except SubmissionRefused as error:
        if found := shared.system.find([job.stamp]).get(job.stamp):
            # What a command printed is no proof: a second try would run the job twice.
            adopted = replace(intended, state=LocalState.WAITING, reference=found[0], was_submitted=True)
            log = [f"local job {job.number}: refused, but there as {found[0]}: {error}"]
            context.journal.write(job.key, local_jobs=[adopted], log=log)
            return False
        said = Report("Failed", "", str(error))
        failed, line = polling.retry_or_give_up(intended, SITE, said, entry, context.options.retries)
        context.journal.write(job.key, local_jobs=[failed], log=[line])
        if failed.state is LocalState.FAILED:
            _give_back(context, entry, failed.message)
        raise
    except SubmissionUncertain as error:
        raise NoAnswer(str(error)) from error
    context.refused_at.pop(entry.taken.queue_and_vo, None)
    submitted = replace(intended, state=LocalState.WAITING, reference=reference, was_submitted=True)
    log = [f"local job {job.number}: submitted as {reference}, {job.stamp}"]
    context.journal.write(job.key, local_jobs=[submitted], log=log)
    return True


def _give_back(context: ManagerContext, entry: GridJobEntry, why: str) -> None:
    """Return a grid job of which the batch system has taken no local job.

    It may be the site's fault or the job's: the job is rescheduled as often as any other, and its VO gets no
    other one here for a while.
    """
    jobs = context.journal.local_jobs(entry.key)
    if any(each.was_submitted or each.state is LocalState.INTENDED for each in jobs):
        return
    context.refused_at[entry.taken.queue_and_vo] = elapsed_time()
    reason = f"the batch system of {entry.taken.queue} refuses its local jobs: {why}"
    failed = [replace(each, state=LocalState.FAILED) for each in jobs]
    ended = replace(entry, outcome=Report(RELEASED, "", reason))
    context.journal.write(entry.key, entry=ended, local_jobs=failed, log=[f"given back: {reason}"])


def _batch_job(context: ManagerContext, entry: GridJobEntry, job: LocalJob) -> BatchJob:
    queue, area = context.queues[entry.taken.queue], context.area_of(entry)
    return BatchJob(
        stamp=job.stamp,
        script=script_text(entry, job, context),
        queue=queue.batch_queue,
        resources=context.resources_of(entry),
        flags=(*queue.flags, *entry.taken.flags),
        about={
            "VO": entry.taken.vo,
            **({"Owner": entry.taken.owner} if entry.taken.owner else {}),
            "Job": str(entry.taken.job_id),
            "LocalJob": str(job.number),
        },
        inputs=area.files_to_carry(),
        outputs=area.files_to_keep,
    )


def script_text(entry: GridJobEntry, job: LocalJob, context: ManagerContext) -> str:
    """Generate the script of one try of a local job."""
    area, resources, options = context.area_of(entry), context.resources_of(entry), context.options
    command, files = ask_handler(context, entry, job.number)
    site, ce, name = entry.taken.queue.split("/", 2)
    spec = JobSpec(
        job_id=entry.taken.job_id,
        number=job.number,
        place=(site, ce, name),
        description=describe_local_job(entry, job, command),
        marks=area.marks_of_node(job),
        files=files,
        processors=resources.cores,
        memory=resources.memory,
        wall_time=resources.wall_time,
        beat=options.beat,
        grace=context.grace,
        sandbox_limit=options.sandbox_limit,
        output_limit=options.local_output_limit,
        isolation=options.isolation,
        isolation_command=options.isolation_command,
        image=options.image,
    )
    return NodeScript(
        name="local-job",
        about=f"Local job {job.number} of grid job {entry.taken.job_id}.",
        program="job.pyz",
        words=['"$area/order.json"', *(shlex.quote(str(path)) for path in context.hidden)],
        files={"order.json": spec.as_json()},
        fetch=_FETCH.format(archive=shlex.quote(area.archive_of_node), digest=entry.digest),
    ).text()


def _fail(context: ManagerContext, entry: GridJobEntry, outcome: Report) -> None:
    """Fail the grid job; if local jobs were submitted before, fail only the others."""
    log = [f"{outcome.minor_status}: {outcome.application_status}"]
    jobs = context.journal.local_jobs(entry.key)
    rest = [
        replace(each, state=LocalState.FAILED, message=outcome.application_status)
        for each in jobs
        if each.state is LocalState.UNSUBMITTED
    ]
    ended = replace(entry, outcome=outcome) if len(rest) == len(jobs) else entry
    context.journal.write(entry.key, entry=ended, local_jobs=rest, log=log)
