"""A new job: where it would run, before it is submitted, and submitting it."""

from dataclasses import dataclass
from random import Random
from typing import Annotated, Literal
from urllib.parse import urlencode
from uuid import uuid4

from fastapi import APIRouter, Form
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from matcher.ranks import Ranked
from optimizers import foresight
from pilotage.service import explanations, submitters
from pilotage.service.access import allow
from pilotage.service.callers import Role
from pilotage.service.pages import explained
from pilotage.service.pages.explained import Explained
from pilotage.service.pages.page import Page
from pilotage.service.pages.page_route import PageOf, PageRoute
from pilotage.service.submitters import submitter_of
from requirements.errors import InvalidInput
from taskqueue import database
from taskqueue.errors import IdempotencyConflict, QuotaExceeded

router = APIRouter(route_class=PageRoute)

#: Eligible queues that are named.
_NAMED = 10
#: Jobs whose ids stand in the address of the list that follows.
_LISTED = 100
#: What stands in an empty form.
_EXAMPLE = """Executable = "/bin/echo";
Arguments = "Hello from the grid";
StdOutput = "std.out";
OutputSandbox = {"std.out"};
CPUTime = 600;
"""

Text = Annotated[str, Form()]
Key = Annotated[str, Form(max_length=64, pattern="^[0-9a-f-]*$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """Where a description would run."""

    explained: Explained
    ranked: list[Ranked]  #: the first of the eligible queues


@router.get("/jobs/new")
@router.get("/explain")
@allow(Role.USER, Role.VO_ADMIN)
def ask(page: PageOf) -> HTMLResponse:
    """An empty form."""
    return _form(page, _EXAMPLE)


@router.post("/jobs/new")
@allow(Role.USER, Role.VO_ADMIN)
def answer(
    page: PageOf, do: Annotated[Literal["explain", "submit"], Form()], jdl: Text = "", key: Key = ""
) -> Response:
    """Say where it would run; or submit it, once however often the form is sent."""
    try:
        if do == "explain":
            return _form(page, jdl, foretold=_foretell(page, jdl), key=key)
        return _submit(page, jdl, key)
    except (InvalidInput, QuotaExceeded, IdempotencyConflict) as error:
        new_key = "" if isinstance(error, IdempotencyConflict) else key
        return _form(page, jdl, refused=error, key=new_key, status=400)


def _foretell(page: Page, jdl: str) -> Foretold:
    parts = page.parts
    config, now = parts.live.current, parts.clock()
    foreseen = foresight.of_source(config, submitter_of(page.caller), jdl, now=now)
    with database.reading(parts.engine) as conn:
        found = explanations.of_foreseen(conn, config, foreseen, forwarding=True, now=now)
    ranked = explanations.ranked_queues_of_foreseen(config, foreseen, random=Random(0))
    return Foretold(explained=explained.of(found), ranked=ranked[:_NAMED])


def _submit(page: Page, jdl: str, key: str) -> RedirectResponse:
    job_ids = submitters.submit(page.parts, page.caller, [jdl], key=f"page:{key}" if key else None)
    if len(job_ids) == 1:
        return RedirectResponse(f"/jobs/{job_ids[0]}", 303)
    query = {"ids": ",".join(map(str, job_ids[:_LISTED]))}
    return RedirectResponse(f"/jobs?{urlencode(query)}", 303)


def _form(
    page: Page,
    jdl: str,
    *,
    foretold: Foretold | None = None,
    refused: Exception | None = None,
    key: str = "",
    status: int = 200,
) -> HTMLResponse:
    return page.render(
        "jobs/new.html",
        status=status,
        jdl=jdl,
        foretold=foretold,
        refused=str(refused) if refused else None,
        key=key or str(uuid4()),
    )
