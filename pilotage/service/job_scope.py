"""Which jobs a caller may see and control, as a filter."""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, TypeVar

from pilotage.service import told
from pilotage.service.callers import Caller
from pilotage.service.models.job_filter import JobFilter
from requirements.errors import NotAllowed
from requirements.values import fold
from taskqueue import whose
from taskqueue.errors import JobNotFound
from taskqueue.job_filter import Filter
from taskqueue.jobs import Job
from taskqueue.whose import Whose

_T = TypeVar("_T")

#: What of a job is its owner's and its VO's business, as a filter asks it or a summary counts by it.
PERSONAL: Final = ("owner", "owner_group", "job_name", "job_group", "ids", "task_queue")


def visible(caller: Caller, wanted: JobFilter) -> Filter:
    """The jobs of `wanted` that the caller may list; what is not its own is as if it did not exist."""
    return _within(told.controlled(caller), wanted)


def countable(caller: Caller, wanted: JobFilter, by: Collection[str]) -> Filter:
    """The jobs of `wanted` that the caller may be told the numbers of, by these columns.

    Raises:
        NotAllowed: It asks who is at work, and is not told that.
    """
    asked = {*by, *(name for name in JobFilter.model_fields if getattr(wanted, name) is not None)}
    refused = sorted(asked.intersection(PERSONAL))
    allowed = told.named(caller) if refused else told.counted(caller)
    if not allowed:
        raise NotAllowed(f"{caller.role} is told of VOs, not who works in them: not by {', '.join(refused)}")
    return _within(allowed, wanted)


def require(caller: Caller, job: Job) -> Job:
    """The job, if the caller may see and control it.

    Raises:
        JobNotFound: It may not; the same as for a job that does not exist.
    """
    if not told.controls(caller, vo=job.vo, owner=job.owner):
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


def _within(allowed: Sequence[Whose], wanted: JobFilter) -> Filter:
    vos = None if wanted.vo is None else frozenset(map(fold, wanted.vo))
    own = [each.of(vos=vos, sites=_set(wanted.site), owner=wanted.owner) for each in allowed]
    every, any_of = whose.split(own)
    return Filter(
        job_ids=_set(wanted.ids),
        vos=every.vos,
        owner=every.owner,
        owner_group=wanted.owner_group,
        statuses=_set(wanted.status),
        minor_status=wanted.minor_status,
        sites=every.sites,
        submit_pool=wanted.pool,
        job_name=wanted.job_name,
        job_type=wanted.job_type,
        job_group=wanted.job_group,
        any_of=any_of,
    )


def _set(values: Iterable[_T] | None) -> frozenset[_T] | None:
    return None if values is None else frozenset(values)
