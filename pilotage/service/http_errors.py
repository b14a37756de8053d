"""Errors that reject a request before its handler runs."""

from collections.abc import Iterable, Mapping
from typing import Any

from requirements import input_faults
from requirements.errors import InvalidRequest, NotAllowed, PilotageError, Problem


def describe_refusal(errors: Iterable[Mapping[str, Any]]) -> InvalidRequest:
    """What the framework found wrong with the parameters or the body of a request, in our words."""
    faults = input_faults.list_faults(errors)
    return InvalidRequest(
        [
            Problem(path=_path(each.location), message=each.message, suggestion=each.suggestion)
            for each in faults
        ]
    )


def _path(location: input_faults.Location) -> str:
    inner = (
        location[1:] if len(location) > 1 and location[0] in ("body", "query", "path", "header") else location
    )
    return "/".join(str(part) for part in inner)


class NotAuthenticated(PilotageError):
    """The token is missing or invalid."""

    code = "not_authenticated"


class TokenRevoked(NotAuthenticated):
    """An operator revoked the token; no later request with it is accepted."""

    code = "revoked"


class NotHeard(NotAllowed):
    """The pilot was not heard for so long that its token is not renewed; after its next request it is."""

    code = "not_heard"


class ClockBehind(PilotageError):
    """The token is ours but not valid yet: the clock of this host is behind that of the issuing host."""

    code = "clock_behind"


class ClockWrong(PilotageError):
    """The clock of this host differs so much from the database's that it hands out no jobs."""

    code = "clock_wrong"


class ForgedRequest(PilotageError):
    """The request may have been sent by another site through the user's browser (CSRF)."""

    code = "forged_request"


class NotHere(PilotageError):
    """The resource does not exist, or the caller may not see it."""

    code = "not_found"


class TooManyRequests(PilotageError):
    """The caller has exhausted its request rate."""

    code = "too_many_requests"

    def __init__(self, retry_after: int, what: str = "requests") -> None:
        super().__init__(f"too many {what}, try again in {retry_after} s")
        self.retry_after = retry_after
        self.details = {"retry_after": retry_after}


class TooManyStreams(PilotageError):
    """The caller or its VO has too many streams of events open; the same changes come by polling."""

    code = "too_many_requests"
    retry_after = 30  #: seconds

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}: poll GET /api/v1/jobs/changes, or try again in {self.retry_after} s")
        self.details = {"retry_after": self.retry_after}


class CursorExpired(PilotageError):
    """The cursor means nothing any more; the client has to begin anew."""

    code = "cursor_expired"


class LogBusy(PilotageError):
    """Transactions are under way that may still add changes before the present; retry later."""

    code = "busy"
    retry_after = 5  #: seconds


class TooManyLogins(PilotageError):
    """Too many command lines wait for a login; retry later."""

    code = "busy"
    retry_after = 60  #: seconds


class BodyTooLarge(PilotageError):
    """The body exceeds the size limit of the request."""

    code = "body_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes")
        self.details = {"limit_bytes": limit}


class PreconditionRequired(PilotageError):
    """The change lacks the version that it starts from."""

    code = "precondition_required"


class SenderSilent(PilotageError):
    """The rest of the body did not arrive in time."""

    code = "sender_silent"


class ClientGone(PilotageError):
    """The client closed the connection before the answer."""

    code = "client_gone"


class ServiceEnding(PilotageError):
    """The service ends before the request did; another process, or the next one, answers it."""

    code = "service_ending"
    retry_after = 1  #: seconds
