"""Floors of a site over HTTP, on its page, by a command and in explanations, as matching keeps to them."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from cs_config.tree.address import QueueAddress
from pilotage.service.services import utc_now
from taskqueue.db import database
from taskqueue.pilots import pilots
from tests.integration.pilotage.service.pages.test_access import session
from tests.support.commands import Run, run, send_to
from tests.support.factories import stored_rows
from tests.support.service import Service

__all__ = ["run"]

SITE = "LCG.A.org"
QUEUE = {"Site": SITE, "GridCE": "ce1", "Queue": "long", "CPUTime": 10**6}
CONFIG = """
Resources:
  Sites:
    LCG.A.org:
      Floors: {cms: 2, dune: 25%}
      CEs: {ce1: {Queues: {long: {CPUTime: 1000000}}}}
Registry:
  VO: {cms: {}, dune: {}}
  Groups: {cms_user: {VO: cms}, dune_user: {VO: dune}}
"""
pytestmark = pytest.mark.config(CONFIG)


def _floors(service: Service, role: str, **who: str) -> dict[str, Any]:
    answer = service.as_role(role, **who).get(f"/api/v1/sites/{SITE}")
    assert answer.status_code == 200, answer.text
    assert answer.json()["limits"] == [], "what is counted for floors only is no limit"
    return {each["vo"]: each for each in answer.json()["floors"]}


def _explain(service: Service, vo: str, job: int) -> dict[str, Any]:
    return dict(service.user(vo=vo).get(f"/api/v1/jobs/{job}/explain").json())


def _why(service: Service, vo: str, job: int) -> str:
    return str(_explain(service, vo, job)["now"])


def _send_pilot(service: Service, vo: str) -> None:
    """A pilot that waits in the batch system of the site."""
    queue = QueueAddress(site=SITE, ce="ce1", queue="long")
    with database.writing(service.engine) as conn:
        pilots.record_contact(conn, stamp="waits", vo=vo, queue=queue, now=utc_now())
        stored_rows.force_pilot(conn, "waits", status="Waiting")


def _take(service: Service, number: int) -> list[str]:
    """The VOs of jobs for requests that may serve both."""
    service.parts.matcher.refresh()
    pilot = service.operator()
    answers = [pilot.post("/api/v1/matcher/requestJob", json=QUEUE).json() for _ in range(number)]
    given = [each["job_id"] for answer in answers for each in answer["matches"]]
    return [pilot.get(f"/api/v1/jobs/{each}").json()["vo"] for each in given]


def test_floors_are_shown_with_what_vos_have_and_with_the_reason_why_a_job_comes_later(
    service: Service,
) -> None:
    [*_, last] = service.submit(*[{"Executable": "x"}] * 5, vo="dune")
    before = _floors(service, "vo_admin", vo="dune", user="lead")
    assert (before["cms"]["is_below"], before["cms"]["waiting"]) == (True, None), "that is for cms to see"
    assert before["dune"] == {
        "vo": "dune",
        "floor_cores": None,
        "floor_percent": 25.0,
        "cores": 0,
        "total": 0,
        "is_below": True,
        "waiting": 5,
    }
    assert _take(service, 1) == ["dune"]
    assert "is kept for cms" not in _why(service, "dune", last), "it has no work: all is lent"
    service.submit(*[{"Executable": "x"}] * 4)
    found = _why(service, "dune", last)
    # How many wait is for cms to see.
    has = f"it has 0 cores at {SITE}, its floor is 2 cores, and some of its waiting jobs fit"
    assert f"{SITE} is kept for cms before others: {has}; no pilot of it waits there, so only pilots" in found
    assert "kept" not in _explain(service, "dune", last)["headline"], "pilots that serve dune only get a job"
    _send_pilot(service, "cms")
    held = _explain(service, "dune", last)
    assert held["headline"] == (
        f"The only queue that its VO may use fits, but {SITE} is kept for cms before others: {has}."
    )
    assert held["is_held"]
    assert _take(service, 2) == ["cms", "cms"]
    assert "is kept for cms" not in _why(service, "dune", last)
    of_cms = _floors(service, "site_admin", site=SITE)["cms"]
    assert (of_cms["cores"], of_cms["total"], of_cms["is_below"], of_cms["waiting"]) == (2, 3, False, 2)


def test_the_page_of_the_site_and_the_command_show_floors(
    service: Service, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.submit({"Executable": "x"})
    with session(service, "vo_admin", vo="cms", user="lead") as browser:
        page = browser.get(f"/sites/{SITE}").text
    assert "What each VO has at least" in page
    assert "comes first" in page
    send_to(service, tmp_path, monkeypatch, "user", vo="cms", user="ada")
    status, out, _ = run("share", "show", "--site", SITE)
    assert status == 0
    assert all(text in out for text in ("cms", "2 cores", "comes first", "25 %"))
    status, _, err = run("share", "show", "--site", SITE, "--vo", "cms")
    assert (status, "give one of them" in err) == (2, True)
    rows = run("site", "limits", SITE)[1]
    assert all(text in rows for text in ("floor", "at least 2 cores", "at least 25 %", "0 of 0 cores"))


def test_a_vo_admin_gives_up_some_of_the_floor_and_takes_no_more(service: Service) -> None:
    admin = service.as_role("vo_admin", vo="cms", user="lead")
    path = f"Resources/Sites/{SITE}/Floors/cms"
    for value, status in ((1, 200), (2, 403)):
        version = service.parts.live.current.version
        body = {"set": {path: value}, "message": "a quiet week"}
        answer = admin.patch("/api/v1/config", json=body, headers={"If-Match": str(version)})
        assert answer.status_code == status, answer.text
    assert "a VO sets no more than the site, 1 core" in answer.text
    assert _floors(service, "vo_admin", vo="cms", user="lead")["cms"]["floor_cores"] == 1


def test_a_floor_given_up_for_a_time_may_be_raised_up_to_what_comes_back(service: Service) -> None:
    """Also by a colleague, and of values within one another; not after one that lasts, nor beyond."""
    path = f"Resources/Sites/{SITE}/Floors/cms"

    def change(value: object, lasting: float | None = None, user: str = "lead") -> httpx.Response:
        admin = service.as_role("vo_admin", vo="cms", user=user)
        body = {"set": {path: value}, "revert_after": lasting}
        version = {"If-Match": str(service.parts.live.current.version)}
        return admin.patch("/api/v1/config", json=body, headers=version)

    assert change("10%", 3600).status_code == 403  # nothing was lowered, and parts are not cores
    assert change(0, 86_400).is_success
    assert change(1, 3600, user="mate").is_success
    answer = change(3)
    assert (answer.status_code, "no more than the site, 2 cores" in answer.text) == (403, True)
    admin = service.as_role("vo_admin", vo="cms", user="lead")
    ended = admin.post("/api/v1/config/preview", json={"remove": [path]}).json()["temporary"]
    assert [(each["value"], each["restored"]) for each in ended] == [(1, 0), (0, 2)]
    assert change(2).is_success
    assert change(0).is_success
    assert change(1).status_code == 403


def test_a_preview_names_the_vo_that_a_site_would_be_kept_for(service: Service) -> None:
    service.submit(*[{"Executable": "x"}] * 3)
    assert _take(service, 2) == ["cms", "cms"]
    admin = service.as_role("site_admin", site=SITE)
    path = f"Resources/Sites/{SITE}/Floors/cms"
    for value, closed in ((3, [SITE]), (2, [])):
        answer = admin.post("/api/v1/config/preview", json={"set": {path: value}}).json()
        assert [each["scope"] for each in answer["closed"]] == closed
        if closed:
            has = "it has 2 cores at LCG.A.org, its floor is 3 cores, and 1 waiting job fits"
            assert answer["closed"][0]["why"] == f"kept for cms before others: {has}"


def test_a_preview_names_no_site_that_is_kept_for_the_vo_already(service: Service) -> None:
    service.submit(*[{"Executable": "x"}] * 3)
    admin, path = service.as_role("site_admin", site=SITE), f"Resources/Sites/{SITE}/Floors/cms"
    for value in (1, 3):
        assert admin.post("/api/v1/config/preview", json={"set": {path: value}}).json()["closed"] == []
    assert _take(service, 2) == ["cms", "cms"]
    changes = {path: 3, f"Resources/Sites/{SITE}/Floors/dune": "30%"}
    [closed] = admin.post("/api/v1/config/preview", json={"set": changes}).json()["closed"]
    assert closed["why"].startswith("kept for cms before others")


def test_pilots_of_several_vos_are_told_of_all_pools_and_get_jobs_in_the_order_of_floors(
    service: Service,
) -> None:
    for vo, number in (("dune", 2), ("cms", 3)):
        service.submit(*[{"Executable": "x", "Requirements": "other.CPUTime > 1"}] * number, vo=vo)
    _send_pilot(service, "cms")
    both = service.operator()
    asked = {"Site": SITE, "CE": "ce1", "Queue": "long"}
    [pools] = both.post("/api/v1/matcher/getSubmitPoolsForQueue", json=asked).json()["pools"].values()
    known = {each["pool_id"]: each["vo"] for each in both.get("/api/v1/pools").json()["pools"]}
    assert sorted(known[each] for each in pools) == ["cms", "dune"], "floors order jobs, and close no pool"
    assert _take(service, 3) == ["cms", "dune", "cms"], "each in turn by the part of its floor"
