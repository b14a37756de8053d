"""Client of the service's API for gateways, and the file with the gateway's renewed token."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pilotage.fabric.client import scope_path
from pilotage.fabric.pilot import job_files
from pilotage.fabric.pilot.service import credentials
from pilotage.fabric.pilot.service.service_client import Service, Token
from pilotage.fabric.pilot.service.transport import Transport

log = logging.getLogger(__name__)


class GatewayService(Service):
    """API of the service for gateways; thread-safe. Every method raises `Away` or `Refused`."""

    def __init__(self, transport: Transport, keep: Callable[[str], None] = lambda _: None) -> None:
        """Set up the client; `keep` stores a renewed token for the next process."""
        super().__init__(transport)
        self._http = transport
        self._keep = keep

    def renew_token(self) -> Token:
        """Exchange the token for one that expires later, use it from then on, and store it."""
        token = super().renew_token()
        self._keep(token.text)
        return token

    def watermark(self, site: str) -> int:
        """Fetch a watermark; call before counting, and send as `as_of` in the advertisement."""
        return int(self._http.call("POST", f"{scope_path(site)}/watermark").body["watermark"])

    def advertise(self, scope: str, said: Mapping[str, object]) -> None:
        """Advertise the number of jobs at a site, `Site/CE` or `Site/CE/Queue`."""
        self._http.call("POST", f"{scope_path(scope)}/advertisement", said)

    def throttles(self, site: str) -> Sequence[Mapping[str, Any]]:
        """The throttles at a site and below: `scope`, `policy`, `limits` by name."""
        throttles: Sequence[Mapping[str, Any]]
        throttles = self._http.call("GET", f"/sites/{quote(site, safe='')}").body["throttles"]
        return throttles


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptToken:
    """The file of the renewed token."""

    file: Path

    def later_of(self, given: str) -> str:
        """The later to expire of `given` and the stored token, if both have the same identity."""
        try:
            kept = self.file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return given
        ours, theirs = credentials.read_claims(kept), credentials.read_claims(given)
        same = all(ours.get(name) == theirs.get(name) for name in ("sub", "role", "vos", "sites"))
        return kept if same and _expiry(ours.get("exp")) > _expiry(theirs.get("exp")) else given

    def write(self, token: str) -> None:
        """Store a renewed token, readable by its owner only; on failure the given one stays in use."""
        try:
            job_files.write(str(self.file.parent), self.file.name, token.encode())
        except OSError as error:
            log.warning("the renewed token cannot be stored: %s: %s", self.file, error.strerror)


def _expiry(claim: object) -> float:
    return float(claim) if isinstance(claim, int | float) else 0.0
