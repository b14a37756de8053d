"""Fetches the configuration of a running DIRAC Configuration Server.

Source: DIRAC's HTTPS services: a form with the method and its arguments as JSON; the answer is JSON with
`OK`, and with `Value` or `Message`.
"""

import base64
import binascii
import json
import ssl
import zlib
from pathlib import Path
from typing import Any, Final

import httpx

from pilotage.cli.errors import CommandRefused, harmless
from pilotage.fabric.pilot.service import transport

#: Bytes of an unpacked configuration; the largest known ones have a few megabytes.
MOST_BYTES: Final = 64 << 20
#: Bytes of an answer: packed, and as text.
_MOST_ANSWERED: Final = 64 << 20
_SECONDS: Final = 60.0
#: Older than every version.
_NO_VERSION: Final = "0"


def is_server(source: str) -> bool:
    """Whether a source is the URL of a server, not a file."""
    return source.startswith("https://")


def fetch_configuration(url: str, *, certificate: Path | None, authorities: Path | None) -> str:
    """The configuration as CFG text.

    `certificate`: PEM file with a client certificate or proxy, and its key.
    """
    form = {
        "method": "getCompressedDataIfNewer",
        "args": json.dumps([_NO_VERSION]),
        "clientVO": "unknown",
        "clientSetup": "None",
    }
    try:
        context = transport.tls_context(authorities)
        if certificate is not None:
            context.load_cert_chain(certificate)
        with (
            httpx.Client(verify=context, timeout=_SECONDS, trust_env=False) as client,
            client.stream("POST", url, data=form) as response,
        ):
            content = b""
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > _MOST_ANSWERED:
                    raise CommandRefused(f"{url}: the answer has more than {_MOST_ANSWERED:,} bytes")
            status = response.status_code
    except (ValueError, OSError, ssl.SSLError, httpx.HTTPError, httpx.InvalidURL) as error:
        raise CommandRefused(f"{url}: {harmless(str(error)) or type(error).__name__}") from None
    return _unpack(url, status, content)


def _unpack(url: str, status: int, content: bytes) -> str:
    try:
        answer: Any = json.loads(content)
        if not answer["OK"]:
            raise CommandRefused(f"{url}: {harmless(str(answer.get('Message')))[:500]}")
        packed = base64.b64decode(answer["Value"]["data"], validate=True)
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(packed, MOST_BYTES)
        if unpacking.unconsumed_tail:
            raise CommandRefused(f"{url}: the configuration has more than {MOST_BYTES:,} bytes")
        return text.decode(errors="surrogateescape")
    except (ValueError, TypeError, KeyError, AttributeError, binascii.Error, zlib.error):
        seen = harmless(content[:100].decode(errors="replace"))
        raise CommandRefused(f"{url}: no Configuration Server answers there: {status} {seen!r}") from None
