"""WorkloadManagement/JobManager: submit, kill, reschedule, delete and reset jobs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from optimizers.description import parametric
from pilotage.plugins.dirac import dialect, jencode, peers, sandbox_store
from pilotage.plugins.dirac import job_state_update as reports
from pilotage.plugins.dirac.jencode import Result
from pilotage.plugins.dirac.peers import DiracCall, JobIds, Method
from pilotage.service.auth.callers import Caller
from pilotage.service.models.jobs import JobFilter
from pilotage.service.queries import jobs as queries
from requirements.errors import InvalidInput, NotAllowed
from taskqueue.db import database, sql
from taskqueue.errors import JobNotFound
from taskqueue.jobs import control
from taskqueue.jobs.control import ControlVerb
from taskqueue.jobs.jobs import Job
from taskqueue.leases import attempts, marks

#: Between the two calls with which a JobAgent or JobWrapper reschedules its job.
_TWO_CALLS: Final = timedelta(minutes=5)


def submit_job(call: DiracCall, text: str) -> Result:
    """Store the jobs of a text: an id, or a list of them if it is parametric."""
    peer = call.peer
    if peer.is_limited:
        return jencode.error("a limited proxy may not submit", jencode.SUBMISSION)
    if not peer.has(peers.NORMAL_USER) or peer.is_host:
        return jencode.error(f"{peer.user} with the group {peer.group} may not submit", jencode.SUBMISSION)
    try:
        read = dialect.read_jdl(text)
        sandbox = sandbox_store.find_sandbox(read, peer)
        accepted = queries.submit(
            call.parts,
            peer.submitter,
            [read],
            key=None,
            sandbox=sandbox,
            check_job=dialect.require_readable,
        )
    except InvalidInput as fault:
        return jencode.error(str(fault), jencode.INVALID_JDL)
    except database.UNAVAILABLE as away:
        # A result, no status: after that clients send the text to the next URL, and this may be stored.
        call.parts.storage.note_failure(away)
        return jencode.error(
            "the database failed: look whether the jobs are there before you submit them again",
            jencode.SUBMISSION,
        )
    ids: object = accepted.job_ids if parametric.split_description(read).parameters else accepted.job_ids[0]
    return jencode.ok(ids, JobID=ids, requireProxyUpload=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """Jobs that a call names."""

    own: Sequence[Job]  #: that the peer controls
    foreign: Sequence[int]
    unknown: Sequence[int]


def _sort(call: DiracCall, job_ids: Sequence[int]) -> _Named:
    with database.reading(call.parts.engine) as conn:
        seen = call.find_jobs(conn, job_ids)
    own = [job for job in seen.values() if call.peer.controls(job)]
    known = {job.job_id for job in own}
    return _Named(
        own=own,
        foreign=[each for each in seen if each not in known],
        unknown=[each for each in dict.fromkeys(job_ids) if each not in seen],
    )


def _change(call: DiracCall, job_ids: Sequence[int], change: ControlVerb) -> Result:
    """Change the jobs that the peer controls and whose status allows it; the ids of these."""
    named = _sort(call, job_ids)
    by_caller: defaultdict[Caller, list[int]] = defaultdict(list)
    for job in named.own:
        by_caller[call.peer.changer_of(vo=job.vo, owner=job.owner)].append(job.job_id)
    done = [
        job_id
        for caller, ids in by_caller.items()
        for some in sql.split_batches(ids)
        for job_id in queries.change_many(
            call.parts, caller, JobFilter.model_validate({"ids": list(some)}), change
        ).job_ids
    ]
    return _report(sorted(done), named)


def _report(done: Sequence[int], named: _Named) -> Result:
    lists = {"NonauthorizedJobIDs": named.foreign, "InvalidJobIDs": named.unknown}
    more: Mapping[str, Any] = {name: list(ids) for name, ids in lists.items() if ids}
    if not done and more:
        return jencode.error("no job was changed: they do not exist, or are not yours", **more)
    return jencode.ok(list(done), requireProxyUpload=bool(done), **more)


def kill_job(call: DiracCall, job_ids: JobIds, force: bool = False) -> Result:  # noqa: ARG001, FBT001, FBT002  (DIRAC's)
    """End jobs."""
    return _change(call, job_ids, control.KILL)


def delete_job(call: DiracCall, job_ids: JobIds, force: bool = False) -> Result:  # noqa: ARG001, FBT001, FBT002  (DIRAC's)
    """End jobs and hide them; retention removes them."""
    return _change(call, job_ids, control.DELETE)


def reset_job(call: DiracCall, job_ids: JobIds) -> Result:
    """Reschedule jobs however often that was done before: for administrators."""
    if not call.peer.has(peers.JOB_ADMINISTRATOR):
        raise NotAllowed(f"only a {peers.JOB_ADMINISTRATOR} may reset jobs")
    return _change(call, job_ids, control.RESET)


def reschedule_job(call: DiracCall, job_ids: JobIds) -> Result:
    """Send jobs through the optimizers again.

    A JobAgent or JobWrapper has set the status Rescheduled before: these two calls are one. It reschedules
    only the attempt that it has, and that not again: pilots behind one address may have the same mark.
    """
    by_pilots = _find_of_pilot(call, job_ids)
    for job_id, is_released in by_pilots.items():
        if not is_released:
            reports.set_job_status(call, job_id, "Rescheduled")
    others = [job_id for job_id in job_ids if job_id not in by_pilots]
    if not others:
        return jencode.ok(list(by_pilots), requireProxyUpload=False)
    changed = _change(call, others, control.RESCHEDULE)
    if changed["OK"] and by_pilots:
        changed["Value"] = [*by_pilots, *_ids(changed["Value"])]
    return changed


def _ids(value: Any) -> list[int]:
    return list(value)


def _find_of_pilot(call: DiracCall, job_ids: Sequence[int]) -> dict[int, bool]:
    """The jobs of which the peer holds, or has lost or given back, an attempt; and if it did so just now."""
    found: dict[int, bool] = {}
    with database.reading(call.parts.engine) as conn:
        marked = marks.list_releases(conn, job_ids, call.peer.mark)
        for job_id, released_at in marked.items():
            with suppress(JobNotFound):
                standing = reports.read_standing(conn, call, job_id, learn=False)
                is_released = released_at is not None and call.parts.clock() - released_at < _TWO_CALLS
                if is_released or _is_of_pilot(standing):
                    found[job_id] = is_released
    return found


def _is_of_pilot(standing: reports.Standing) -> bool:
    if standing.attempt is None or not standing.is_marked:
        return False
    return standing.is_ghost or standing.attempt.closed_as in (None, attempts.LOST, attempts.RELEASED)


def confirm(call: DiracCall, job_ids: JobIds) -> Result:
    """Nothing is left to do: all jobs of a submission are stored, or none."""
    named = _sort(call, job_ids)
    if named.foreign or named.unknown:
        return jencode.error("not all of these jobs exist", jencode.SUBMISSION)
    return jencode.ok([job.job_id for job in named.own])


METHODS: Final[Mapping[str, Method]] = {
    "submitJob": submit_job,
    "confirmBulkSubmission": confirm,
    "killJob": kill_job,
    "deleteJob": delete_job,
    "removeJob": delete_job,
    "rescheduleJob": reschedule_job,
    "resetJob": reset_job,
}
