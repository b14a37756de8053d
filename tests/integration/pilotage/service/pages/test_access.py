"""Which role may see and do what on the pages; asked without a browser."""

import html
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from fastapi import APIRouter
from starlette.routing import BaseRoute

from cs_config.source import yaml_writer
from pilotage.service.pages import sessions
from pilotage.service.pages.navigation import LAST, ROUTERS
from pilotage.service.pages.page import PageRoute
from tests.support.routes_by_role import TOKENS
from tests.support.service import NO_AUTHORITIES, Service

QUEUE = "LCG.A.org/ce1/long"
JOBS = {"user", "vo_admin"}
SITES = {"user", "vo_admin", "site_admin", "director", "gateway", "pilot"}
EDITORS = {"vo_admin", "site_admin"}
PEOPLE = {"user", "vo_admin", "site_admin"}
PILOTS = {"vo_admin", "site_admin", "director", "gateway"}
EVERYBODY = set(TOKENS)

#: Method, page, and the roles that may use it beside the operator.
Page = tuple[str, str, set[str]]
#: Those of the program; plug-ins have tables of their own.
PAGES: Sequence[Page] = [
    ("GET", "/", EVERYBODY),
    ("GET", "/jobs", JOBS),
    ("GET", "/jobs/change", JOBS),
    ("POST", "/jobs/change", JOBS),
    ("GET", "/jobs/resubmit", JOBS),
    ("POST", "/jobs/resubmit", JOBS),
    ("GET", "/explain", JOBS),
    ("GET", "/jobs/new", JOBS),
    ("POST", "/jobs/edit", JOBS),
    ("POST", "/jobs/new", JOBS),
    ("PUT", "/jobs/new/sandbox", JOBS),
    ("GET", "/jobs/{job_id}", JOBS),
    ("GET", "/jobs/{job_id}/output", JOBS),
    ("GET", "/jobs/{job_id}/output.tar", JOBS),
    ("GET", "/jobs/{job_id}/stderr", JOBS),
    ("GET", "/jobs/download", JOBS),
    ("GET", "/jobs/events", JOBS),
    ("GET", "/failures", {"user", "vo_admin", "site_admin"}),
    ("GET", "/campaigns", JOBS),
    ("GET", "/campaigns/end", JOBS),
    ("GET", "/services", set()),
    ("GET", "/search", SITES),
    ("GET", "/jobs/{job_id}/why", SITES),
    ("GET", "/pools", SITES),
    ("GET", "/pools/{pool_id}", SITES),
    ("GET", "/task-queues", {"user", "vo_admin", "director"}),
    ("GET", "/shares", {"user", "vo_admin"}),
    ("GET", "/sites", SITES),
    ("GET", "/sites/{site}", SITES),
    ("GET", "/sites/{site}/offers", SITES),
    ("POST", "/sites/{site}/ban", {"site_admin"}),
    ("POST", "/sites/{site}/allow", {"site_admin"}),
    ("POST", "/sites/{site}/readmit", {"site_admin"}),
    ("POST", "/sites/{site}/downtimes", {"site_admin"}),
    ("POST", "/sites/{site}/downtimes/{downtime_id}/remove", {"site_admin"}),
    ("GET", "/sites/{site}/{ce}/{queue}", SITES),
    ("POST", "/sites/{site}/{ce}/{queue}/drain", {"site_admin"}),
    ("POST", "/sites/{site}/{ce}/{queue}/resume", {"site_admin"}),
    ("GET", "/pilots", PILOTS),
    ("GET", "/pilots/{stamp}", PILOTS | {"user"}),
    ("GET", "/managers", {"user", "vo_admin", "site_admin", "gateway"}),
    ("GET", "/configuration", SITES),
    ("GET", "/configuration/paths", SITES),
    ("POST", "/configuration/check", EDITORS),
    ("POST", "/configuration/preview", EDITORS),
    ("POST", "/configuration/apply", EDITORS),
    ("POST", "/configuration/rebase", EDITORS),
    ("GET", "/configuration/history", EDITORS),
    ("GET", "/configuration/diff", EDITORS),
    ("GET", "/configuration/rollback", EDITORS),
    ("POST", "/configuration/rollback", EDITORS),
    ("GET", "/accounting", {"user", "vo_admin", "site_admin"}),
    ("GET", "/accounting.csv", {"user", "vo_admin", "site_admin"}),
    ("GET", "/login/device", PEOPLE),
    ("POST", "/login/device", PEOPLE),
    ("POST", "/logout", EVERYBODY),  # last: it ends the session
]
NAMES = {
    "{job_id}": "1",
    "{pool_id}": "0",
    "{site}/{ce}/{queue}": QUEUE,
    "{site}": "LCG.A.org",
    "{stamp}": "nope",
    "{downtime_id}": "1",
}


def session(service: Service, role: str, **wishes: object) -> httpx.Client:
    """A browser that is signed in, and shows what our forms show."""
    token = service.token(role, **wishes)
    port = service.url.rpartition(":")[2]
    headers = {
        "Cookie": f"pilotage-{port}={token}",
        "Origin": service.url,
        "X-CSRF-Token": sessions.csrf_of(token),
        "Accept": "text/html",
    }
    return httpx.Client(
        base_url=service.url, headers=headers, trust_env=False, verify=NO_AUTHORITIES, timeout=300
    )


def address(page: str) -> str:
    for name, value in NAMES.items():
        page = page.replace(name, value)
    return page


def test_each_role_may_use_its_pages_and_no_other(service: Service, caplog: pytest.LogCaptureFixture):
    service.parts.job_events.longest = 0.1
    check_roles(PAGES, service, caplog)


def check_roles(pages: Sequence[Page], service: Service, caplog: pytest.LogCaptureFixture) -> None:
    """Check that each role may use its pages and no other, and that each refusal is in the audit log."""
    wrong, refused = [], 0
    with caplog.at_level(logging.INFO, logger="pilotage.audit"):
        for role, wishes in TOKENS.items():
            with session(service, role, **wishes) as browser:
                answers = [browser.request(method, address(page)) for method, page, _ in pages]
            for (method, page, roles), answer in zip(pages, answers, strict=True):
                assert answer.status_code < 500, (method, page, role, answer.text)
                refused += answer.status_code == 403
                if (answer.status_code == 403) == (role in roles | {"operator"}):
                    wrong.append((method, page, role, answer.status_code, answer.text[-400:]))
    assert not wrong
    lines = [record.getMessage() for record in caplog.records if '"action": "refused"' in record.getMessage()]
    assert len([line for line in lines if "this is for" in line]) == refused


def test_the_table_above_has_every_page():
    assert find_pages([*ROUTERS, *LAST]) == {(method, page) for method, page, _ in PAGES}


def find_pages(routers: Iterable[APIRouter]) -> set[tuple[str, str]]:
    """Method and address of each page."""
    return {
        (method, route.path)  # type: ignore[attr-defined]
        for router in routers
        for route in _all(router.routes)
        if isinstance(route, PageRoute)
        for method in route.methods - {"HEAD"}
    }


def _all(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    for route in routes:
        inner = getattr(route, "original_router", None)
        yield from _all(inner.routes) if inner is not None else (route,)


def test_the_form_for_a_value_has_it_as_it_is_read_again(service: Service):
    queue = "Resources/Sites/LCG.A.org/CEs/ce1/Queues/long"
    values = {"Old": "8000", "Model": "a: b", "Soft": ["one, two", "null"]}
    operator = service.as_role("operator")
    body = {"set": {f"{queue}/{name}": value for name, value in values.items()}, "message": ""}
    before = {"If-Match": str(service.parts.live.current.version)}
    assert operator.patch("/api/v1/config", json=body, headers=before).status_code == 200
    with session(service, "vo_admin", vo="cms", user="ada") as browser:
        page = html.unescape(browser.get("/configuration", params={"path": queue, "vo": "cms"}).text)
    links = [
        parse_qs(urlsplit(each).query)
        for each in re.findall(r'href="(/configuration[^"]*&value=[^"]*)"', page)
    ]
    shown = {
        each["set"][0].rpartition("/")[2]: yaml_writer.read_value(each["value"][0], "") for each in links
    }
    assert {name: shown[name] for name in values} == values


def test_without_a_session_every_page_leads_to_the_login(service: Service):
    check_strangers(PAGES, service)


def check_strangers(pages: Sequence[Page], service: Service) -> None:
    """Check that each page leads to the login."""
    with httpx.Client(base_url=service.url, trust_env=False, timeout=300) as nobody:
        for method, page, _ in pages:
            answer = nobody.request(method, address(page), headers={"Origin": service.url})
            assert (answer.status_code, answer.headers["location"].partition("?")[0]) == (303, "/login"), page


def test_what_belongs_to_another_vo_is_not_there(service: Service):
    dune = service.user("dan", vo="dune")
    [job_id] = service.submit({"Executable": "x", "Requirements": {"Memory": 5000}}, user="dan", vo="dune")
    pool_id = dune.get(f"/api/v1/jobs/{job_id}").json()["submit_pool"]
    assert dune.get(f"/api/v1/pools/{pool_id}").is_success
    pages = [f"/jobs/{job_id}", f"/jobs/{job_id}/output", f"/jobs/{job_id}/why", f"/pools/{pool_id}"]
    for role in ("user", "vo_admin"):
        with session(service, role, vo="cms", user="ada") as browser:
            assert [browser.get(page).status_code for page in pages] == [404] * len(pages)
            assert "dan" not in browser.get("/jobs").text
        with session(service, role, vo="dune", user="dan") as browser:
            assert browser.get(f"/jobs/{job_id}").status_code == 200


def test_a_change_without_the_token_of_its_session_is_refused(service: Service):
    check_forged(PAGES, service)


def check_forged(pages: Sequence[Page], service: Service) -> None:
    """Check that a change is refused that does not come from a page of its session."""
    with session(service, "operator", user="root") as browser:
        changes = [(method, address(page)) for method, page, _ in pages if method in {"POST", "PUT"}]
        for forged in ({"X-CSRF-Token": "x"}, {"Origin": "https://evil.example.org"}, {"Origin": ""}):
            answers = {browser.request(*change, headers=forged).status_code for change in changes}
            assert answers == {403}, forged


#: Addresses that no page of ours has a link to.
ODD = [
    f"/accounting?by={'vo,' * 10}vo",
    "/accounting?by=vo,site",
    "/accounting?by=,",
    "/accounting?by=%20vo",
    "/accounting?from=99999w&to=99999w",
    "/accounting?from=9999-12-31T23:59:59-14:00",
    "/accounting?vo=,,,&status=nonsense",
    "/accounting.csv?bucket=hour&from=2000-01-01",
    "/jobs?ids=9223372036854775808",
    "/jobs?ids=9223372036854775807&after=1&sort=job",
    "/jobs?status=Nonsense",
    "/jobs/change?do=kill&ids=",
    "/jobs/resubmit?ids=",
    "/campaigns?q=%25%5C%F0%9F%98%80",
    "/campaigns/end?job_group=%F0%9F%98%80&vo=nope&owner=%25",
    "/campaigns/end",
    "/jobs/9223372036854775808",
    "/pilots?hours=nan",
    "/pilots?hours=8784&status=Nonsense",
    "/pilots?after=%F0%9F%98%80",
    "/pools?after=zzz&vo=%2e%2e",
    "/task-queues?after=9223372036854775807",
    "/managers?after=9223372036854775807",
    "/sites?sort=-nonsense&after=1000000&q=%25&state=x",
    "/sites/LCG.A.org?vo=nope",
    "/sites/nope%2Fce/x/y",
    "/sites/LCG.A.org/ce1/long?vo=nope",
    "/configuration?path=Resources%2FNope&as=text",
    "/configuration?path=/////&as=text",
    "/configuration?path=Resources/Sites/LCG.A.org/VO/x&as=text&set=&set=a//b&value=%5B",
    "/configuration/paths?path=%2F%2F%2F..%2F",
    "/configuration/diff?from=1&to=2147483647",
    "/configuration/rollback?version=2147483647",
    "/configuration/history?path=%2F%2F&limit=1000",
    "/?hours=24&part=course",
]


def test_an_address_that_no_page_has_a_link_to_is_refused_and_no_defect(service: Service):
    broken = []
    for role, wishes in TOKENS.items():
        with session(service, role, **wishes) as browser:
            for page in ODD:
                for headers in ({}, {"HX-Request": "true"}):
                    answer = browser.get(page, headers=headers)
                    if answer.status_code >= 500:
                        broken.append((role, page, answer.status_code))
    assert not broken


def test_only_operators_have_a_whole_text_moved_onto_the_version_in_force(service: Service):
    text = "Registry: {VO: {cms: {}}}"
    form = {"way": "text", "section": "", "version": "0", "text": text}
    with session(service, "vo_admin", vo="cms", user="eve") as browser:
        answer = browser.post("/configuration/rebase", data=form)
    assert answer.status_code == 403
    with session(service, "operator", user="root") as browser:
        assert browser.post("/configuration/rebase", data=form).status_code == 200
