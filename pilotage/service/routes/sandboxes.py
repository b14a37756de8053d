"""Input sandboxes, which go ahead of the jobs that need them."""

from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Query, Request

from cs_config.operations import operations
from pilotage.service import archives
from pilotage.service.access import allow
from pilotage.service.api_route import ApiRoute, CallerOf, PartsOf
from pilotage.service.callers import Caller, Capability, Role
from pilotage.service.models.sandboxes import Stored
from pilotage.service.parts import Parts
from requirements.errors import InvalidRequest
from requirements.problem import Problem
from requirements.values import fold
from taskqueue import blobs, database
from taskqueue.blob_store import Staged

router = APIRouter(prefix="/sandboxes", tags=["jobs"], route_class=ApiRoute)

TAR: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post("", openapi_extra=TAR)
@allow(Role.USER, Role.VO_ADMIN, needs=Capability.CREATE)
async def store(
    parts: PartsOf, caller: CallerOf, request: Request, vo: Annotated[str | None, Query()] = None
) -> Stored:
    """Store the tar archive in the body; equal ones are stored once."""
    owner = _vo(caller, vo)
    limits = operations(parts.live.current, owner).limits
    limit = min(limits.sandbox_bytes, parts.limits.archive_bytes)
    staged = await archives.receive(request, parts.blobs, limit=limit)
    await anyio.to_thread.run_sync(_keep, parts, staged, owner, limits.sandbox_quota)
    return Stored(sandbox=f"sha256:{staged.digest}")


def _keep(parts: Parts, staged: Staged, vo: str, quota: int) -> None:
    try:
        _refuse_empty(staged)
        with database.writing(parts.engine) as conn:
            blobs.keep(conn, parts.blobs, staged, vo=vo, quota=quota, now=parts.clock())
    finally:
        parts.blobs.discard(staged)


def _refuse_empty(staged: Staged) -> None:
    if not staged.size:
        raise InvalidRequest([Problem(path="body", message="is empty, it should be a tar archive")])


def _vo(caller: Caller, named: str | None) -> str:
    if caller.is_operator and named:
        return fold(named)
    if named and not caller.may_read(fold(named)):
        raise InvalidRequest([Problem(path="vo", message=f"{named!r:.80} is not the VO of the token")])
    if named:
        return fold(named)
    if caller.vo is None:
        message = "has to be named: ?vo=<vo>, since the token has none"
        raise InvalidRequest([Problem(path="vo", message=message)])
    return caller.vo
