"""A client that calls DIRAC's services as those of DIRAC 9 do: every call is a TLS connection of its own.

It needs neither DIRAC's package nor a process for each client. Source: DIRAC 9.1, `TornadoBaseClient`.
"""

import http.client
import json
import random
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

#: Seconds.
_TIMEOUT = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class WireClient:
    """The owner of a proxy, with the URLs of equal doors."""

    urls: Sequence[str]
    proxy: Path
    authority: Path  #: the certificate that has signed those of the doors
    address: str = "127.0.0.1"  #: from which it calls
    _context: list[ssl.SSLContext] = field(default_factory=list)

    def call(self, service: str, method: str, *arguments: object) -> dict[str, Any]:
        """The result; each URL is tried once, in any order, until one answers.

        Raises:
            OSError: No door has answered; the call may have been carried out.
        """
        form = urlencode({"method": method, "args": json.dumps(arguments), "clientVO": "unknown"}).encode()
        fault: Exception = ConnectionError("there is no URL")
        for url in random.sample(self.urls, len(self.urls)):
            try:
                return self._post(f"{url}/WorkloadManagement/{service}", form)
            except (OSError, http.client.HTTPException) as error:
                fault = error
        raise ConnectionError(f"{service}.{method}: {fault}") from fault

    def _post(self, url: str, form: bytes) -> dict[str, Any]:
        where = urlsplit(url)
        connection = http.client.HTTPSConnection(
            where.netloc,
            timeout=_TIMEOUT,
            source_address=(self.address, 0),
            context=self._read_context(),
        )
        try:
            connection.request(
                "POST", where.path, form, {"Content-Type": "application/x-www-form-urlencoded"}
            )
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise ConnectionError(f"{url}: {answer.status} {text[:200]!r}")
            found: dict[str, Any] = json.loads(text)
            return found
        finally:
            connection.close()

    def _read_context(self) -> ssl.SSLContext:
        if not self._context:
            context = ssl.create_default_context(cafile=str(self.authority))
            context.load_cert_chain(self.proxy)
            self._context.append(context)
        return self._context[0]
