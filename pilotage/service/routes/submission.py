"""Submitting jobs."""

from typing import Annotated

from fastapi import APIRouter, Header

from optimizers.submission import Source
from pilotage.service import strict_json, submitters
from pilotage.service.access import allow
from pilotage.service.api_route import ApiRoute, CallerOf, PartsOf
from pilotage.service.callers import Capability, Role
from pilotage.service.models.submission import Submission, Submitted
from requirements.errors import InvalidRequest
from requirements.problem import Problem

router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=ApiRoute)

IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=255)]


@router.post("", status_code=201)
@allow(Role.USER, Role.VO_ADMIN, needs=Capability.CREATE)
def submit(
    parts: PartsOf, caller: CallerOf, body: Submission, idempotency_key: IdempotencyKey = None
) -> Submitted:
    """Submit jobs: all are stored, or none.

    The same request again under the same `Idempotency-Key` gives the same ids.
    """
    if idempotency_key is not None:
        strict_json.check_text("Idempotency-Key", idempotency_key)
    job_ids = submitters.submit(parts, caller, sources_of(body), key=idempotency_key, sandbox=body.sandbox)
    return Submitted(job_ids=job_ids)


def sources_of(body: Submission) -> list[Source]:
    """The descriptions that a body holds."""
    given = [each for each in ([body.jdl] if body.jdl is not None else None, body.jdls, body.jobs) if each]
    if len(given) != 1:
        raise InvalidRequest([Problem(path="body", message="needs exactly one of jdl, jdls and jobs")])
    return list(given[0])
