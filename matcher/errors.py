"""Errors of the matcher that callers can handle."""

from requirements.errors import NotAllowed, PilotageError


class Busy(PilotageError):
    """Too many pilots ask at once, or the claim thread is not running; retry later."""

    code = "busy"
    retry_after = 5  #: seconds


class NotInTime(PilotageError):
    """No result before the pilot's deadline; no job was claimed for it."""

    code = "not_in_time"
    retry_after = 1  #: seconds


class Unserved(PilotageError):
    """Requests served together failed; some of them may have their jobs by now."""

    code = "unserved"

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"could not be served together with others: {cause}")
        self.cause = cause


class NotServed(NotAllowed):
    """The stated VO or queue is outside the token's rights."""
