"""Pilotage: a DIRAC-style task queue and pilot matcher.

`Client`, `AsyncClient` and their errors are for programs of users (docs/user/python.md). They are
imported when they are first used: `import pilotage` costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pilotage.client.answers import ConfigPreview, CountedJobs, EligibilityReport
    from pilotage.client.api import ApiError, ServiceAway
    from pilotage.client.client import AsyncClient, Client, JobRecord, Pages, Resources, StatusChange
    from requirements.errors import PilotageError

__all__ = [
    "ApiError",
    "AsyncClient",
    "Client",
    "ConfigPreview",
    "CountedJobs",
    "EligibilityReport",
    "JobRecord",
    "Pages",
    "PilotageError",
    "Resources",
    "ServiceAway",
    "StatusChange",
]

_MODULES = {
    "ApiError": "pilotage.client.api",
    "PilotageError": "requirements.errors",
    "ServiceAway": "pilotage.client.api",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES.get(name, "pilotage.client.client")), name)
