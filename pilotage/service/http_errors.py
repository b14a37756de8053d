"""Why the door itself turns a request away, before anything below it is asked."""

from collections.abc import Mapping

from requirements.errors import PilotageError


class NotAuthenticated(PilotageError):
    """There is no token, or it is not good."""

    code = "not_authenticated"


class TokenRevoked(NotAuthenticated):
    """An operator revoked the token: no later request with it will be accepted."""

    code = "revoked"


class ClockBehind(PilotageError):
    """The token is of this installation and not yet valid: the clock here is behind that of another host."""

    code = "clock_behind"


class ForgedRequest(PilotageError):
    """Another site may have had the browser send it."""

    code = "forged_request"


class NotHere(PilotageError):
    """There is nothing of this kind for the caller to see."""

    code = "not_found"


class TooManyRequests(PilotageError):
    """The caller has used up its share of requests for now."""

    code = "too_many_requests"

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many requests, try again in {retry_after} s")
        self.retry_after = retry_after

    @property
    def details(self) -> Mapping[str, object]:
        """When to try again."""
        return {"retry_after": self.retry_after}


class BodyTooLarge(PilotageError):
    """The body has more bytes than the request may have."""

    code = "body_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes")
        self.limit = limit

    @property
    def details(self) -> Mapping[str, object]:
        """How much is allowed."""
        return {"limit_bytes": self.limit}


class PreconditionRequired(PilotageError):
    """A change must say which version it starts from."""

    code = "precondition_required"


class SenderSilent(PilotageError):
    """The rest of a body did not come."""

    code = "sender_silent"


class ClientGone(PilotageError):
    """The client closed the connection; nobody reads this answer."""

    code = "client_gone"
