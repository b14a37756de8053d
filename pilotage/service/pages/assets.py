"""Style, scripts and pictures of the pages, from the package; their address names their content."""

import gzip
import mimetypes
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from fastapi import APIRouter, Request, Response

from pilotage.service.refusals import NotHere

_ASSETS = Path(__file__).parent / "assets"
_FOREVER = "public, max-age=31536000, immutable"
_ASK_AGAIN = "no-cache"

router = APIRouter(prefix="/assets", include_in_schema=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """A file that pages load."""

    media_type: str
    digest: str  #: of its content, as far as an address needs it
    content: bytes
    packed: bytes  #: by gzip


@cache
def every() -> dict[str, Asset]:
    """All assets by their names; read once."""
    return {path.name: _read(path) for path in sorted(_ASSETS.iterdir()) if path.is_file()}


def _read(path: Path) -> Asset:
    content = path.read_bytes()
    media_type = mimetypes.guess_type(path.name, strict=True)[0] or "application/octet-stream"
    return Asset(
        media_type=media_type,
        digest=sha256(content).hexdigest()[:12],
        content=content,
        packed=gzip.compress(content, mtime=0),
    )


def address(name: str) -> str:
    """Where browsers load it; another content has another address, so they may keep it forever.

    Raises:
        KeyError: There is no such file.
    """
    return f"/assets/{name}?v={every()[name].digest}"


@router.get("/{name}", response_class=Response)
@router.head("/{name}", response_class=Response)
async def asset(request: Request, name: str, v: str = "") -> Response:
    """The file."""
    found = every().get(name)
    if found is None:
        raise NotHere(f"there is no {name!r:.80} among the assets")
    headers = {
        "Cache-Control": _FOREVER if v == found.digest else _ASK_AGAIN,
        "ETag": f'"{found.digest}"',
        "Vary": "Accept-Encoding",
    }
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(found.packed, headers=headers, media_type=found.media_type)
    return Response(found.content, headers=headers, media_type=found.media_type)
