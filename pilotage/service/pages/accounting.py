"""Accounting: what was used, by whom and where, as a plot, a table and CSV."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from pilotage.service import accounting_csv, accounts
from pilotage.service.access import allow
from pilotage.service.callers import Caller, Role
from pilotage.service.models.accounting import AccountingAnswer, AccountingQuery
from pilotage.service.pages import accounting_plot
from pilotage.service.pages.accounting_plot import QUANTITIES
from pilotage.service.pages.navigation import in_navigation
from pilotage.service.pages.page import Page
from pilotage.service.pages.page_route import PageOf, PageRoute
from taskqueue import database
from taskqueue.accounting.report import Bucket

router = APIRouter(route_class=PageRoute)

#: Times that are one click away.
RANGES: Final = (("24h", "24 hours"), ("7d", "7 days"), ("30d", "30 days"), ("365d", "a year"))
#: What to look at next in one of these.
_DEEPER: Final = {"vo": "site", "site": "queue", "ce": "queue", "owner_group": "owner"}
_FILTERS: Final = ("vo", "site", "ce", "queue", "owner", "owner_group", "status")


class AccountingShown(BaseModel):
    """What the address of the page says."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    by: str = Field(
        default="vo", max_length=40, pattern="^[a-z_]+$"
    )  # one of them: it is a column of the page
    quantity: str = Field(default="jobs", max_length=40)
    since: str = Field(default="7d", alias="from", max_length=40)
    until: str | None = Field(default=None, alias="to", max_length=40)
    bucket: Bucket | None = None
    vo: str | None = Field(default=None, max_length=1000)
    site: str | None = Field(default=None, max_length=1000)
    ce: str | None = Field(default=None, max_length=1000)
    queue: str | None = Field(default=None, max_length=1000)
    owner: str | None = Field(default=None, max_length=1000)
    owner_group: str | None = Field(default=None, max_length=1000)
    status: str | None = Field(default=None, max_length=1000)

    @model_validator(mode="before")
    @classmethod
    def _stated(cls, given: Any) -> Any:
        """Fields of the form that were left empty are not there."""
        return (
            {name: value for name, value in given.items() if value != ""}
            if isinstance(given, dict)
            else given
        )

    @property
    def filters(self) -> dict[str, str]:
        """What the sums are of, by name."""
        return {name: value for name in _FILTERS if (value := getattr(self, name)) is not None}

    def asks(self, *, bucket: Bucket | None = None) -> AccountingQuery:
        """It as a question of the interface."""
        return AccountingQuery.model_validate(
            {"by": [self.by], "from": self.since, "to": self.until, "bucket": bucket, **self.filters}
        )


@router.get("/accounting")
@in_navigation("Accounting")
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN)
def show(page: PageOf, shown: Annotated[AccountingShown, Query()]) -> HTMLResponse:
    """What was used: users see their own, VO admins their VO's, site admins what was used at their sites."""
    whole = _answer(page, shown.asks())
    bucket = accounting_plot.bucket_for(whole.since, whole.until, shown.bucket)
    wanted = accounting_plot.quantity(shown.quantity)
    drawn, steps = accounting_plot.draw(_answer(page, shown.asks(bucket=bucket)), wanted)
    return page.render(
        "accounting/accounting.html",
        shown=shown,
        answer=whole,
        rows=sorted(whole.rows, key=lambda row: -wanted.of(row)),
        name_of=accounting_plot.name_of,
        wanted=wanted,
        quantities=QUANTITIES,
        ranges=RANGES,
        dimensions=accounts.dimensions(page.caller),
        buckets=list(Bucket),
        bucket=bucket,
        plot=drawn,
        steps=steps,
        fields=_fields(page.caller),
        deeper=_deeper(page.caller, shown.by),
    )


@router.get("/accounting.csv", response_class=Response)
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN)
def download(page: PageOf, shown: Annotated[AccountingShown, Query()]) -> Response:
    """What the page shows, for spreadsheets."""
    question = shown.asks()
    text = accounting_csv.text(
        _answer(page, question if shown.bucket is None else shown.asks(bucket=shown.bucket))
    )
    attachment = {"Content-Disposition": 'attachment; filename="accounting.csv"', "Cache-Control": "no-store"}
    return Response(text, media_type=accounting_csv.MEDIA_TYPE, headers=attachment)


def _answer(page: Page, query: AccountingQuery) -> AccountingAnswer:
    question = accounts.understand(page.caller, query, now=page.parts.clock())
    with database.reading(page.parts.engine) as conn:
        return accounts.answer(conn, question)


def _fields(caller: Caller) -> Sequence[str]:
    """Fields of the form, for what is not settled by who asks."""
    settled = {Role.USER: {"vo", "owner", "owner_group"}, Role.VO_ADMIN: {"vo"}}.get(caller.role, set())
    return [
        name
        for name in ("vo", "site", "owner", "status")
        if name in set(accounts.dimensions(caller)) - settled
    ]


def _deeper(caller: Caller, by: str) -> str | None:
    """By what to look into one value."""
    wanted = _DEEPER.get(by)
    return wanted if wanted in accounts.dimensions(caller) else None
