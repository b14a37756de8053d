"""The public parts of the keys that sign our tokens."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from pilotage.service.parts import Parts

router = APIRouter(tags=["health"])

#: Seconds that others may keep them; a new key verifies elsewhere when they ask again.
_KEPT = 60


@router.get("/.well-known/jwks.json")
async def published_keys(request: Request) -> JSONResponse:
    """The keys that verify tokens of this installation, as a JWK set; needs no token."""
    parts: Parts = request.app.state.parts
    content = parts.tokens.keys.published(now=parts.clock())
    return JSONResponse(content, headers={"Cache-Control": f"public, max-age={_KEPT}"})
