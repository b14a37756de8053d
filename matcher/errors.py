"""The errors of the matcher that its callers can do something about."""

from requirements.errors import NotAllowed, PilotageError


class Busy(PilotageError):
    """More pilots ask at once than there is room for, or nobody is there to answer: ask again later."""

    code = "busy"
    retry_after = 5  #: seconds


class NotInTime(PilotageError):
    """No answer within the time that the pilot gave us; no job was taken for it."""

    code = "not_in_time"
    retry_after = 1  #: seconds


class Unserved(PilotageError):
    """It could not be served together with others, some of which have their jobs by now."""

    code = "unserved"

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"could not be served together with others: {cause}")
        self.cause = cause


class NotServed(NotAllowed):
    """What the resource states is outside of what its token allows: another VO, another queue."""
