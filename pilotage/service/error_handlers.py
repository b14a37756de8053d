"""Errors as HTTP: one table from types to statuses, one shape of body."""

import logging
from collections.abc import Awaitable, Callable, Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from cs_config import errors as config_errors
from matcher import errors as matcher_errors
from matcher.preview import guards
from pilotage.service import http_errors, middleware
from pilotage.service.auth import access, audit
from pilotage.service.auth.oidc import discovery
from pilotage.service.auth.tokens import BearerToken
from pilotage.service.pages import templating
from pilotage.service.services import Services
from requirements.errors import InvalidInput, InvalidRequest, NotAllowed, NotFound, PilotageError, Problem
from taskqueue import errors as taskqueue_errors
from taskqueue.db import database

_log = logging.getLogger(__name__)

#: The status for each type of error; the nearest of its parents where it has no line itself.
STATUS: dict[type[Exception], int] = {
    InvalidInput: 400,
    NotAllowed: 403,
    NotFound: 404,
    config_errors.ConfigError: 422,
    config_errors.VersionConflict: 409,
    guards.GuardFailed: 409,
    taskqueue_errors.IllegalTransition: 409,
    taskqueue_errors.StaleLease: 409,
    taskqueue_errors.RescheduleLimit: 409,
    taskqueue_errors.IdempotencyConflict: 409,
    taskqueue_errors.SecretUsed: 409,
    taskqueue_errors.QuotaExceeded: 429,
    taskqueue_errors.TooLarge: 413,
    taskqueue_errors.StorageFull: 503,
    matcher_errors.Busy: 503,
    matcher_errors.NotInTime: 503,
    http_errors.NotAuthenticated: 401,
    http_errors.ClockBehind: 503,
    http_errors.ForgedRequest: 403,
    http_errors.NotHere: 404,
    discovery.IssuerAway: 503,
    http_errors.BodyTooLarge: 413,
    http_errors.PreconditionRequired: 428,
    http_errors.TooManyRequests: 429,
    http_errors.SenderSilent: 408,
    http_errors.ClientGone: 400,
}

#: What keeps a change of the configuration from being made.
_REFUSED_CHANGES = (config_errors.ConfigError, config_errors.VersionConflict, guards.GuardFailed)
#: Seconds after which another try makes sense, where the error does not say.
_RETRY_AFTER = {429: 30, 503: 5}
#: Words for what the framework itself refuses.
_CODES = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large", 400: "invalid_request"}
#: Characters of a value that a message repeats.
_SHOWN = 200


def install(app: FastAPI) -> None:
    """Answer each error of the table, and those of the framework, in the one shape."""
    for kind, handler in _handlers().items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _framework)
    app.add_exception_handler(Exception, _bug)


async def answer_to(request: Request, error: Exception) -> Response | None:
    """The answer to an error that the framework does not see; None: it is a defect, which it has to see."""
    handlers = _handlers()
    found = next((handlers[kind] for kind in type(error).__mro__ if kind in handlers), None)
    return None if found is None else await found(request, error)


def _handlers() -> Mapping[type[Exception], Callable[[Request, Exception], Awaitable[Response]]]:
    away = dict.fromkeys(database.UNAVAILABLE, _away)
    return {PilotageError: _ours, ClientDisconnect: _gone, **away}


def status_of(error: Exception) -> int:
    """The status of the nearest type in the table; 500 if none is there."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def answer(
    request: Request,
    status: int,
    code: str,
    message: str,
    details: object = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """An error in the one shape; for somebody who looks at pages, as a page."""
    if templating.is_wanted(request):
        return templating.render(request, status, message, headers or {})
    body = {"error": {"code": code, "message": message, "details": details or {}}}
    return JSONResponse(body, status, headers=headers)


async def _ours(request: Request, error: Exception) -> Response:
    if not isinstance(error, PilotageError):
        raise TypeError(f"{type(error).__name__} is not one of ours")
    status = status_of(error)
    if status == 500:
        _log.error("%s has no line in the table of errors", type(error).__name__, exc_info=error)
        return _defect(request)
    parts: Services = request.app.state.parts
    parts.metrics.refused(error.code)
    if status == 403 or _is_refused_change(request, error):
        _write_down(request, error)
    return answer(request, status, error.code, str(error), dict(error.details), _headers(status, error))


def _is_refused_change(request: Request, error: PilotageError) -> bool:
    """Whether somebody did not get a change of the configuration; looking ahead is not one."""
    is_change = request.method != "GET" and not request.url.path.endswith("/preview")
    return is_change and isinstance(error, _REFUSED_CHANGES)


def _write_down(request: Request, error: PilotageError) -> None:
    """Every request outside its role, wherever that was found out, and every change that was refused."""
    token: BearerToken | None = getattr(request.state, "token", None)
    path, reason = request.url.path, str(error)
    if token is None:
        audit.unproven(f"{request.method} {path}", address=access.address(request), reason=reason)
    else:
        audit.refused(token.caller, method=request.method, path=path, reason=reason)


async def _validation(request: Request, error: Exception) -> Response:
    """What pydantic refused, as any other invalid request."""
    if not isinstance(error, RequestValidationError):
        raise TypeError(f"{type(error).__name__} is not about validation")
    problems = [
        Problem(path=_path(each["loc"]), message=f"{each['msg']}, not {each.get('input')!r:.{_SHOWN}}")
        for each in error.errors()
    ]
    return await _ours(request, InvalidRequest(problems))


async def _framework(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise TypeError(f"{type(error).__name__} is not about HTTP")
    code = _CODES.get(error.status_code, "error")
    return answer(request, error.status_code, code, str(error.detail), headers=dict(error.headers or {}))


async def _away(request: Request, error: Exception) -> Response:
    _log.warning("the database is away or too busy: %s", error)
    message = "the database does not answer, try again later"
    return answer(request, 503, "unavailable", message, headers={"Retry-After": str(_RETRY_AFTER[503])})


async def _gone(request: Request, _error: Exception) -> Response:
    """Nobody reads this: the client went away in the middle of its request."""
    return answer(request, 400, "client_gone", "the request ended in the middle of its body")


def _defect(request: Request) -> Response:
    """Say nothing of what happened; the server writes the traceback to its log."""
    return answer(request, 500, "internal_error", "an error of the service; it is in its log")


async def _bug(request: Request, _error: Exception) -> Response:
    """The same, sent outside of what adds the headers to all other answers."""
    said = _defect(request)
    said.raw_headers.extend(middleware.headers(request.scope))
    return said


def _headers(status: int, error: PilotageError) -> dict[str, str]:
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if status in _RETRY_AFTER:
        return {"Retry-After": str(getattr(error, "retry_after", _RETRY_AFTER[status]))}
    return {}


def _path(location: tuple[int | str, ...]) -> str:
    inner = (
        location[1:] if len(location) > 1 and location[0] in ("body", "query", "path", "header") else location
    )
    return "/".join(str(part) for part in inner)
