"""Which jobs a caller may see and control, as a filter."""

from collections.abc import Iterable
from typing import TypeVar

from pilotage.service.callers import Caller, Role
from pilotage.service.models.job_filter import JobFilter
from requirements.values import fold
from taskqueue.errors import JobNotFound
from taskqueue.job_filter import Filter
from taskqueue.jobs import Job

_T = TypeVar("_T")
_NONE: frozenset[str] = frozenset()


def visible(caller: Caller, wanted: JobFilter) -> Filter:
    """The jobs of `wanted` that the caller may see; what is not its own is as if it did not exist."""
    return Filter(
        job_ids=_set(wanted.ids),
        vos=_vos(caller, wanted),
        owner=caller.user if caller.role is Role.USER else wanted.owner,
        owner_group=wanted.owner_group,
        statuses=_set(wanted.status),
        minor_status=wanted.minor_status,
        sites=_set(wanted.site),
        submit_pool=wanted.pool,
        job_name=wanted.job_name,
        job_type=wanted.job_type,
        job_group=wanted.job_group,
    )


def require(caller: Caller, job: Job) -> Job:
    """The job, if the caller may see and control it.

    Raises:
        JobNotFound: It may not; the same as for a job that does not exist.
    """
    if not caller.may_control(vo=job.vo, owner=job.owner):
        raise JobNotFound(job.job_id)
    return job


def require_readable(caller: Caller, job: Job) -> Job:
    """The job, if the caller may read what concerns its VO, such as why it waits.

    Raises:
        JobNotFound: It may not.
    """
    if not caller.may_read(job.vo):
        raise JobNotFound(job.job_id)
    return job


def _vos(caller: Caller, wanted: JobFilter) -> frozenset[str] | None:
    asked = None if wanted.vo is None else frozenset(fold(vo) for vo in wanted.vo)
    if caller.role is Role.USER and wanted.owner not in (None, caller.user):
        return _NONE
    allowed = caller.visible_vos
    if allowed is None or asked is None:
        return asked if allowed is None else allowed
    return asked & allowed


def _set(values: Iterable[_T] | None) -> frozenset[_T] | None:
    return None if values is None else frozenset(values)
