"""Reports of JobWrappers by the three routes of DiracX that `FutureClientEnabled` uses, with its tokens.

Each body is a record by the id of the job. They are the reports of `job_state_update` in another form.

Source: DiracX 0.7, `diracx.routers.jobs`; DIRAC 9.1, `FutureClient/JobStateUpdateClient.py`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import anyio.to_thread
from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from cs_config.options import bounds
from pilotage.plugins.dirac import jencode, job_state_update, peers
from pilotage.plugins.dirac.door_guard import DoorGuard
from pilotage.plugins.dirac.peers import CheckedMethod, DiracCall
from pilotage.service.auth import access, audit
from pilotage.service.error_statuses import status_of
from pilotage.service.http_errors import NotAuthenticated, TokenRevoked
from pilotage.service.routing import StrictRequest
from pilotage.service.services import Services
from requirements.errors import InvalidRequest, PilotageError, Problem
from requirements.values import fold
from taskqueue.db import database

_METHODS: Final = {name: CheckedMethod(method) for name, method in job_state_update.METHODS.items()}
_LONGEST: Final = 1 << 20
#: Metadata that is not a parameter: attributes of the job, and the time of the parameters.
_ATTRIBUTES: Final = frozenset({"Status", "MinorStatus", "ApplicationStatus", "Site"})
_TIMESTAMP: Final = "timestamp"

#: Reports on one job, and returns the commands for it.
Report = Callable[[DiracCall, object, object], Mapping[str, str]]


def _call(call: DiracCall, method: str, *arguments: object) -> Mapping[str, str]:
    checked = _METHODS[method]
    result = checked.function(call, **checked.read_arguments(arguments))
    if not result["OK"]:
        raise InvalidRequest([Problem(path=method, message=str(result["Message"]))])
    return result["Value"] or {}


def _set_status(call: DiracCall, job_id: object, given: object) -> Mapping[str, str]:
    return _call(call, "setJobStatusBulk", job_id, given)


def _send_heartbeat(call: DiracCall, job_id: object, given: object) -> Mapping[str, str]:
    return _call(call, "sendHeartBeat", job_id, given, given)


def _set_metadata(call: DiracCall, job_id: object, given: object) -> Mapping[str, str]:
    if not isinstance(given, dict):
        raise InvalidRequest([Problem(path=f"body/{job_id!s:.40}", message="is no record")])
    for name in sorted(_ATTRIBUTES & set(given)):
        _call(call, "setJobAttribute", job_id, name, given[name])
    parameters = [[name, value] for name, value in given.items() if name not in {*_ATTRIBUTES, _TIMESTAMP}]
    return _call(call, "setJobParameters", job_id, parameters)


#: What each route reports.
ROUTES: Final[Mapping[str, Report]] = {
    "/api/jobs/status": _set_status,
    "/api/jobs/heartbeat": _send_heartbeat,
    "/api/jobs/metadata": _set_metadata,
}


async def answer(parts: Services, report: Report, request: Request) -> Response:
    """Answer one of the routes as DiracX does."""
    try:
        return await _answer(parts, report, StrictRequest(request.scope, request.receive))
    except ClientDisconnect:
        return refuse(400, "the request ended in the middle of its body")
    except database.UNAVAILABLE as away:
        parts.storage.note_failure(away)
        return refuse(503, "the database does not answer; try again later")
    except PilotageError as refusal:
        status = status_of(refusal)
        if status == 500:
            raise
        if status in (401, 403):
            where = f"PATCH {request.url.path}"
            audit.unproven(where, address=access.address(request), reason=str(refusal))
        return refuse(status, str(refusal))


def refuse(status: int, detail: object) -> Response:
    """A refusal as DiracX writes it."""
    return JSONResponse({"detail": detail}, status)


async def _answer(parts: Services, report: Report, request: StrictRequest) -> Response:
    address = access.address(request)
    try:
        claims = await _verify(parts, access.bearer(request))
        peer = peers.find_bearer(claims, parts.live.current, address=address)
    except NotAuthenticated:
        access.limit_anonymous(request, parts)
        raise
    guard: DoorGuard = request.app.state.guard
    async with guard.admit(request, peer.vo, peer.dn or peer.user, most=_LONGEST):
        call = DiracCall(parts=parts, peer=peer, request=request)
        body = await anyio.to_thread.run_sync(_read_body, request.whole)
        run = partial(database.retry_on_conflict(_report), call, report, body)
        commands, failed = await anyio.to_thread.run_sync(run)
    if failed and len(failed) == len(body):
        return refuse(404, {"success": {}, "failed": failed})
    if report is _send_heartbeat:
        return JSONResponse(commands)
    if report is _set_metadata:
        return Response(status_code=204)
    return JSONResponse({"success": {name: {} for name in body if name not in failed}, "failed": failed})


async def _verify(parts: Services, text: str) -> Mapping[str, object]:
    """The claims of a token of an issuer of the kind DiracX."""
    trusted = parts.issuers.find(text)
    if not trusted.issuer.is_diracx:
        raise NotAuthenticated(f"{trusted.issuer.name} is no issuer of the kind diracx")
    token_id, claims = await trusted.read(text, now=parts.clock())
    if token_id in parts.revoked:
        raise TokenRevoked("the token was revoked")
    if trusted.issuer.vo not in (None, fold(str(claims.get("vo")))):
        raise NotAuthenticated(f"{trusted.issuer.name} is the issuer of the VO {trusted.issuer.vo} only")
    return claims


def _read_body(content: bytes) -> dict[str, object]:
    try:
        body = jencode.decode(content.decode())
    except UnicodeDecodeError:
        body = None
    if not isinstance(body, dict) or len(body) > bounds.SUBMITTED_JOBS or not all(map(_is_id, body)):
        message = f"is no record of at most {bounds.SUBMITTED_JOBS} jobs by their ids"
        raise InvalidRequest([Problem(path="body", message=message)])
    return body


def _is_id(name: str) -> bool:
    return name.isdecimal() and name.isascii() and len(name) < 20


def _report(
    call: DiracCall, report: Report, body: Mapping[str, object]
) -> tuple[list[dict[str, Any]], dict[str, dict[str, str]]]:
    """The commands for the jobs, and the reasons of those on which the peer may not report."""
    commands: list[dict[str, Any]] = []
    failed: dict[str, dict[str, str]] = {}
    for name, given in body.items():
        try:
            told = report(call, name, given)
        except PilotageError as refusal:
            failed[name] = {"detail": str(refusal)}
            continue
        commands += [
            {"job_id": int(name), "command": command, "arguments": words} for command, words in told.items()
        ]
    return commands, failed
