"""Downtimes over HTTP: who plans them, what they close, and what a feed replaces."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import httpx
import pytest

from pilotage.service.queries import downtimes
from pilotage.service.services import utc_now
from taskqueue.sites import closures
from tests.integration.pilotage.service.pages.test_access import session
from tests.support.service import Service

SITE = "LCG.A.org"
CE = f"{SITE}/ce1"
QUEUE = {"Site": SITE, "GridCE": "ce1", "Queue": "long", "CPUTime": 10**6}


def _plan(client: httpx.Client, place: str = SITE, *, begins: float, ends: float, **more: object) -> Any:
    """Plan a downtime; times are hours from now."""
    times = {
        name: (utc_now() + timedelta(hours=hours)).isoformat()
        for name, hours in (("begins", begins), ("ends", ends))
    }
    return client.post("/api/v1/downtimes", json={"place": place, "reason": "cooling", **times, **more})


def _stated(source_id: str, host: str = "ce1", **more: object) -> dict[str, object]:
    now = utc_now()
    times = {"begins": now.isoformat(), "ends": (now + timedelta(hours=2)).isoformat()}
    entry = {"source_id": source_id, "host": host, "service": "ARC-CE", "severity": "OUTAGE"}
    return {**entry, "reason": "disks", **times, **more}


def _import(
    client: httpx.Client, *stated: dict[str, object], source: str = "gocdb", unreadable: Sequence[str] = ()
) -> Any:
    feed = {"source": source, "downtimes": list(stated), "unreadable": list(unreadable)}
    answer = client.post("/api/v1/downtimes/import", json=feed)
    assert answer.status_code == 200, answer.text
    return answer.json()


def _list(client: httpx.Client) -> list[Any]:
    found: list[Any] = client.get("/api/v1/downtimes").json()["downtimes"]
    return found


def test_a_site_admin_closes_a_ce_of_the_site_and_opens_it_again(service: Service) -> None:
    service.user().post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]}).raise_for_status()
    admin, pilot = service.as_role("site_admin", vo="cms", site=SITE), service.pilot()
    planned = _plan(admin, CE, begins=-1, ends=1).json()
    assert (planned["place"], planned["is_closing"]) == (CE, True)
    assert admin.get(f"/api/v1/sites/{SITE}").json()["downtimes"] == [planned]
    answer = pilot.post("/api/v1/matcher/requestJob", json=QUEUE).json()
    assert (answer["matches"], answer["reason"]) == ([], "banned")
    explained = service.user().get("/api/v1/jobs/1/explain").json()["now"]
    assert any(each.startswith(f"{CE} is closed by a downtime until ") for each in explained), explained
    left = admin.post(f"/api/v1/downtimes/{planned['downtime_id']}/remove").json()["downtimes"]
    assert left == []
    assert pilot.post("/api/v1/matcher/requestJob", json=QUEUE).json()["matches"]


def test_what_cannot_be_planned_is_refused(service: Service) -> None:
    admin = service.as_role("site_admin", vo="cms", site=SITE)
    assert _plan(admin, begins=2, ends=1).status_code == 400
    assert _plan(admin, begins=-2, ends=-1).status_code == 400
    early = _plan(admin, begins=-24 * 365.25 * 100, ends=1)
    assert (early.status_code, "is before 1970" in early.text) == (400, True)
    assert _plan(admin, f"{SITE}/nosuch", begins=1, ends=2).status_code == 404
    of_queue = _plan(admin, f"{CE}/long", begins=1, ends=2)
    message = f"place {CE}/long does not exist, did you mean {CE}?"
    assert (of_queue.status_code, of_queue.json()["error"]["message"]) == (404, message)
    assert _plan(admin, "LCG.B.org", begins=1, ends=2).status_code == 403
    assert admin.post("/api/v1/downtimes/7/remove").json()["error"]["code"] == "downtime_not_found"
    planned = _plan(service.operator(), "LCG.B.org", begins=1, ends=2).json()
    assert admin.post(f"/api/v1/downtimes/{planned['downtime_id']}/remove").status_code == 403


def test_what_is_planned_twice_is_one_downtime_with_the_last_reason(service: Service) -> None:
    admin, operator = service.as_role("site_admin", vo="cms", site=SITE), service.operator()
    now = utc_now()
    stated = {
        "place": CE,
        "begins": (now - timedelta(hours=1)).isoformat(),
        "ends": (now + timedelta(hours=1)).isoformat(),
        "reason": "disks",
    }

    def plan(client: httpx.Client, **other: object) -> Any:
        return client.post("/api/v1/downtimes", json=stated | other).raise_for_status().json()

    first = plan(admin)
    assert plan(operator) == first, "nothing changes"
    restated = plan(operator, reason="disks and fans")
    assert restated["downtime_id"] == first["downtime_id"]
    assert restated["author"] != first["author"]
    assert _list(admin) == [restated]
    others = [
        plan(admin, place=SITE),
        plan(admin, severity="WARNING"),
        plan(admin, ends=(now + timedelta(hours=2)).isoformat()),
    ]
    _import(operator, _stated("1G0", begins=stated["begins"], ends=stated["ends"]))
    assert len({each["downtime_id"] for each in [restated, *others]}) == 4
    assert len(_list(admin)) == 5
    assert plan(admin)["downtime_id"] == first["downtime_id"], "that of a feed is the feed's"


def test_the_number_of_a_removed_downtime_is_never_given_to_another(service: Service) -> None:
    admin = service.as_role("site_admin", vo="cms", site=SITE)
    numbers = []
    for _ in range(3):
        numbers.append(_plan(admin, CE, begins=1, ends=2).json()["downtime_id"])
        admin.post(f"/api/v1/downtimes/{numbers[-1]}/remove").raise_for_status()
    assert len(set(numbers)) == 3
    assert admin.post(f"/api/v1/downtimes/{numbers[0]}/remove").status_code == 404


def test_a_feed_replaces_what_it_stated_before_and_nothing_else(service: Service) -> None:
    operator = service.operator()
    by_hand = _plan(operator, begins=1, ends=2).json()
    one, other = _stated("1G0"), _stated("2G0")
    taken = _import(operator, one, other, _stated("3G0", "nosuch"), _stated("4G0", service="SRM"))
    assert (taken["added"], taken["notes"]) == (2, ["nosuch: the configuration has no such CE"])
    ids = {each["source_id"]: each["downtime_id"] for each in _list(operator)}
    assert _import(operator, one, other)["unchanged"] == 2
    assert {each["source_id"]: each["downtime_id"] for each in _list(operator)} == ids
    taken = _import(operator, {**one, "reason": "longer"})
    assert (taken["added"], taken["changed"], taken["removed"]) == (0, 1, 1)
    assert sorted((each["source"], each["reason"]) for each in _list(operator)) == [
        ("", by_hand["reason"]),
        ("gocdb", "longer"),
    ]


def test_a_site_admin_imports_for_the_own_sites_alone(service: Service) -> None:
    operator = service.operator()
    _import(operator, _stated("1G0"))
    stranger = service.as_role("site_admin", vo="cms", site="LCG.B.org")
    assert _import(stranger)["removed"] == 0
    assert len(_list(operator)) == 1
    assert _import(service.as_role("site_admin", vo="cms", site=SITE))["removed"] == 1


def test_a_site_has_only_so_many_downtimes(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downtimes, "MOST_OF_SITE", 2)
    admin = service.as_role("site_admin", vo="cms", site=SITE)
    _import(admin, _stated("1G0"), source="one")
    _plan(admin, begins=1, ends=2).raise_for_status()
    stated = {"source": "other", "downtimes": [_stated("2G0")]}
    refused = [_plan(admin, begins=1, ends=2), admin.post("/api/v1/downtimes/import", json=stated)]
    for each in refused:
        assert each.status_code == 400
        assert f"{SITE} would have 3 that are not over, allowed are 2" in each.json()["error"]["message"]
    assert len(_list(admin)) == 2


def test_a_feed_with_too_many_is_refused_before_any_is_stored(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downtimes, "MOST_OF_SITE", 2)
    admin, touched = service.as_role("site_admin", vo="cms", site=SITE), list[object]()
    lock = closures.lock_downtimes
    monkeypatch.setattr(closures, "lock_downtimes", lambda conn: (touched.append(conn), lock(conn)))
    stated = [_stated(f"{number}G0") for number in range(3)]
    refused = admin.post("/api/v1/downtimes/import", json={"source": "gocdb", "downtimes": stated})
    assert refused.status_code == 400
    assert f"{SITE} would have 3 that are not over, allowed are 2" in refused.json()["error"]["message"]
    assert touched == []
    assert _import(admin, *stated[:2], *stated[:2])["added"] == 2
    assert len(touched) == 1


def test_a_long_reason_of_a_feed_is_cut(service: Service) -> None:
    operator = service.operator()
    assert _import(operator, _stated("1G0", reason="x" * 5_000), _stated("2G0"))["added"] == 2
    assert sorted(len(each["reason"]) for each in _list(operator)) == [5, 2_000]


def test_downtimes_of_two_admins_close_a_place_until_both_are_gone(service: Service) -> None:
    admin, operator = service.as_role("site_admin", vo="cms", site=SITE), service.operator()
    service.user().post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]}).raise_for_status()
    ids = [
        _plan(client, place, begins=-1, ends=hours).json()["downtime_id"]
        for client, place, hours in ((admin, CE, 1), (operator, SITE, 2))
    ]
    for closing in ids:
        answer = service.pilot().post("/api/v1/matcher/requestJob", json=QUEUE).json()
        assert (answer["matches"], answer["reason"]) == ([], "banned")
        admin.post(f"/api/v1/downtimes/{closing}/remove").raise_for_status()
    assert service.pilot().post("/api/v1/matcher/requestJob", json=QUEUE).json()["matches"]


def test_an_explanation_names_what_closes_a_place_now_before_what_will_close_it(service: Service) -> None:
    job = {"Executable": "x", "Site": SITE, "Requirements": {"Memory": 100}}
    service.user().post("/api/v1/jobs", json={"jobs": [job]}).raise_for_status()
    for place, begins in ((SITE, 2), (CE, -1)):
        _plan(service.operator(), place, begins=begins, ends=3).raise_for_status()
    explained = service.user().get("/api/v1/jobs/1/explain").json()
    assert f", but {CE} is closed by a downtime until " in explained["headline"]
    assert any(each.startswith(f"{SITE} has a downtime from ") for each in explained["now"])
    answer = service.pilot().post("/api/v1/matcher/requestJob", json=QUEUE).json()
    assert (answer["matches"], answer["reason"]) == ([], "banned")


def test_a_warning_of_a_feed_is_shown_and_closes_nothing(service: Service) -> None:
    operator = service.operator()
    service.user().post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]}).raise_for_status()
    _import(operator, _stated("1G0", severity="WARNING"))
    [shown] = operator.get(f"/api/v1/sites/{SITE}").json()["downtimes"]
    assert (shown["severity"], shown["is_closing"]) == ("WARNING", False)
    assert service.pilot().post("/api/v1/matcher/requestJob", json=QUEUE).json()["matches"]


def test_what_a_feed_states_has_no_button_of_ours(service: Service) -> None:
    _import(service.operator(), _stated("1G0"))
    with session(service, "operator", user="root") as browser:
        page = browser.get(f"/sites/{SITE}").text
    assert f"Downtime of {CE}" in page
    assert "/remove" not in page


def test_pages_show_downtimes(service: Service) -> None:
    _plan(service.operator(), CE, begins=-1, ends=1, reason="<b>cooling</b>").raise_for_status()
    with session(service, "operator", user="root") as browser:
        text = browser.get(f"/sites/{SITE}").text
        assert f"Downtime of {CE}" in text
        assert "&lt;b&gt;cooling" in text
        assert SITE in browser.get("/sites?state=down").text


def test_of_very_many_notes_of_a_feed_the_rest_is_counted(service: Service) -> None:
    admin = service.as_role("site_admin", vo="cms", site=SITE)
    found = _import(admin, *(_stated(f"{n}", host=f"foreign{n}") for n in range(103)))
    assert len(found["notes"]) == 101
    assert found["notes"][-1] == "and 3 more"


def test_a_host_without_the_port_of_its_ce_is_answered_with_that_ce(
    service: Service, config_text: str
) -> None:
    service.configure(
        config_text.replace(
            "ce1:", "ce1.a.org:\n          Queues: {x: {CPUTime: 1}}\n        'ce2.a.org:9619':"
        )
    )
    admin = service.as_role("site_admin", vo="cms", site=SITE)
    answer = _plan(admin, f"{SITE}/ce2.a.org", begins=-1, ends=1)
    assert answer.status_code == 404
    assert answer.json()["error"]["details"]["did_you_mean"] == f"{SITE}/ce2.a.org:9619"


def test_of_overlapping_downtimes_the_end_of_the_last_one_is_told(service: Service) -> None:
    service.user().post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]}).raise_for_status()
    admin = service.as_role("site_admin", vo="cms", site=SITE)
    for begins, ends, reason in ((-2, 1, "short"), (-1, 9, "long"), (-1, 3, "middle")):
        _plan(admin, begins=begins, ends=ends, reason=reason)
    explained = service.user().get("/api/v1/jobs/1/explain").json()["now"]
    [closed] = [each for each in explained if "closed by a downtime" in each]
    assert "long" in closed


def test_what_was_stated_of_an_entry_that_cannot_be_read_stays(service: Service) -> None:
    operator = service.operator()
    _import(operator, _stated("1G0"), _stated("2G0"), _stated("3G0"))
    ends_first = _stated("2G0", begins="2200-01-01T00:00:00Z")
    taken = _import(operator, ends_first, unreadable=["1G0"])
    assert (taken["removed"], [note[:4] for note in taken["notes"]]) == (1, ["2G0:"])
    assert sorted(each["source_id"] for each in _list(operator)) == ["1G0", "2G0"]
    assert _import(operator)["removed"] == 2


def test_a_blank_reason_or_source_is_refused(service: Service) -> None:
    operator = service.operator()
    refused = [
        _plan(operator, begins=1, ends=2, reason="  "),
        operator.post("/api/v1/downtimes/import", json={"source": " ", "downtimes": []}),
        operator.post(f"/api/v1/sites/{SITE}/ban", json={"reason": "  "}),
    ]
    assert [each.status_code for each in refused] == [400] * 3
