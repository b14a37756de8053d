"""Page of the web hooks of a VO, with their latest deliveries."""

from typing import Annotated

from fastapi import APIRouter, Form
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from pilotage.plugins.web_hooks import administration
from pilotage.plugins.web_hooks.administration import MadeWebHook, NewWebHook
from pilotage.plugins.web_hooks.routes import HookPath
from pilotage.plugins.web_hooks.stored_hooks import EVENTS
from pilotage.service import error_statuses
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Role
from pilotage.service.pages.page import PageContext, PageOf, PageRoute, RefusedForm, add_to_navigation
from requirements.errors import InvalidRequest

router = APIRouter(route_class=PageRoute)

#: Deliveries that are listed of each.
_SHOWN = 10


@router.get("/web-hooks")
@add_to_navigation("Web hooks")
@allow(Role.VO_ADMIN)
def list_hooks(page: PageOf) -> HTMLResponse:
    """List the web hooks of the caller's VO with what was sent to them last."""
    return _render(page)


def _render(
    page: PageContext, *, made: MadeWebHook | None = None, refused: RefusedForm | None = None
) -> HTMLResponse:
    hooks = administration.list_hooks(page.parts, page.caller)
    deliveries = {
        hook.hook_id: administration.list_deliveries(page.parts, page.caller, hook.hook_id, most=_SHOWN)
        for hook in hooks
    }
    return page.render(
        "web_hooks/live.html" if page.is_fragment else "web_hooks/list.html",
        status=200 if refused is None else error_statuses.status_of(refused.error),
        hooks=hooks,
        deliveries=deliveries,
        events=EVENTS,
        vos=sorted(page.parts.live.current.vos if page.caller.is_operator else page.caller.vos),
        made=made,
        refused=refused,
        chosen=EVENTS[:1] if refused is None else refused.values["events"],
    )


class WebHookForm(NewWebHook, extra="ignore"):
    """The form for a new web hook; if no event is ticked, it reports the default one."""


@router.post("/web-hooks")
@allow(Role.VO_ADMIN)
def make(page: PageOf, form: Annotated[WebHookForm, Form()]) -> HTMLResponse:
    """Make a web hook, and show its secret once."""
    try:
        made = administration.make(page.parts, page.caller, form)
    except InvalidRequest as error:
        return _render(page, refused=RefusedForm(name="hook", values=form.model_dump(), error=error))
    return _render(page, made=made)


@router.post("/web-hooks/{hook_id}/test")
@allow(Role.VO_ADMIN)
def send_test(page: PageOf, hook_id: HookPath) -> Response:
    """Send a test to a web hook."""
    administration.send_test(page.parts, page.caller, hook_id)
    return RedirectResponse(f"/web-hooks#hook-{hook_id}", 303)


@router.post("/web-hooks/{hook_id}/remove")
@allow(Role.VO_ADMIN)
def remove(page: PageOf, hook_id: HookPath) -> Response:
    """Remove a web hook."""
    administration.remove(page.parts, page.caller, hook_id)
    return RedirectResponse("/web-hooks", 303)
