"""Archives: input sandboxes, job outputs, and the end of pilots' output."""

from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from cs_config.options.operations import options_for
from pilotage.service.auth import visibility
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Caller, Capability, Role
from pilotage.service.models import StrictInput
from pilotage.service.models.jobs import JobIdPath
from pilotage.service.queries import archives, jobs
from pilotage.service.queries.archives import Uploads
from pilotage.service.routes import leases
from pilotage.service.routes.leases import LeasePath
from pilotage.service.routes.pilots import StampPath
from pilotage.service.routing import SMALL, ApiRoute, CallerOf, PartsOf
from pilotage.service.services import Services
from requirements.errors import InvalidRequest, Problem
from requirements.values import fold
from taskqueue.db import database
from taskqueue.errors import PilotOutputNotFound
from taskqueue.jobs import descriptions
from taskqueue.leases import attempts
from taskqueue.leases.attempts import Attempt
from taskqueue.leases.reports import OutputReport
from taskqueue.pilots import pilots
from taskqueue.pilots.pilots import PilotOutput

router = APIRouter(prefix="/sandboxes", tags=["jobs"], route_class=ApiRoute)

TAR: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}},
    }
}


class StoredSandbox(BaseModel):
    """A stored input sandbox."""

    sandbox: str = Field(description="`sha256:<digest>`, to name in submissions.")


@router.post("", openapi_extra=TAR)
@allow(Role.USER, Role.VO_ADMIN, needs=Capability.CREATE)
async def store(
    parts: PartsOf, caller: CallerOf, request: Request, vo: Annotated[str | None, Query()] = None
) -> StoredSandbox:
    """Store the tar archive in the body; equal archives are stored once."""
    owner = _vo(caller, vo)
    limits = options_for(parts.live.current, owner).limits
    limit = min(limits.sandbox_bytes, parts.limits.archive_bytes)
    uploads: Uploads = request.app.state.sandbox_uploads
    staged = await uploads.receive(request, caller.subject, vo=owner, limit=limit)
    await anyio.to_thread.run_sync(archives.store_input, parts, staged, owner, limits.sandbox_quota)
    return StoredSandbox(sandbox=f"sha256:{staged.digest}")


def _vo(caller: Caller, named: str | None) -> str:
    vo = fold(named) if named else caller.vo
    if vo is None:
        message = "is missing (?vo= here): a description names its VO, unless the token has exactly one"
        raise InvalidRequest([Problem(path="vo", message=message)])
    if named and not caller.may_read(vo):
        raise InvalidRequest([Problem(path="vo", message=f"{named!r:.80} is not the VO of the token")])
    return vo


output_router = APIRouter(route_class=ApiRoute)

ARCHIVE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/x-tar": {}}, "description": "The archive."}
}


class OutputStored(BaseModel):
    """The stored output archive."""

    output: str = Field(description="`sha256:<digest>`.")
    size: int = Field(description="Bytes.")


@output_router.get(
    "/leases/{lease}/sandbox", tags=["leases"], response_class=StreamingResponse, responses=ARCHIVE
)
@allow(Role.PILOT, Role.GATEWAY)
def fetch_sandbox(parts: PartsOf, caller: CallerOf, lease: LeasePath) -> StreamingResponse:
    """Fetch the input sandbox of the job; 404 if it has none."""
    with database.reading(parts.engine) as conn:
        attempt = visibility.require_lease(conn, caller, lease)
        attempts.check_open(attempt)
        digest = descriptions.read_description(conn, attempt.job_id).sandbox
    return archives.answer(parts, digest, vo=attempt.vo, name=f"sandbox-{attempt.job_id}.tar")


@output_router.put("/leases/{lease}/output", tags=["leases"], openapi_extra=TAR)
@allow(Role.PILOT, Role.GATEWAY)
async def deliver_output(
    parts: PartsOf, caller: CallerOf, lease: LeasePath, request: Request
) -> OutputStored:
    """Store the output archive before `finish`; also for a job that was killed while it ran."""
    attempt = await _require_open(parts, caller, lease)
    uploads: Uploads = request.app.state.output_uploads
    staged = await uploads.receive(
        request, caller.subject, vo=attempt.vo, site=attempt.site, limit=parts.limits.archive_bytes
    )
    # Not refused by a quota: the job has run. The agent `retention` removes the oldest outputs beyond it.
    report = OutputReport(lease=lease, sender=leases.identify_sender(caller), digest=staged.digest)
    await anyio.to_thread.run_sync(archives.store_output, parts, report, staged)
    return OutputStored(output=f"sha256:{staged.digest}", size=staged.size)


@output_router.get(
    "/jobs/{job_id}/output", tags=["jobs"], response_class=StreamingResponse, responses=ARCHIVE
)
@allow(Role.USER, Role.VO_ADMIN)
def fetch_output(parts: PartsOf, caller: CallerOf, job_id: JobIdPath) -> StreamingResponse:
    """Fetch the output archive of a job's latest attempt; 404 if there is none."""
    return jobs.send(parts, caller, job_id)


async def _require_open(parts: Services, caller: Caller, lease: str) -> Attempt:
    """The attempt; a closed one is rejected before the upload, and `archives.store_output` checks again.

    A lost attempt is reopened here, so that no other pilot gets the job during the upload.
    """
    attempt = await anyio.to_thread.run_sync(_read_attempt, parts, caller, lease)
    if attempt.closed_at is not None:
        await parts.reports.record(
            OutputReport(lease=lease, sender=leases.identify_sender(caller), digest=None)
        )
    return attempt


def _read_attempt(parts: Services, caller: Caller, lease: str) -> Attempt:
    with database.reading(parts.engine) as conn:
        return visibility.require_lease(conn, caller, lease)


pilot_output_router = APIRouter(prefix="/pilots", tags=["pilots"], route_class=ApiRoute)


class PilotOutputReport(StrictInput):
    """The ends of a pilot's output, fetched by its director."""

    stdout: str = Field(default="", max_length=16_000)
    stderr: str = Field(default="", max_length=16_000)


class PilotLog(StrictInput):
    """The end of a pilot's log, sent by itself."""

    log: str = Field(max_length=16_000)


@pilot_output_router.post("/{stamp}/output")
@allow(Role.DIRECTOR, most_bytes=SMALL)
def keep_output(parts: PartsOf, caller: CallerOf, stamp: StampPath, body: PilotOutputReport) -> PilotOutput:
    """Store the end of a pilot's output; replaces what was stored before."""
    now = parts.clock()
    with database.writing(parts.engine) as conn:
        visibility.require_pilot(caller, pilots.get_pilot(conn, stamp))
        pilots.store_output(conn, stamp, stdout=body.stdout, stderr=body.stderr, now=now)
    return PilotOutput(stdout=body.stdout, stderr=body.stderr, stored_at=now)


@pilot_output_router.post("/{stamp}/log", status_code=204, response_class=Response)
@allow(Role.PILOT, most_bytes=SMALL)
def keep_log(parts: PartsOf, caller: CallerOf, stamp: StampPath, body: PilotLog) -> None:
    """Store the end of a pilot's log while it runs; replaces what was stored before."""
    with database.writing(parts.engine) as conn:
        visibility.require_pilot(caller, pilots.get_pilot(conn, stamp))
        pilots.store_log(conn, stamp, body.log, now=parts.clock())


@pilot_output_router.get("/{stamp}/output")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
def show_output(parts: PartsOf, caller: CallerOf, stamp: StampPath) -> PilotOutput:
    """Show the end of a pilot's log, and of its output if its director has fetched it."""
    with database.reading(parts.engine) as conn:
        visibility.require_pilot(caller, pilots.get_pilot(conn, stamp))
        output = pilots.get_output(conn, stamp)
    if output is None:
        raise PilotOutputNotFound(stamp)
    return output
