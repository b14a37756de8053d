"""The routes and pages of web hooks: who may use them, what they answer, and what is wrong input."""

from pathlib import Path

import jsonschema_rs
import pytest

from examples.servers.postgres import Postgres
from pilotage.plugins.web_hooks import pages, routes
from pilotage.plugins.web_hooks.settings import HookSettings
from pilotage.service import app
from taskqueue.db import database
from tests.integration.pilotage.service.pages import test_access as page_access
from tests.integration.pilotage.service.pages.test_access import Page
from tests.integration.pilotage.service.routes import test_hostile_requests as hostile
from tests.integration.pilotage.service.routes.test_every_route import ConflictingWalk, Walk
from tests.integration.pilotage.service.routes.test_openapi import World, check_operations
from tests.support import routes_by_role
from tests.support.routes_by_role import Route
from tests.support.service import CONFIG, Service, running

ADMINS = {"vo_admin"}
ROUTES: list[Route] = [
    ("GET", "/web-hooks", None, ADMINS),
    ("POST", "/web-hooks", {"url": "https://example.org/"}, ADMINS),
    ("GET", "/web-hooks/7", None, ADMINS),
    ("GET", "/web-hooks/7/deliveries", None, ADMINS),
    ("POST", "/web-hooks/7/test", None, ADMINS),
    ("DELETE", "/web-hooks/7", None, ADMINS),
]
PAGES: list[Page] = [
    ("GET", "/web-hooks", ADMINS),
    ("POST", "/web-hooks", ADMINS),
    ("POST", "/web-hooks/7/test", ADMINS),
    ("POST", "/web-hooks/7/remove", ADMINS),
]
WANTED = {"name": "portal", "url": "https://portal.example.org/"}


def find_routes() -> set[tuple[str, str]]:
    """Method and address of each route."""
    return {(method, each.path) for each in routes.router.routes for method in each.methods}


def test_the_tables_above_have_every_route_and_page() -> None:
    shown = page_access.find_pages([pages.router])
    for found, table in ((find_routes(), ROUTES), (shown, PAGES)):
        named = {(method, path.replace("{hook_id}", "7")) for method, path in found}
        assert named == {(method, path) for method, path, *_ in table}


def test_only_vo_admins_and_operators_use_them(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    routes_by_role.check_roles(ROUTES, service, caplog)
    caplog.clear()
    page_access.check_roles(PAGES, service, caplog)


def test_strangers_and_forged_requests_are_refused(service: Service) -> None:
    routes_by_role.check_strangers(ROUTES, service)
    page_access.check_strangers(PAGES, service)
    page_access.check_forged(PAGES, service)


def test_no_body_makes_a_route_fail(service: Service) -> None:
    hostile.check_bodies(ROUTES, service)


def test_no_request_makes_it_fail_or_answer_what_it_does_not_describe(service: Service) -> None:
    admin = service.as_role("vo_admin", vo="cms", user="eve")
    hook = admin.post("/api/v1/web-hooks", json=WANTED).json()["hook_id"]
    check_operations(World(service, {"hook_id": hook}), of_plugins=True)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:8080/", "127.0.0.1 has an address of this host or not of the internet"),
        ("https://0x7f000001/", "0x7f000001 has an address of this host or not of the internet"),
        ("https://[::ffff:10.20.0.1]/", "not of the internet; the operator may allow it"),
        ("https://0177.0.0.1/", "Invalid IPv4 address"),
        ("http://198.41.0.4/", "198.41.0.4: only https"),
    ],
)
def test_an_address_that_no_message_would_reach_is_refused(service: Service, url: str, why: str) -> None:
    answer = service.as_role("vo_admin", vo="cms", user="eve").post(
        "/api/v1/web-hooks", json={**WANTED, "url": url}
    )
    assert (answer.status_code, why in answer.text) == (400, True), answer.text


def test_addresses_of_allowed_networks_and_the_internet_are_accepted(service: Service) -> None:
    own = HookSettings(web_hook_networks=("10.20.0.0/16",), web_hook_refused_networks=("10.20.1.0/24",))
    object.__setattr__(service.parts, "settings_of", lambda _: own)
    admin = service.as_role("vo_admin", vo="cms", user="eve")
    for number, url in enumerate(("http://10.20.0.1/", "https://198.41.0.4/", "http://a.example.org/")):
        answer = admin.post("/api/v1/web-hooks", json={"name": f"{number}", "url": url})
        assert answer.status_code == 201, answer.text
    refused = admin.post("/api/v1/web-hooks", json={**WANTED, "url": "https://10.20.1.1/"})
    assert "may not reach here" in refused.text


def go(service: Service, walk: Walk) -> None:
    """Use every route."""
    admin = service.as_role("vo_admin", vo="cms", user="ada")
    hook = walk.go(admin, "POST", "/web-hooks", json=WANTED).json()["hook_id"]
    walk.go(admin, "GET", "/web-hooks")
    walk.go(admin, "POST", f"/web-hooks/{hook}/test")
    for below in ("", "/deliveries"):
        walk.go(admin, "GET", f"/web-hooks/{hook}{below}")
    walk.go(admin, "DELETE", f"/web-hooks/{hook}")


def test_every_route_succeeds_on_postgresql_whichever_change_meets_a_conflict(
    postgres: Postgres, tmp_path: Path
) -> None:
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        with postgres.fresh() as url:
            engine = database.connect(url)
            with running(engine, tmp_path / str(number), CONFIG) as service:
                walk = ConflictingWalk(service, number)
                walk.left = {(method, f"/api/v1{path}") for method, path in find_routes()}
                go(service, walk)
                assert walk.left == set()
                with page_access.session(service, "operator", user="root") as browser:
                    assert browser.get("/web-hooks").status_code == 200
            engine.dispose()


def test_the_example_is_a_body_of_its_operation() -> None:
    document = app.ServiceApplication(routes=app.list_routes()).openapi()
    content = document["paths"]["/api/v1/web-hooks"]["post"]["requestBody"]["content"]["application/json"]
    schema = {**content["schema"], "components": document["components"]}
    jsonschema_rs.validate(schema, content["example"])
    missing = document["paths"]["/api/v1/web-hooks/{hook_id}"]["get"]["responses"]["404"]
    assert "`hook_not_found`" in missing["description"]
