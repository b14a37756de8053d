"""Client of the service's API for gateways."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from pilotage.client.api import RenewableToken, scope_path
from pilotage.fabric.pilot.service.service_client import Service
from pilotage.fabric.pilot.service.transport import Transport


class GatewayService(Service):
    """API of the service for gateways; thread-safe. Every method raises `Away` or `Refused`."""

    def __init__(self, transport: Transport, tokens: RenewableToken) -> None:
        """Set up the client, whose transport shows the same tokens."""
        super().__init__(transport)
        self._tokens = tokens

    def renew_if_due(self) -> None:
        """Exchange the token for one that expires later, if it is due, and keep it for the next process."""
        if self._tokens.is_due():
            self._tokens.keep(self.renew_token().text)

    def watermark(self, site: str) -> int:
        """Fetch a watermark; call before counting, and send as `as_of` in the advertisement."""
        return int(self._transport.call("POST", f"{scope_path(site)}/watermark").body["watermark"])

    def advertise(self, scope: str, said: Mapping[str, object]) -> None:
        """Advertise the number of jobs at a site, `Site/CE` or `Site/CE/Queue`."""
        self._transport.call("POST", f"{scope_path(scope)}/advertisement", said)

    def report_local_jobs(self, lease: str, local_jobs: Sequence[Mapping[str, object]]) -> None:
        """Report some local jobs of a grid job."""
        self._transport.call("PUT", f"/leases/{quote(lease)}/local-jobs", {"local_jobs": list(local_jobs)})

    def report_process(self, report: Mapping[str, object]) -> None:
        """Report that this gateway works."""
        self._transport.call("POST", "/site-processes", report)

    def throttles(self, site: str) -> Sequence[Mapping[str, Any]]:
        """The throttles at a site and below: `scope`, `policy`, `limits` by name."""
        throttles: Sequence[Mapping[str, Any]]
        throttles = self._transport.call("GET", f"/sites/{quote(site, safe='')}").body["throttles"]
        return throttles
