"""Errors as HTTP: one table from types to statuses, one shape of body."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from cs_config import errors as config_errors
from matcher.preview import outlook
from pilotage.service import error_statuses, http_errors, middleware
from pilotage.service.auth import access, audit
from pilotage.service.auth.tokens import BearerToken
from pilotage.service.http_errors import TooManyRequests
from pilotage.service.pages import templating
from pilotage.service.pages.page import signed_in
from pilotage.service.services import Services
from requirements.errors import PilotageError
from taskqueue import errors as taskqueue_errors
from taskqueue.db import database

_log = logging.getLogger(__name__)

#: Errors that reject a change of the configuration.
_REFUSED_CHANGES = (config_errors.ConfigError, config_errors.VersionConflict, outlook.GuardFailed)
#: Default `Retry-After` in seconds, if the error has none.
_RETRY_AFTER = {429: 30, 503: 5}
#: Error codes for statuses that the framework itself answers.
_CODES = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large", 400: "invalid_request"}


class ErrorContent(BaseModel):
    """Description of an error."""

    code: str = Field(description="Stable word for machines, such as `job_not_found` or `stale_lease`.")
    message: str = Field(description="For people: what is wrong, where, and what would be right.")
    details: dict[str, Any] = Field(
        description="Facts for machines; `problems` lists all faults of the input."
    )


class ErrorAnswer(BaseModel):
    """The body of every answer with status 400 or higher."""

    error: ErrorContent


def install(app: FastAPI) -> None:
    """Install handlers for the errors of the table and those of the framework."""
    for kind, handler in _handlers().items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(HTTPException, _framework)  # type: ignore[arg-type]
    app.add_exception_handler(Exception, _bug)


async def answer_to(request: Request, error: Exception) -> tuple[Response, bool]:
    """Handle an error raised outside the framework; with whether it is a defect, to be raised again."""
    handlers = _handlers()
    found = next((handlers[kind] for kind in type(error).__mro__ if kind in handlers), None)
    return (_defect(request), True) if found is None else (await found(request, error), False)


def _handlers() -> Mapping[type[Exception], Callable[[Request, Any], Awaitable[Response]]]:
    away = dict.fromkeys(database.UNAVAILABLE, _unavailable)
    return {
        PilotageError: _ours,
        RequestValidationError: _validation,
        ClientDisconnect: _client_gone,
        **away,
    }


def answer(
    request: Request,
    status: int,
    code: str,
    message: str,
    details: object = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """Build the error response: JSON, or a page for a browser."""
    if templating.is_wanted(request):
        return templating.render(request, status, message, headers or {})
    body = {"error": {"code": code, "message": message, "details": details or {}}}
    return JSONResponse(body, status, headers=headers)


async def _ours(request: Request, error: PilotageError) -> Response:
    status = error_statuses.status_of(error)
    if status == 500:
        _log.error("%s is missing from the table of errors", type(error).__name__, exc_info=error)
        return _defect(request)
    parts: Services = request.app.state.parts
    parts.metrics.refused(error.code)
    if isinstance(error, taskqueue_errors.StorageAway):
        _log.warning("%s", error)
    is_change = request.method != "GET" and not request.url.path.endswith("/preview")
    if status == 403 or (is_change and isinstance(error, _REFUSED_CHANGES)):
        _audit(request, error)
    return answer(request, status, error.code, str(error), dict(error.details), _headers(status, error))


def _audit(request: Request, error: PilotageError) -> None:
    """Audit requests outside the caller's role, wherever detected, and rejected changes."""
    token: BearerToken | None = getattr(request.state, "token", None)
    path, reason = request.url.path, str(error)
    if token is None:
        audit.unproven(f"{request.method} {path}", address=access.address(request), reason=reason)
    else:
        audit.refused(token.caller, method=request.method, path=path, reason=reason)


async def _validation(request: Request, error: RequestValidationError) -> Response:
    """Answer pydantic's errors as any other invalid request."""
    return await _ours(request, http_errors.describe_refusal(error.errors()))


async def _framework(request: Request, error: HTTPException) -> Response:
    if templating.is_wanted(request) and not hasattr(
        request.state, "page"
    ):  # no route looked for its session
        with suppress(TooManyRequests):
            request.state.page = signed_in(request)
    code = _CODES.get(error.status_code, "error")
    return answer(request, error.status_code, code, str(error.detail), headers=dict(error.headers or {}))


async def _unavailable(request: Request, error: Exception) -> Response:
    parts: Services = request.app.state.parts
    parts.storage.note_failure(error)
    if not isinstance(error, database.CommitsLost):
        _log.warning("the database is unavailable or overloaded: %s", error)
    fault = parts.storage.fault
    cause = "the database does not answer" if fault is None else f"the database can store nothing: {fault}"
    message = f"{cause}; try again later"
    return answer(request, 503, "unavailable", message, headers={"Retry-After": str(_RETRY_AFTER[503])})


async def _client_gone(request: Request, _error: Exception) -> Response:
    return answer(request, 400, "client_gone", "the request ended in the middle of its body")


def _defect(request: Request) -> Response:
    """Reveal nothing of the cause; the server writes the traceback to its log."""
    return answer(request, 500, "internal_error", "an error of the service; it is in its log")


async def _bug(request: Request, _error: Exception) -> Response:
    """Add the security headers here: this handler runs outside the middleware that adds them."""
    response = _defect(request)
    response.raw_headers.extend(middleware.headers(request.scope))
    return response


def _headers(status: int, error: PilotageError) -> dict[str, str]:
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if status in _RETRY_AFTER:
        return {"Retry-After": str(getattr(error, "retry_after", _RETRY_AFTER[status]))}
    return {}
