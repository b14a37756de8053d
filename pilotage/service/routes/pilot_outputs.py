"""The end of what failed pilots wrote."""

from fastapi import APIRouter

from pilotage.service import pilot_scope
from pilotage.service.access import allow
from pilotage.service.api_route import SMALL, ApiRoute, CallerOf, PartsOf, takes_at_most
from pilotage.service.callers import Role
from pilotage.service.models.pilots import PilotOutputAnswer, PilotOutputNews
from pilotage.service.routes.pilots import StampPath
from taskqueue import database, pilot_outputs, pilots
from taskqueue.errors import PilotOutputNotFound
from taskqueue.pilot_outputs import PilotOutput

router = APIRouter(prefix="/pilots", tags=["pilots"], route_class=ApiRoute)


@router.post("/{stamp}/output")
@allow(Role.DIRECTOR)
@takes_at_most(SMALL)
def keep(parts: PartsOf, caller: CallerOf, stamp: StampPath, body: PilotOutputNews) -> PilotOutputAnswer:
    """Store what a pilot wrote, in place of what was stored before."""
    output = PilotOutput(stdout=body.stdout, stderr=body.stderr, stored_at=parts.clock())
    with database.writing(parts.engine) as conn:
        pilot_scope.require(caller, pilots.get(conn, stamp))
        pilot_outputs.keep(conn, stamp, output)
    return PilotOutputAnswer.model_validate(output)


@router.get("/{stamp}/output")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
def show(parts: PartsOf, caller: CallerOf, stamp: StampPath) -> PilotOutputAnswer:
    """The end of what a pilot wrote, if its director had to say how it ended."""
    with database.reading(parts.engine) as conn:
        pilot_scope.require(caller, pilots.get(conn, stamp))
        output = pilot_outputs.get(conn, stamp)
    if output is None:
        raise PilotOutputNotFound(stamp)
    return PilotOutputAnswer.model_validate(output)
