"""Killing and rescheduling jobs, one or many."""

from fastapi import APIRouter

from pilotage.service import job_changes
from pilotage.service.access import allow
from pilotage.service.api_route import ApiRoute, CallerOf, PartsOf
from pilotage.service.callers import Capability, Role
from pilotage.service.models.job_control import Changed, ChangedJobs
from pilotage.service.models.job_filter import JobFilter, JobIdPath

router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=ApiRoute)


@router.post("/kill")
@allow(Role.USER, Role.VO_ADMIN, needs=Capability.CANCEL)
def kill_many(parts: PartsOf, caller: CallerOf, which: JobFilter) -> ChangedJobs:
    """Kill all jobs that pass the filter and have not ended."""
    return job_changes.kill_many(parts, caller, which)


@router.post("/reschedule")
@allow(Role.USER, Role.VO_ADMIN, needs=Capability.MODIFY)
def reschedule_many(parts: PartsOf, caller: CallerOf, which: JobFilter) -> ChangedJobs:
    """Send all jobs that pass the filter, and may go, through the optimizers again."""
    return job_changes.reschedule_many(parts, caller, which)


@router.post("/{job_id}/kill")
@allow(Role.USER, Role.VO_ADMIN, needs=Capability.CANCEL)
def kill(parts: PartsOf, caller: CallerOf, job_id: JobIdPath) -> Changed:
    """Kill a job; its pilot is told at its next heartbeat."""
    return job_changes.kill(parts, caller, job_id)


@router.post("/{job_id}/reschedule")
@allow(Role.USER, Role.VO_ADMIN, needs=Capability.MODIFY)
def reschedule(parts: PartsOf, caller: CallerOf, job_id: JobIdPath) -> Changed:
    """Take a job back and send it through the optimizers again."""
    return job_changes.reschedule(parts, caller, job_id)
