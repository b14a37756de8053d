"""Names and texts that users, pilots and sites choose stay text on every page."""

import re
from urllib.parse import quote

import pytest

from tests.integration.pilotage.service.pages.conftest import A, run_job
from tests.integration.pilotage.service.pages.test_access import PAGES, QUEUE, session
from tests.support.routes_by_role import TOKENS
from tests.support.service import Service

#: What would be script, another attribute, a template, or another direction of writing.
HOSTILE = "<script>alert(7)</script>\"'><img src=x onerror=alert(7)>{{91357*7411}}\u202egnp.exe"
WRITTEN = re.compile(r"<script>alert|<img[^>]*onerror|677046727")
#: It has no end.
STREAM = "/jobs/events"


@pytest.fixture(scope="module")
def names(service: Service) -> dict[str, str]:
    """Jobs and a site with such texts, and what stands for them in addresses."""
    named = {"Executable": "x", "JobName": HOSTILE, "JobGroup": HOSTILE}
    first, second = service.submit(named, named)
    run_job(service, QUEUE, {"status": "Failed", "exit_code": 1, "minor_status": HOSTILE})
    operator = service.operator()
    ban = {"reason": HOSTILE}
    operator.post(f"/api/v1/sites/{A}/ban", json=ban).raise_for_status()
    operator.post(f"/api/v1/jobs/{second}/kill", json={}).raise_for_status()
    job = service.user().get(f"/api/v1/jobs/{first}").raise_for_status().json()
    assert job["job_name"] == HOSTILE
    return {
        "{job_id}": str(first),
        "{site}/{ce}/{queue}": QUEUE,
        "{site}": A,
        "{pool_id}": quote(HOSTILE, safe=""),
        "{stamp}": quote(HOSTILE, safe=""),
    }


@pytest.mark.parametrize("role", ["user", "operator"])
def test_texts_of_others_are_no_markup_on_any_page(
    service: Service, names: dict[str, str], role: str
) -> None:
    asked = dict.fromkeys(
        ("q", "name", "group", "status", "owner", "site", "job", "id", "path", "vo"), HOSTILE
    )
    wrong, shown = [], 0
    with session(service, role, **TOKENS.get(role, {})) as browser:
        for page in (page for method, page, _ in PAGES if method == "GET" and page != STREAM):
            address = page
            for name, value in names.items():
                address = address.replace(name, value)
            for params in ({}, asked, {"job": names["{job_id}"]}, {"group": HOSTILE}):
                answer = browser.get(address, params=params)
                shown += "alert(7)" in answer.text
                kind = answer.headers.get("Content-Type", "text/html")
                policy = answer.headers.get("Content-Security-Policy", "")
                is_good = (
                    not WRITTEN.search(answer.text) and "default-src" in policy
                    if "html" in kind and answer.has_redirect_location is False
                    else answer.headers.get("X-Content-Type-Options") == "nosniff"
                )
                if answer.status_code >= 500 or not is_good:
                    wrong.append((page, sorted(params), answer.status_code, kind, policy))
    assert wrong == []
    assert shown > 10, "texts are shown, escaped"
