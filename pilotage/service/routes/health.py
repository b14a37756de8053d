"""Whether the service lives, and whether it can do its work."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from pilotage.service.parts import Parts
from taskqueue import database

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def alive() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz")
def ready(request: Request) -> JSONResponse:
    """The database answers with a schema that fits, and the claimer is at work; 503 if not."""
    parts: Parts = request.app.state.parts
    checks = {"database": _database(parts), "claimer": "ok" if parts.claimer.alive else "has ended"}
    is_ready = all(result == "ok" for result in checks.values())
    # A configuration that cannot be read is worth a look, but the one before it serves. What is wrong with it
    # is told to operators: here anybody may ask.
    notes = {"configuration": "the newest version cannot be read"} if parts.live.problem else {}
    body = {"status": "ok" if is_ready else "not ready", "checks": checks, **notes}
    return JSONResponse(body, 200 if is_ready else 503, headers={} if is_ready else {"Retry-After": "5"})


def _database(parts: Parts) -> str:
    try:
        return "ok" if database.schema_state(parts.engine).current else "has no schema"
    except database.UNAVAILABLE:
        return "does not answer"
