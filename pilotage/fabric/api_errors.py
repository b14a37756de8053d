"""What a client of the HTTP interface may meet."""

from collections.abc import Mapping
from typing import Any

from requirements.errors import PilotageError


class ServiceAway(PilotageError):
    """Nothing answers, or not in time: try again later."""

    code = "service_away"


class ApiError(PilotageError):
    """The service refuses the request."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str,
        details: Mapping[str, Any],
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status  #: of HTTP
        self.code = code  # type: ignore[misc]  # told by the service, not by the type
        self.retry_after = retry_after  #: seconds; None: trying again will not help
        self._details = details

    @property
    def details(self) -> Mapping[str, Any]:
        """What the service says beside the message."""
        return self._details
