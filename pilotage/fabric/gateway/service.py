"""The service as a gateway sees it: as a pilot does, and its throttles."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from pilotage.fabric.client import scope_path
from pilotage.fabric.pilot.service import Service, Token
from pilotage.fabric.pilot.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """What limits jobs at a site, CE or queue."""

    scope: str
    policy: str
    limits: Mapping[str, float]


class GatewayService(Service):
    """Every method raises `Away` or `Refused`; safe to use from several threads."""

    def __init__(self, transport: Transport, keep: Callable[[str], None] = lambda _: None) -> None:
        """Make it.

        Args:
            transport: Shows the token.
            keep: Stores a renewed token, so that the next process has it.
        """
        super().__init__(transport)
        self._http = transport
        self._keep = keep

    def renew_token(self) -> Token:
        """Exchange the token for one that is good for longer, show that from then on, and keep it."""
        token = super().renew_token()
        self._keep(token.text)
        return token

    def watermark(self, site: str) -> int:
        """To be fetched before counting, and stated as `as_of` in the advertisement."""
        return int(self._http.call("POST", f"{scope_path(site)}/watermark").body["watermark"])

    def advertise(self, scope: str, said: Mapping[str, object]) -> None:
        """Say how many jobs a site, `Site/CE` or `Site/CE/Queue` has."""
        self._http.call("POST", f"{scope_path(scope)}/advertisement", said)

    def throttles(self, site: str) -> list[Throttle]:
        """What limits jobs at a site and below."""
        answer = self._http.call("GET", f"/sites/{quote(site, safe='')}")
        return [_throttle(each) for each in answer.body["throttles"]]


def _throttle(raw: Mapping[str, Any]) -> Throttle:
    limits = {str(name): float(value) for name, value in raw["limits"].items()}
    return Throttle(scope=str(raw["scope"]), policy=str(raw["policy"]), limits=limits)
