"""Fetches the configuration of a running DIRAC Configuration Server.

Source: DIRAC's services: a call has a method and its arguments as JSON, the answer is JSON with `OK`, and
with `Value` or `Message`; over HTTPS in a form, or by DIRAC's own protocol (`dips`).
"""

import asyncio
import base64
import binascii
import json
import ssl
import zlib
from pathlib import Path
from typing import Any, Final

import httpx

from pilotage.bounded_http import BoundedTransport
from pilotage.cli.errors import CommandRefused, harmless
from pilotage.fabric.pilot.service import transport
from requirements.errors import InvalidRequest

#: Bytes of an unpacked configuration; the largest known ones have a few megabytes.
MOST_BYTES: Final = 64 << 20
#: Bytes of an answer: packed, and as text.
MOST_ANSWERED: Final = 64 << 20
LONGEST: Final = 60.0
_METHOD: Final = "getCompressedDataIfNewer"
#: Older than every version.
_NO_VERSION: Final = "0"


def is_server(source: str) -> bool:
    """Whether a source is the URL of a server, not a file."""
    return source.startswith(("https://", "dips://"))


def fetch_configuration(url: str, *, certificate: Path | None, authorities: Path | None) -> str:
    """The configuration as CFG text.

    `certificate`: PEM file with a client certificate or proxy, and its key.
    """
    try:
        context = transport.tls_context(authorities)
        if certificate is not None:
            context.load_cert_chain(certificate)
        if url.startswith("dips://"):
            return _unpack_answer(url, asyncio.run(_fetch_dips(url, context)))
        return _unpack(url, *_fetch_https(url, context))
    except (ValueError, OSError, EOFError, httpx.HTTPError, httpx.InvalidURL) as error:  # also of TLS
        problem = harmless(str(error)) or type(error).__name__
        hint = _hint(url, error, with_certificate=certificate is not None)
        raise CommandRefused(f"{url}: {problem}{hint}") from None


#: Errors where the server has ended a connection.
_ENDED: Final = (
    *(ConnectionError, EOFError, ssl.SSLError),
    *(httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError),
)


def _hint(url: str, error: Exception, *, with_certificate: bool) -> str:
    """Advice for when the server has ended the connection."""
    if not isinstance(error, _ENDED):
        return ""
    if not with_certificate:
        return "; DIRAC's servers require a client certificate (--certificate)"
    other = f"; if the server has no HTTPS, its URL is dips://{url.removeprefix('https://')}"
    return other if isinstance(error, httpx.RemoteProtocolError) else ""


def _fetch_https(url: str, context: ssl.SSLContext) -> tuple[int, bytes]:
    """The status and the content of the answer."""
    form = {
        "method": _METHOD,
        "args": json.dumps([_NO_VERSION]),
        "clientVO": "unknown",
        "clientSetup": "None",
    }
    bounded = BoundedTransport(context, seconds=LONGEST, most=MOST_ANSWERED)
    with httpx.Client(transport=bounded, timeout=LONGEST) as client:
        response = client.post(url, data=form)
    return response.status_code, response.content


async def _fetch_dips(url: str, context: ssl.SSLContext) -> object:
    """The answer of a server that speaks DIRAC's own protocol."""
    try:
        from pilotage.plugins.dirac import former  # which loads much that other commands do not need
    except ModuleNotFoundError:
        raise CommandRefused(f"{url}: dips is read by the plug-in dirac, which was left out") from None
    try:
        server = former.read_url(url)
    except InvalidRequest:
        raise CommandRefused(
            f"{url}: a URL is needed such as dips://dirac.example.org:9135/Configuration/Server"
        ) from None
    try:
        async with asyncio.timeout(LONGEST):
            return await former.call_dips(
                server, _METHOD, [_NO_VERSION], caller=("unknown", ""), context=context
            )
    except former.NotReached as error:
        raise OSError(str(error)) from None
    except InvalidRequest as error:
        raise ValueError(str(error)) from None


def _unpack(url: str, status: int, content: bytes) -> str:
    try:
        return _unpack_answer(url, json.loads(content))
    except ValueError:
        seen = harmless(content[:100].decode(errors="replace"))
        raise CommandRefused(f"{url}: no Configuration Server answers there: {status} {seen!r}") from None


def _unpack_answer(url: str, answer: Any) -> str:
    """The text in the answer; ValueError: it is none of a Configuration Server."""
    try:
        if not answer["OK"]:
            raise CommandRefused(f"{url}: {harmless(str(answer.get('Message')))[:500]}")
        data = answer["Value"]["data"]
        packed = data if isinstance(data, bytes) else base64.b64decode(data, validate=True)
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(packed, MOST_BYTES)
        if unpacking.unconsumed_tail:
            raise CommandRefused(f"{url}: the configuration has more than {MOST_BYTES:,} bytes")
        return text.decode(errors="surrogateescape")
    except (TypeError, KeyError, AttributeError, binascii.Error, zlib.error) as error:
        raise ValueError(f"no Configuration Server answers there: {type(error).__name__}") from None
