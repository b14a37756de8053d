"""Archives of an attempt: the input sandbox that a pilot fetches, the output that it delivers."""

from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from pilotage.service import archives, job_output, lease_scope
from pilotage.service.access import allow
from pilotage.service.api_route import ApiRoute, CallerOf, PartsOf
from pilotage.service.callers import Caller, Role
from pilotage.service.models.job_filter import JobIdPath
from pilotage.service.models.leases import OutputStored
from pilotage.service.parts import Parts
from pilotage.service.routes.leases import LeasePath
from pilotage.service.routes.sandboxes import TAR
from taskqueue import attempts, blobs, database, descriptions, handover, retries
from taskqueue.blob_store import Staged
from taskqueue.errors import StaleLease

router = APIRouter(tags=["leases"], route_class=ApiRoute)

ARCHIVE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/x-tar": {}}, "description": "The archive."}
}


@router.get("/leases/{lease}/sandbox", response_class=StreamingResponse, responses=ARCHIVE)
@allow(Role.PILOT, Role.GATEWAY)
def fetch_sandbox(parts: PartsOf, caller: CallerOf, lease: LeasePath) -> StreamingResponse:
    """Fetch the input sandbox of the job; 404 if it has none."""
    with database.reading(parts.engine) as conn:
        attempt = lease_scope.require(conn, caller, lease)
        attempts.refuse_closed(attempt)
        digest = descriptions.of_job(conn, attempt.job_id).sandbox
        return archives.answer(parts.blobs, conn, digest, vo=attempt.vo, name=f"sandbox-{attempt.job_id}.tar")


@router.put("/leases/{lease}/output", openapi_extra=TAR)
@allow(Role.PILOT, Role.GATEWAY)
async def deliver_output(
    parts: PartsOf, caller: CallerOf, lease: LeasePath, request: Request
) -> OutputStored:
    """Store the output archive, before `finish`; also that of a job which was killed while it ran."""
    await anyio.to_thread.run_sync(_require_open, parts, caller, lease)
    staged = await archives.receive(request, parts.blobs, limit=parts.limits.archive_bytes)
    await anyio.to_thread.run_sync(_keep, parts, caller, lease, staged)
    return OutputStored(output=f"sha256:{staged.digest}", size=staged.size)


@router.get("/jobs/{job_id}/output", response_class=StreamingResponse, responses=ARCHIVE)
@allow(Role.USER, Role.VO_ADMIN)
def fetch_output(parts: PartsOf, caller: CallerOf, job_id: JobIdPath) -> StreamingResponse:
    """Fetch the output archive of a job's latest attempt; 404 if there is none."""
    return job_output.send(parts, caller, job_id)


@retries.repeatable
def _require_open(parts: Parts, caller: Caller, lease: str) -> None:
    """Refuse before anything is received; whether it is open is looked at again when it is stored.

    An attempt that was lost is opened again here: nobody else gets the job while the archive is received.
    """
    with database.reading(parts.engine) as conn:
        attempt = lease_scope.require(conn, caller, lease)
    if attempt.closed_at is None:
        return
    try:
        with database.writing(parts.engine) as conn:
            handover.prepare_output(conn, lease, now=parts.clock())
    except StaleLease:
        with database.writing(parts.engine) as conn:
            handover.record_stale(conn, lease, "output", now=parts.clock())
        raise


def _keep(parts: Parts, caller: Caller, lease: str, staged: Staged) -> None:
    # No quota: the job has run, and what it made is not lost because others left much lying about.
    try:
        with database.writing(parts.engine) as conn:
            attempt = lease_scope.require(conn, caller, lease)
            handover.store_output(conn, lease, staged.digest, now=parts.clock())
            blobs.keep(conn, parts.blobs, staged, vo=attempt.vo, quota=None, now=parts.clock())
    finally:
        parts.blobs.discard(staged)
