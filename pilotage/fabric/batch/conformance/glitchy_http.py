"""Faults of HTTP connections, made on purpose: for the conformance kit."""

import json
import ssl
from dataclasses import dataclass

import httpx

from pilotage.fabric.batch.arc import rest as arc_rest
from pilotage.fabric.batch.conformance.glitches import Glitch

_FULL = {"job": {"status-code": "500", "reason": "Failed to store job description, on purpose"}}


@dataclass(slots=True, kw_only=True)
class GlitchyHttp:
    """Connections to a CE that do what `glitch` says to every request, as long as it says so."""

    glitch: Glitch | None = None

    def connect(self, context: ssl.SSLContext) -> httpx.BaseTransport:
        """Connections over TLS, with the faults."""
        return _Transport(self, arc_rest.connect(context))


class _Transport(httpx.BaseTransport):
    def __init__(self, faults: GlitchyHttp, real: httpx.BaseTransport) -> None:
        self._faults = faults
        self._real = real

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and spoil it or its answer."""
        glitch = self._faults.glitch
        if glitch is Glitch.TIMEOUT:
            raise httpx.ReadTimeout("no answer, on purpose", request=request)
        if glitch is Glitch.FULL and request.url.params.get("action") == "new":
            return httpx.Response(201, json=_FULL)
        response = self._real.handle_request(request)
        if glitch is Glitch.LATE:
            response.close()
            raise httpx.ReadTimeout("no answer, on purpose, after the work was done", request=request)
        return _spoiled(response, glitch) if glitch in (Glitch.PARTIAL, Glitch.DOUBLED) else response

    def close(self) -> None:
        """Close the connections."""
        self._real.close()


def _spoiled(response: httpx.Response, glitch: Glitch) -> httpx.Response:
    """An answer with half of its jobs, or with each of them twice."""
    content = response.read()
    answer = json.loads(content) if content.startswith(b"{") else {}
    jobs = answer.get("job")
    if isinstance(jobs, dict):
        jobs = [jobs]
    if isinstance(jobs, list):
        spoiled = jobs[: len(jobs) // 2] if glitch is Glitch.PARTIAL else [*jobs, *jobs]
        content = json.dumps({"job": spoiled}).encode()
    return httpx.Response(response.status_code, content=content)
