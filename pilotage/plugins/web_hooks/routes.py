"""Web hooks of VOs and their deliveries."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field

from pilotage.plugins.web_hooks import administration
from pilotage.plugins.web_hooks.administration import DeliveryAnswer, MadeWebHook, NewWebHook, WebHookAnswer
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Role
from pilotage.service.models import ListPage, StrictInput
from pilotage.service.routing import SMALL, ApiRoute, CallerOf, PartsOf

router = APIRouter(prefix="/web-hooks", tags=["web hooks"], route_class=ApiRoute)

HookPath = Annotated[int, Path(ge=1, le=2**53, description="Number of the web hook.")]


class WebHookList(BaseModel):
    """Web hooks."""

    web_hooks: list[WebHookAnswer]


class WebHookQuery(StrictInput):
    """Filter of web hooks."""

    vo: str | None = Field(default=None, max_length=255, description="Only those of this VO.")


class DeliveryList(BaseModel):
    """Messages to a web hook, newest first."""

    deliveries: list[DeliveryAnswer]


@router.get("")
@allow(Role.VO_ADMIN)
def list_hooks(parts: PartsOf, caller: CallerOf, query: Annotated[WebHookQuery, Query()]) -> WebHookList:
    """List the web hooks of the caller's VO."""
    vos = None if query.vo is None else [query.vo]
    return WebHookList(web_hooks=administration.list_hooks(parts, caller, vos))


_EXAMPLE = {"name": "portal", "url": "https://portal.example.org/jobs", "events": ["job.ended"]}


@router.post(
    "",
    status_code=201,
    openapi_extra={"requestBody": {"content": {"application/json": {"example": _EXAMPLE}}}},
)
@allow(Role.VO_ADMIN, most_bytes=SMALL)
def make(parts: PartsOf, caller: CallerOf, body: NewWebHook) -> MadeWebHook:
    """Make a web hook: messages about events of the VO are sent to an address, signed with its secret."""
    return administration.make(parts, caller, body)


@router.get("/{hook_id}")
@allow(Role.VO_ADMIN)
def show(parts: PartsOf, caller: CallerOf, hook_id: HookPath) -> WebHookAnswer:
    """Show one web hook."""
    return administration.show(parts, caller, hook_id)


@router.get("/{hook_id}/deliveries")
@allow(Role.VO_ADMIN)
def list_deliveries(
    parts: PartsOf, caller: CallerOf, hook_id: HookPath, query: Annotated[ListPage, Query()]
) -> DeliveryList:
    """List the latest messages to a web hook, newest first; those that have ended are kept for three days."""
    return DeliveryList(deliveries=administration.list_deliveries(parts, caller, hook_id, most=query.limit))


@router.post("/{hook_id}/test", status_code=204, response_class=Response)
@allow(Role.VO_ADMIN)
def send_test(parts: PartsOf, caller: CallerOf, hook_id: HookPath) -> None:
    """Send a message of the type `test`, also if the last tries failed."""
    administration.send_test(parts, caller, hook_id)


@router.delete("/{hook_id}", status_code=204, response_class=Response)
@allow(Role.VO_ADMIN)
def remove(parts: PartsOf, caller: CallerOf, hook_id: HookPath) -> None:
    """Remove a web hook; what was not sent yet is dropped."""
    administration.remove(parts, caller, hook_id)
