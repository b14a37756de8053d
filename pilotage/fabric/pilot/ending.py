"""Why a pilot ends, and its exit status."""

from __future__ import annotations

from dataclasses import dataclass

FINE = 0  #: as it should: enough jobs, no work, slot over, told to
REFUSED = 1  #: by the service: a bad token, an unknown queue
USAGE = 2
AWAY = 3  #: the service did not answer for too long
HOST = 4  #: this host cannot run jobs
TWIN = 5  #: another process has used our secret: it is the pilot, we are nobody


@dataclass(frozen=True)
class Ending:
    """The end of a pilot."""

    exit_status: int
    reason: str
