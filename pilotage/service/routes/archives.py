"""Archives: input sandboxes, job outputs, and the end of pilots' output."""

from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from cs_config.options.operations import options_for
from pilotage.service.auth import visibility
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Caller, Capability, Role
from pilotage.service.models.jobs import JobIdPath
from pilotage.service.models.leases import OutputStored
from pilotage.service.models.paging import Stored
from pilotage.service.models.pilots import PilotOutputAnswer, PilotOutputNews
from pilotage.service.queries import archives, jobs
from pilotage.service.routes.leases import LeasePath
from pilotage.service.routes.pilots import StampPath
from pilotage.service.routing import SMALL, ApiRoute, CallerOf, PartsOf, takes_at_most
from pilotage.service.services import Services
from requirements.errors import InvalidRequest, Problem
from requirements.values import fold
from taskqueue import blobs
from taskqueue.blobs import StagedBlob
from taskqueue.db import database
from taskqueue.errors import PilotOutputNotFound, StaleLease
from taskqueue.jobs import descriptions
from taskqueue.leases import attempts, lifecycle
from taskqueue.pilots import pilots
from taskqueue.pilots.pilots import PilotOutput

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
    """Store the tar archive in the body; equal archives are stored once."""
    owner = _vo(caller, vo)
    limits = options_for(parts.live.current, owner).limits
    limit = min(limits.sandbox_bytes, parts.limits.archive_bytes)
    staged = await archives.receive(request, parts.blobs, limit=limit)
    await anyio.to_thread.run_sync(_store_sandbox, parts, staged, owner, limits.sandbox_quota)
    return Stored(sandbox=f"sha256:{staged.digest}")


def _store_sandbox(parts: Services, staged: StagedBlob, vo: str, quota: int) -> None:
    try:
        _refuse_empty(staged)
        with database.writing(parts.engine) as conn:
            blobs.store_blob(conn, parts.blobs, staged, vo=vo, quota=quota, now=parts.clock())
    finally:
        parts.blobs.discard(staged)


def _refuse_empty(staged: StagedBlob) -> None:
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
        message = "is required as ?vo=<vo>, since the token does not have exactly one VO"
        raise InvalidRequest([Problem(path="vo", message=message)])
    return caller.vo


output_router = APIRouter(tags=["leases"], route_class=ApiRoute)

ARCHIVE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/x-tar": {}}, "description": "The archive."}
}


@output_router.get("/leases/{lease}/sandbox", response_class=StreamingResponse, responses=ARCHIVE)
@allow(Role.PILOT, Role.GATEWAY)
def fetch_sandbox(parts: PartsOf, caller: CallerOf, lease: LeasePath) -> StreamingResponse:
    """Fetch the input sandbox of the job; 404 if it has none."""
    with database.reading(parts.engine) as conn:
        attempt = visibility.require_lease(conn, caller, lease)
        attempts.check_open(attempt)
        digest = descriptions.read_description(conn, attempt.job_id).sandbox
        return archives.answer(parts.blobs, conn, digest, vo=attempt.vo, name=f"sandbox-{attempt.job_id}.tar")


@output_router.put("/leases/{lease}/output", openapi_extra=TAR)
@allow(Role.PILOT, Role.GATEWAY)
async def deliver_output(
    parts: PartsOf, caller: CallerOf, lease: LeasePath, request: Request
) -> OutputStored:
    """Store the output archive before `finish`; also for a job that was killed while it ran."""
    await anyio.to_thread.run_sync(_require_open, parts, caller, lease)
    staged = await archives.receive(request, parts.blobs, limit=parts.limits.archive_bytes)
    await anyio.to_thread.run_sync(_store_output, parts, caller, lease, staged)
    return OutputStored(output=f"sha256:{staged.digest}", size=staged.size)


@output_router.get("/jobs/{job_id}/output", response_class=StreamingResponse, responses=ARCHIVE)
@allow(Role.USER, Role.VO_ADMIN)
def fetch_output(parts: PartsOf, caller: CallerOf, job_id: JobIdPath) -> StreamingResponse:
    """Fetch the output archive of a job's latest attempt; 404 if there is none."""
    return jobs.send(parts, caller, job_id)


@database.retry_on_conflict
def _require_open(parts: Services, caller: Caller, lease: str) -> None:
    """Reject a closed attempt before the upload; `_store_output` checks again.

    A lost attempt is reopened here, so that no other pilot gets the job during the upload.
    """
    with database.reading(parts.engine) as conn:
        attempt = visibility.require_lease(conn, caller, lease)
    if attempt.closed_at is None:
        return
    try:
        with database.writing(parts.engine) as conn:
            lifecycle.prepare_output(conn, lease, now=parts.clock())
    except StaleLease:
        with database.writing(parts.engine) as conn:
            lifecycle.record_stale(conn, lease, "output", now=parts.clock())
        raise


def _store_output(parts: Services, caller: Caller, lease: str, staged: StagedBlob) -> None:
    # No quota: the job has run, and its output must not be lost because others filled the store.
    try:
        with database.writing(parts.engine) as conn:
            attempt = visibility.require_lease(conn, caller, lease)
            lifecycle.store_output(conn, lease, staged.digest, now=parts.clock())
            blobs.store_blob(conn, parts.blobs, staged, vo=attempt.vo, quota=None, now=parts.clock())
    finally:
        parts.blobs.discard(staged)


pilot_output_router = APIRouter(prefix="/pilots", tags=["pilots"], route_class=ApiRoute)


@pilot_output_router.post("/{stamp}/output")
@allow(Role.DIRECTOR)
@takes_at_most(SMALL)
def keep(parts: PartsOf, caller: CallerOf, stamp: StampPath, body: PilotOutputNews) -> PilotOutputAnswer:
    """Store the end of a pilot's output; replaces what was stored before."""
    output = PilotOutput(stdout=body.stdout, stderr=body.stderr, stored_at=parts.clock())
    with database.writing(parts.engine) as conn:
        visibility.require_pilot(caller, pilots.get_pilot(conn, stamp))
        pilots.store_output(conn, stamp, output)
    return PilotOutputAnswer.model_validate(output)


@pilot_output_router.get("/{stamp}/output")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
def show(parts: PartsOf, caller: CallerOf, stamp: StampPath) -> PilotOutputAnswer:
    """Show the end of a pilot's output, if its director has fetched it."""
    with database.reading(parts.engine) as conn:
        visibility.require_pilot(caller, pilots.get_pilot(conn, stamp))
        output = pilots.get_output(conn, stamp)
    if output is None:
        raise PilotOutputNotFound(stamp)
    return PilotOutputAnswer.model_validate(output)
