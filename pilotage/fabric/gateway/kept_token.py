"""The token of a gateway: the one that it was given, or a later one that it got in exchange."""

import logging
from dataclasses import dataclass
from pathlib import Path

from pilotage.fabric import private_file
from pilotage.fabric.pilot import credentials

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptToken:
    """Where the renewed one lies."""

    file: Path

    def later_of(self, given: str) -> str:
        """The one that is good for longer of `given` and ours, if ours speaks for the same one."""
        try:
            kept = self.file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return given
        ours, theirs = credentials.claims(kept), credentials.claims(given)
        same = all(ours.get(name) == theirs.get(name) for name in ("sub", "role", "vos", "sites"))
        return kept if same and _expiry(ours.get("exp")) > _expiry(theirs.get("exp")) else given

    def write(self, token: str) -> None:
        """Keep a renewed one, for its owner only; where that cannot be, the one that was given has to do."""
        try:
            private_file.write(self.file, token)
        except OSError as error:
            log.warning("the renewed token cannot be kept: %s: %s", error.filename, error.strerror)


def _expiry(claim: object) -> float:
    return float(claim) if isinstance(claim, int | float) else 0.0
