"""A filter with a refused value comes back as it was typed, with what is wrong, and without a list."""

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest
from fastapi.routing import APIRoute
from playwright.sync_api import expect
from pydantic import BaseModel

from pilotage.service.pages.navigation import list_pages
from pilotage.service.pages.page import PageRoute
from tests.integration.pilotage.service.pages.test_access import address, session
from tests.support.page_walk import ROLES
from tests.support.servers.chromium import SignedIn, picture
from tests.support.service import Service

#: Pages whose query is no form that people fill in, with what it is.
CHOSEN: Mapping[str, str] = {
    "/": "tabs",
    "/accounting.csv": "a download",
    "/campaigns/end": "a link",
    "/configuration/diff": "versions of a list",
    "/configuration/paths": "of a script",
    "/configuration/rollback": "a link",
    "/explain": "a link",
    "/jobs/change": "ticked jobs, or a filter that the list took",
    "/jobs/download": "a download",
    "/jobs/events": "of a script",
    "/jobs/new": "a link",
    "/jobs/resubmit": "ticked jobs, or a filter that the list took",
    "/jobs/{job_id}": "a link",
    "/login/device": "of a command line; its form is sent by POST",
}
#: Pages that show more than what the form selects.
WHOLE = frozenset({"/configuration", "/sites/{site}", "/sites/{site}/{ce}/{queue}"})
#: Refused somewhere: no number, too small, not storable, too long.
SUSPECTS = ("soon", "-1", "a\0b", "x" * 3000)


@dataclass
class Form:
    """A form of a page that is sent as a query."""

    action: str
    controls: dict[str, Mapping[str, str | None]] = field(default_factory=dict)  #: to fill in, by name
    chosen: dict[str, str] = field(default_factory=dict)  #: selected options


class Forms(HTMLParser):
    """The forms of a page that are sent as a query, and the texts of its elements with an id."""

    def __init__(self, text: str, path: str) -> None:
        super().__init__()
        self.found: list[Form] = []
        self.texts: dict[str, str] = {}
        self._path, self._select, self._id = path, "", ""
        self._form: Form | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._id = given.get("id") or ""
        if tag == "form" and given.get("method", "get") == "get":
            self._form = Form(urlsplit(given.get("action") or self._path).path)
            self.found.append(self._form)
        elif self._form is None:
            return
        elif tag == "select" or (
            tag == "input" and given.get("type") not in ("hidden", "checkbox", "radio", "submit")
        ):
            self._select = str(given["name"])
            self._form.controls[self._select] = given
        elif tag == "option" and "selected" in given:
            self._form.chosen[self._select] = given.get("value") or ""
            self._id = f"option of {self._select}"

    def handle_data(self, data: str) -> None:
        if self._id:
            self.texts[self._id] = self.texts.get(self._id, "") + data
            if self._form is not None and self._id == f"option of {self._select}":
                self._form.chosen[self._select] = self._form.chosen[self._select] or data

    def handle_endtag(self, tag: str) -> None:
        self._id = ""
        if tag == "form":
            self._form = None

    def find(self, path: str) -> Form:
        """The first form to this path, one without controls if there is none."""
        return next((each for each in self.found if each.action == path and each.controls), Form(path))


def list_routes() -> list[PageRoute]:
    """The pages that are read, also those of plug-ins."""
    routes = [route for router in list_pages() for route in router.routes if isinstance(route, PageRoute)]
    return [route for route in routes if route.methods == {"GET"}]


def list_names(route: APIRoute) -> Iterator[str]:
    """The parameters of the query of a page."""
    for each in route.dependant.query_params:
        kind = each.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from (of.alias or name for name, of in kind.model_fields.items())
        else:
            yield each.alias


def list_filters() -> list[PageRoute]:
    return [route for route in list_routes() if route.shows_filter]


def test_each_page_with_a_query_shows_it_as_a_form_or_is_known_to_have_none() -> None:
    queries = {route.path for route in list_routes() if list(list_names(route))}
    assert queries - {route.path for route in list_filters()} == set(CHOSEN)


@pytest.mark.parametrize("role", ["operator", "vo_admin", "user"])
def test_each_form_to_fill_in_leads_to_a_page_that_shows_it_when_it_is_refused(
    world: Service, role: str
) -> None:
    shown = {address(route.path) for route in list_filters()}
    seen = set()
    world.parts.job_events.longest = 0.1
    with session(world, **ROLES[role]) as browser:
        for route in list_routes():
            answer = browser.get(address(route.path), headers={"Accept": "text/html"})
            if answer.status_code != 200 or "html" not in answer.headers["content-type"]:
                continue
            for form in Forms(answer.text, address(route.path)).found:
                if form.controls:
                    seen.add(form.action)
                    assert form.action in shown, (route.path, form)
    assert {"/jobs", "/accounting", "/search", "/sites", "/shares"} <= seen


def is_shown_again(page: str, path: str, query: Mapping[str, str], names: Sequence[str]) -> None:
    """Check that the page has the form as it was typed, with what is wrong with these fields."""
    assert "<h1>Invalid request</h1>" not in page
    assert "<h1>Not found</h1>" not in page
    read = Forms(page, path)
    form = read.find(path)
    for name, value in query.items():
        if name in form.controls:
            control = form.controls[name]
            typed = form.chosen[name] if "value" not in control else control["value"]
            assert typed == value, (name, control)
    for name in names:
        if name in form.controls:
            control = form.controls[name]
            assert control.get("aria-invalid") == "true", (name, control)
            assert read.texts[str(control["aria-describedby"])].strip()
        else:
            [told] = re.findall(r'<p class="note bad said" role="alert">([^<]*)</p>', page)
            assert f"{name}: " in told
    wrong = [name for name, control in form.controls.items() if "aria-invalid" in control]
    assert set(wrong) <= set(names)


@pytest.mark.parametrize("role", ["operator", "vo_admin"])
@pytest.mark.parametrize("path", [route.path for route in list_filters()])
def test_a_page_shows_its_form_again_whatever_is_refused(world: Service, path: str, role: str) -> None:
    [route] = [route for route in list_filters() if route.path == path]
    refused = set()
    with session(world, **ROLES[role]) as browser:
        whole = browser.get(address(path), follow_redirects=True)
        assert whole.status_code == 200
        for name in list_names(route):
            for value in SUSPECTS:
                answer = browser.get(address(path), params={name: value})
                if answer.status_code in (200, 303, 403):  # taken, and none of the caller's VOs
                    continue
                refused.add(name)
                assert answer.status_code == 400, answer.text
                is_shown_again(answer.text, address(path), {name: value}, [name])
                if path not in WHOLE:
                    assert "<table" not in answer.text
                    assert "/jobs/change" not in answer.text  # nothing is selected, least of all everything
                part = browser.get(address(path), params={name: value}, headers={"HX-Request": "true"})
                assert "<form" not in part.text.partition("<main")[2]
    assert refused == set(list_names(route))


@pytest.mark.parametrize(
    ("path", "query", "told"),
    [
        (
            "/jobs",
            {"updated_since": "yesterday", "owner": "ada"},
            {"updated_since": "'yesterday' is not a time"},
        ),
        ("/jobs", {"submitted_before": "2026-13-01"}, {"submitted_before": "is not a time"}),
        ("/jobs", {"status": "Runing", "job_group": "scan"}, {"status": "did you mean Running?"}),
        ("/jobs", {"exit_code": "seven"}, {"exit_code": "'seven' is not allowed"}),
        ("/jobs", {"ids": "17, x"}, {"ids": "'x' is not allowed"}),
        ("/jobs", {"sort": "nothing"}, {"sort": "nothing"}),
        ("/jobs", {"limit": "many", "exit_code": "x"}, {"limit": "'many'", "exit_code": "'x'"}),
        ("/pilots", {"hours": "-3", "site": "LCG.A.org"}, {"hours": "allowed is more than 0"}),
        ("/pilots", {"status": "Runing", "hours": "12"}, {"status": "did you mean Running?"}),
        (
            "/pilots",
            {"status": "Runing", "hours": "soon"},
            {"status": "did you mean Running?", "hours": "a number"},
        ),
        ("/failures", {"hours": "soon", "vo": "dune"}, {"hours": "allowed is a number"}),
        ("/accounting", {"from": "last week", "by": "site"}, {"from": "is not a time"}),
        ("/accounting", {"from": "2026-03-02", "to": "2026-03-01"}, {"from": "is not before the end"}),
        ("/accounting", {"status": "Dnoe", "quantity": "cpu"}, {"status": "did you mean Done?"}),
        ("/accounting", {"bucket": "week"}, {"bucket": "'week' is not allowed"}),
        ("/accounting", {"by": "colour"}, {"by": "'colour' is not among"}),
        ("/shares", {"first": "one", "second": "2"}, {"first": "'one' is not allowed"}),
        ("/sites", {"state": "opne", "q": "LCG"}, {"state": "did you mean open?"}),
        ("/managers", {"local": "waiting", "site": "LCG.A.org"}, {"local": "'waiting' is not allowed"}),
        ("/task-queues", {"pool": "x" * 65, "group": "cms_user"}, {"pool": "at most 64 characters"}),
        ("/pools", {"limit": "0", "vo": "cms"}, {"limit": "at least 1"}),
        ("/campaigns", {"q": "x" * 300}, {"q": "at most 255 characters"}),
        ("/search", {"q": "x" * 300}, {"q": "at most 255 characters"}),
        ("/configuration/history", {"limit": "0", "path": "Resources"}, {"limit": "at least 1"}),
    ],
)
def test_what_is_wrong_is_said_beside_its_field(
    world: Service, path: str, query: Mapping[str, str], told: Mapping[str, str]
) -> None:
    with session(world, **ROLES["operator"]) as browser:
        answer = browser.get(path, params=query)
    assert answer.status_code == 400
    is_shown_again(answer.text, path, query, list(told))
    text = html.unescape(answer.text)
    for message in told.values():
        assert text.count(message) == 1, message


def test_a_job_that_does_not_exist_is_said_below_the_form(world: Service) -> None:
    with session(world, **ROLES["operator"]) as browser:
        answer = browser.get("/shares", params={"first": "1", "second": "999999", "vo": "dune"})
    assert answer.status_code == 404
    is_shown_again(answer.text, "/shares", {"first": "1", "second": "999999", "vo": "dune"}, [])
    assert "999999" in answer.text.partition('role="alert"')[2].partition("</p>")[0]


def test_what_no_form_can_correct_has_an_error_page(world: Service) -> None:
    with session(world, **ROLES["operator"]) as browser:
        for path, status in (
            ("/sites/NO.Such.site?vo=cms", 404),
            ("/jobs/change?do=kill&updated_since=yesterday", 400),
            ("/jobs/download?updated_since=yesterday", 400),
        ):
            answer = browser.get(path)
            assert answer.status_code == status, path
            assert re.search("<h1>(Invalid request|Not found)</h1>", answer.text), path


@pytest.mark.debian("chromium")
def test_a_refused_filter_is_corrected_where_it_was_typed(world: Service, signed_in: SignedIn) -> None:
    page = signed_in(world, role="operator", user="root")
    page.goto("/jobs")
    page.get_by_text("More", exact=True).click()
    page.get_by_role("textbox", name="Owner", exact=True).fill("ada")
    page.get_by_role("textbox", name="Changed since").fill("yesterday")
    page.get_by_role("button", name="Filter").click()
    since = page.get_by_role("textbox", name="Changed since")
    expect(since).to_be_focused()
    expect(since).to_have_value("yesterday")
    expect(since).to_have_accessible_description(re.compile("'yesterday' is not a time: 2026-03-28"))
    expect(page.get_by_role("textbox", name="Owner", exact=True)).to_have_value("ada")
    expect(page.get_by_role("table")).to_have_count(0)
    picture(page, "filters/jobs")
    since.fill("24h")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_role("rowheader").first).to_be_visible()
    for path, name in (
        ("/accounting?from=last+week&by=site&status=Dnoe", "accounting"),
        ("/pilots?hours=-3&status=Runing&site=LCG.A.org", "pilots"),
        ("/sites?state=opne&q=LCG", "sites"),
        ("/shares?first=1&second=999999", "shares"),
        ("/jobs?status=Runing", "jobs-status"),
        ("/failures?hours=0", "failures"),
        ("/configuration/history?limit=0&path=Resources", "history"),
        (f"/search?q={'x' * 300}", "search"),
    ):
        page.goto(path)
        expect(page.get_by_role("alert").first).to_be_visible()
        picture(page, f"filters/{name}")
