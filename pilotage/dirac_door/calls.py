"""Calls: a peer with a method and its arguments, which are checked against the method's signature."""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

from fastapi import Request
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from sqlalchemy import Connection

from cs_config.options import bounds
from pilotage.dirac_door.peers import Peer
from pilotage.service.models.jobs import MAX_ID
from pilotage.service.services import Services
from requirements.errors import InvalidRequest, Problem
from taskqueue.db import sql
from taskqueue.errors import JobNotFound
from taskqueue.jobs import search
from taskqueue.jobs.jobs import Job
from taskqueue.jobs.search import JobSelector

#: A job's id, also as text.
JobId = Annotated[int, Field(ge=1, le=MAX_ID)]
#: Ids of jobs: a list, or one.
JobIds = Annotated[
    Annotated[list[JobId], Field(max_length=bounds.SUBMITTED_JOBS)],
    BeforeValidator(lambda given: given if isinstance(given, list) else [given]),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiracCall:
    """A call of a known peer."""

    parts: Services
    peer: Peer
    request: Request

    def find_jobs(self, conn: Connection, job_ids: Collection[int]) -> dict[int, Job]:
        """The jobs with these ids that exist for the peer, by id."""
        found = [
            job
            for some in sql.split_batches(job_ids)
            for job in search.list_jobs(conn, JobSelector(job_ids=frozenset(some)), limit=len(some))
        ]
        return {job.job_id: job for job in sorted(found, key=lambda each: each.job_id) if self.peer.sees(job)}

    def get_job(self, conn: Connection, job_id: int) -> Job:
        """One job that exists for the peer; `JobNotFound`."""
        found = self.find_jobs(conn, [job_id])
        if job_id not in found:
            raise JobNotFound(job_id)
        return found[job_id]


#: A method takes the call and its arguments, and returns a `jencode.Result`, some as coroutines.
Method = Callable[..., Any]


class CheckedMethod:
    """A method whose arguments are checked by the types in its signature."""

    def __init__(self, function: Method) -> None:
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        hints = get_type_hints(function, include_extras=True)
        self._signature = inspect.signature(function)
        names = list(self._signature.parameters)[1:]
        self._types: Mapping[str, TypeAdapter[Any]] = {name: TypeAdapter(hints[name]) for name in names}

    def read_arguments(self, given: Collection[object]) -> dict[str, object]:
        """The arguments by name; `InvalidRequest` says which is wrong."""
        try:
            bound = self._signature.bind(None, *given).arguments
        except TypeError as error:
            raise InvalidRequest([Problem(path="args", message=str(error))]) from None
        read: dict[str, object] = {}
        for name, adapter in self._types.items():
            if name in bound:
                try:
                    read[name] = adapter.validate_python(bound[name])
                except ValidationError as error:
                    raise list_problems(name, error) from None
        return read


def list_problems(name: str, fault: ValidationError) -> InvalidRequest:
    """What is wrong with an argument."""
    return InvalidRequest([_problem(name, each) for each in fault.errors()[:10]])


def _problem(name: str, each: Any) -> Problem:
    path = "/".join(map(str, (name, *each["loc"])))
    return Problem(path=path, message=f"{each['msg']}, not {each['input']!r:.100}")
