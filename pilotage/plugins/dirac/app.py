"""The door as one application: finds the peer and the method of a call, and answers as DIRAC does.

A call that is refused is answered 200 with a result that is not OK. Clients take 401 for no access and 501
for an unknown method; after any other status they try the next URL of the service.
"""

import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import anyio.to_thread
from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from cs_config.options.operations import options_for
from pilotage.plugins.dirac import (
    configuration_server,
    diracx,
    former,
    jencode,
    job_manager,
    job_monitoring,
    job_state_update,
    matcher,
    monitoring,
    peers,
    pilot_manager,
    resource_status,
    routing,
    sandbox_store,
)
from pilotage.plugins.dirac.configuration_server import ConfigurationFile
from pilotage.plugins.dirac.door_guard import DoorGuard
from pilotage.plugins.dirac.former import FormerAway, FormerServices, OutcomeUnknown, UnknownThere
from pilotage.plugins.dirac.jencode import Form, Result
from pilotage.plugins.dirac.peers import CheckedMethod, DiracCall, Identity, Method
from pilotage.service import deadline
from pilotage.service.app import keep_running
from pilotage.service.auth import access, audit
from pilotage.service.error_statuses import status_of
from pilotage.service.http_errors import NotAuthenticated
from pilotage.service.middleware import CountedAnswers
from pilotage.service.routing import SMALL, StrictRequest
from pilotage.service.services import Services
from requirements.errors import PilotageError
from taskqueue.db import database
from taskqueue.errors import NotConfirmed

_log = logging.getLogger(__name__)


def _ping(call: DiracCall) -> Result:
    """A sign of life."""
    return jencode.ok(
        {"name": call.request.url.path.strip("/"), "time": call.parts.clock(), "version": "Pilotage"}
    )


def _whoami(call: DiracCall) -> Result:
    """The peer as it was identified."""
    peer = call.peer
    facts = {"DN": peer.dn, "username": peer.user, "group": peer.group, "properties": sorted(peer.properties)}
    return jencode.ok({**facts, "VO": "" if peer.is_host else peer.vo, "isLimitedProxy": peer.is_limited})


_EVERYWHERE: Final[Mapping[str, Method]] = {"ping": _ping, "whoami": _whoami}
#: The services with their methods, by the path of their URLs.
SERVICES: Final[Mapping[str, Mapping[str, CheckedMethod]]] = {
    f"/{name}": {method: CheckedMethod(function) for method, function in {**_EVERYWHERE, **methods}.items()}
    for name, methods in (
        ("Configuration/Server", configuration_server.METHODS),
        ("Monitoring/WebApp", monitoring.METHODS),
        ("ResourceStatus/ResourceStatus", resource_status.METHODS),
        ("WorkloadManagement/JobManager", job_manager.METHODS),
        ("WorkloadManagement/JobMonitoring", job_monitoring.METHODS),
        ("WorkloadManagement/JobStateUpdate", job_state_update.METHODS),
        ("WorkloadManagement/Matcher", matcher.METHODS),
        ("WorkloadManagement/PilotManager", pilot_manager.METHODS),
        ("WorkloadManagement/SandboxStore", sandbox_store.METHODS),
    )
}
_CONFIGURATION: Final = "/Configuration/Server"
_SANDBOXES: Final = "/WorkloadManagement/SandboxStore"
#: Bytes of a form: the text of a parametric job with many files; lists of ids; output in heartbeats.
_LONGEST: Final[Mapping[str, int]] = {
    "/WorkloadManagement/JobManager": 4 << 20,
    "/WorkloadManagement/JobMonitoring": 1 << 20,
    "/WorkloadManagement/JobStateUpdate": 2 << 20,
    "/WorkloadManagement/SandboxStore": 16 << 20,
}
#: Statuses of refusals that are not answered as a result: no access, busy, away.
_STATUSES: Final = frozenset({401, 408, 413, 429, 503})
_NOT_IMPLEMENTED: Final = 501


def create_door(
    parts: Services,
    configuration: ConfigurationFile | None = None,
    former_services: FormerServices | None = None,
) -> FastAPI:
    """Build the application, ready to be served; it starts and stops none of `parts`.

    `configuration` is what Configuration/Server serves; None: there is no such service. `former_services` are
    for what has not moved; None: everything is answered here.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with keep_running(parts):
            yield

    async def answer(request: Request) -> Response:
        try:
            return await _answer(parts, former_services, StrictRequest(request.scope, request.receive))
        except ClientDisconnect:
            return Response("the request ended in the middle of its form", 400)
        except (UnknownThere, FormerAway) as fault:
            return await _report(fault)
        except PilotageError as refusal:
            return _refuse(request, refusal)
        except database.UNAVAILABLE as away:
            parts.storage.note_failure(away)
            _log.warning("the database is unavailable or overloaded: %s", away)
            return Response("the database does not answer; try again later", 503)

    door = FastAPI(lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None)
    door.add_middleware(_InTime)
    door.add_middleware(CountedAnswers, answers=parts.answers)
    door.state.parts = parts
    door.state.configuration = configuration
    door.state.guard = DoorGuard(parts)
    for path in SERVICES.keys() - ({_CONFIGURATION} if configuration is None else set()):
        door.add_route(path, answer, methods=["POST"])
    for path, report in diracx.ROUTES.items():
        door.add_route(path, partial(diracx.answer, parts, report), methods=["PATCH"])
    return door


class _InTime:
    """Ends the wait for calls that the database does not confirm; they go on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await deadline.answer_in_time(self._app, scope, receive, send)
        except NotConfirmed as unknown:
            if scope["path"] in diracx.ROUTES:  # reports, which may be repeated
                answer = diracx.refuse(status_of(unknown), unknown.fact)
            else:  # no status after which clients send it to the next URL
                answer = await _encode(jencode.error(f"{unknown.fact}: look before you repeat it"))
            await answer(scope, receive, send)


async def _answer(
    parts: Services, former_services: FormerServices | None, request: StrictRequest
) -> Response:
    try:
        identity = _identify(request)
    except NotAuthenticated:
        access.limit_anonymous(request, parts)
        raise
    registry = parts.live.current.registry
    if identity is None or not (identity.dn in registry.users_by_dn or identity.dn in registry.hosts_by_dn):
        access.limit_anonymous(request, parts)
        if identity is None:
            raise NotAuthenticated("this needs a certificate or a proxy")
        raise NotAuthenticated(f"{identity.dn!r:.300} is no DN of Registry/Users or Registry/Hosts")
    guard: DoorGuard = request.app.state.guard
    path, vo = request.url.path, peers.find_vo(identity, registry)
    most, has_sandbox = _LONGEST.get(path, SMALL), path == _SANDBOXES
    async with guard.admit(request, vo, identity.dn, most=most, has_sandbox=has_sandbox) as give_back:
        # Forms and results may be large: neither is read or written in the event loop.
        call, form = await anyio.to_thread.run_sync(_read_call, parts, identity, request)
        method = SERVICES[path].get(form.method)
        if method is not None and method.is_async:
            await give_back()
        return await _encode(await _route(former_services, call, form, method, give_back=give_back))


def _read_call(parts: Services, identity: Identity, request: StrictRequest) -> tuple[DiracCall, Form]:
    """Read a form, and who sent it."""
    form = jencode.read_form(request.whole)
    peer = peers.find_peer(identity, form.credentials, parts.live.current, address=access.address(request))
    return DiracCall(parts=parts, peer=peer, request=request), form


async def _route(
    former_services: FormerServices | None,
    call: DiracCall,
    form: Form,
    method: CheckedMethod | None,
    *,
    give_back: Callable[[], Awaitable[None]],
) -> Result:
    """The result of a call: ours, that of the former services, or both.

    `give_back` ends its place at work: calls that wait for the former services must not hold up ours.
    """
    path, peer = call.request.url.path, call.peer

    async def there(arguments: Sequence[object]) -> Result:
        if former_services is None:
            raise UnknownThere(f"{form.method[:80]} is no method of {path}")
        await give_back()
        with deadline.suspended():
            return await former_services.call(path, form.method, arguments, peer)

    here = None if method is None else partial(_call, call, method)
    # By a door, such as through a URL of our own; of others the header means nothing.
    is_passed_on = peer.is_forwarded and former.VIA in call.request.headers.get("via", "")
    if is_passed_on:
        former_services = None
    if former_services is None or path not in former_services.paths:
        return await (here or there)(form.arguments)
    # A limited proxy may not submit: the former services, which see the door's certificate, would let it.
    has_moved = peer.is_limited or options_for(call.parts.live.current, peer.vo).dirac_door.moved
    return await routing.answer_call(
        former_services, path, form.method, form.arguments, here=here, there=there, has_moved=has_moved
    )


async def _call(call: DiracCall, method: CheckedMethod, arguments: Sequence[object]) -> Result:
    """The result of a method of ours."""
    named = method.read_arguments(arguments)
    if method.is_async:
        result: Result = await method.function(call, **named)
        return result
    run = partial(database.retry_on_conflict(method.function), call, **named)
    return await anyio.to_thread.run_sync(run)


async def _encode(result: Result | Response) -> Response:
    if isinstance(result, Response):
        return result
    content = await anyio.to_thread.run_sync(jencode.encode, result)
    return Response(content, media_type="application/json")


def _identify(request: Request) -> Identity | None:
    """The identity in the chain that the server has verified (the TLS extension of ASGI)."""
    chain = request.scope.get("extensions", {}).get("tls", {}).get("client_cert_chain", ())
    return peers.identify([ssl.PEM_cert_to_DER_cert(each) for each in chain]) if chain else None


async def _report(fault: UnknownThere | FormerAway) -> Response:
    """The answer for a call that the former services did not answer."""
    if isinstance(fault, OutcomeUnknown):  # no status after which clients send it to the next URL
        return await _encode(jencode.error(str(fault)))
    return Response(str(fault), _NOT_IMPLEMENTED if isinstance(fault, UnknownThere) else 503)


def _refuse(request: Request, refusal: PilotageError) -> Response:
    status = status_of(refusal)
    if status in (401, 403):
        reason = str(refusal)
        audit.unproven(f"POST {request.url.path}", address=access.address(request), reason=reason)
    if status == 500:
        raise refusal
    if status in _STATUSES:
        return Response(str(refusal), status)
    return Response(jencode.encode(jencode.error(str(refusal))), media_type="application/json")
