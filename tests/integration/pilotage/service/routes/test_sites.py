"""Advertisements and throttles over HTTP."""

import json
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from cs_config.options import bounds
from pilotage.service.services import utc_now
from taskqueue.db import database
from taskqueue.schema.tables import site_processes
from taskqueue.sites import reservations
from taskqueue.sites.reservations import Advertisement
from tests.support.service import Service

SITE = "LCG.A.org"
THROTTLE = "Throttle: {Policy: brokering, MaxJobs: 5, MaxSubmittingJobs: 2}"
QUEUE = {"Site": SITE, "GridCE": "ce1", "Queue": "long", "CPUTime": 10**6}
EMPTY = {"CurrentJobs": 0, "CurrentSubmittingJobs": 0}


@pytest.fixture
def throttled(service: Service, config_text: str) -> Service:
    service.configure(config_text.replace("VO: [cms, dune]", f"VO: [cms, dune]\n      {THROTTLE}"))
    jobs = [{"Executable": "x"} for _ in range(9)]
    service.user().post("/api/v1/jobs", json={"jobs": jobs}).raise_for_status()
    return service


@pytest.fixture
def gateway(throttled: Service) -> httpx.Client:
    return throttled.as_role("gateway", vo="cms", site=SITE)


def ask(client: httpx.Client, count: int = 1) -> Any:
    answer = client.post("/api/v1/matcher/requestJob", json={**QUEUE, "count": count})
    assert answer.status_code == 200, answer.text
    return answer.json()


def advertise(client: httpx.Client, path: str = "", **said: object) -> Any:
    answer = client.post(f"/api/v1/sites/{SITE}{path}/advertisement", json={**EMPTY, **said})
    assert answer.status_code == 200, answer.text
    return answer.json()


def watermark(client: httpx.Client) -> int:
    answer = client.post(f"/api/v1/sites/{SITE}/watermark")
    assert answer.status_code == 200, answer.text
    return int(answer.json()["watermark"])


def throttle(client: httpx.Client) -> Any:
    return client.get(f"/api/v1/sites/{SITE}").json()["throttles"][0]


def test_a_site_that_has_not_advertised_gets_nothing(gateway: httpx.Client) -> None:
    answer = ask(gateway)
    assert (answer["matches"], answer["reason"]) == ([], "throttled")
    assert answer["retry_after"] > 0
    assert throttle(gateway)["why"] == "no fresh advertisement"


def test_matches_are_counted_until_an_advertisement_contains_them(gateway: httpx.Client) -> None:
    advertise(gateway, as_of=watermark(gateway))
    first = ask(gateway, count=5)["matches"]
    assert len(first) == 2
    assert ask(gateway)["reason"] == "throttled"
    stands = throttle(gateway)
    assert (stands["room"], stands["reserved"]) == (0, 2)
    assert stands["counters"]["CurMatches"] == 2
    assert {each["job_id"] for each in stands["reservations"]} == {each["job_id"] for each in first}
    # On their way: in nobody's count, and still reserved.
    advertise(gateway, as_of=watermark(gateway))
    assert ask(gateway)["reason"] == "throttled"
    for match in first:
        gateway.post(f"/api/v1/leases/{match['lease']}/start", json={}).raise_for_status()
    advertise(gateway, as_of=watermark(gateway), CurrentJobs=2, CurrentSubmittingJobs=1)
    assert throttle(gateway)["reserved"] == 0
    assert len(ask(gateway, count=5)["matches"]) == 1


def test_listed_attempts_are_contained_by_lease_or_by_job_and_epoch(gateway: httpx.Client) -> None:
    advertise(gateway, as_of=watermark(gateway))
    one, other = ask(gateway, count=2)["matches"]
    seen = [one["lease"], {"job_id": other["job_id"], "epoch": other["epoch"]}]
    counted = {"CurrentJobs": 2, "CurrentSubmittingJobs": 2}
    advertise(gateway, as_of=watermark(gateway), attempts_seen=seen, **counted)
    stands = throttle(gateway)
    assert (stands["reserved"], stands["counters"]["CurMatches"]) == (0, 2)


def test_an_older_advertisement_changes_nothing(gateway: httpx.Client) -> None:
    early, late = watermark(gateway), watermark(gateway)
    assert advertise(gateway, as_of=late, CurrentJobs=5) == {"accepted": True, "as_of": late, "warnings": []}
    assert advertise(gateway, as_of=early) == {"accepted": False, "as_of": late, "warnings": []}
    assert throttle(gateway)["counters"]["CurrentJobs"] == 5
    answer = gateway.post(f"/api/v1/sites/{SITE}/advertisement", json={**EMPTY, "as_of": late + 1})
    assert answer.status_code == 400


def test_a_plain_script_keeps_new_matches_reserved_one_interval_longer(gateway: httpx.Client) -> None:
    advertise(gateway)
    [match] = ask(gateway)["matches"]
    gateway.post(f"/api/v1/leases/{match['lease']}/start", json={}).raise_for_status()
    reserved = [throttle(gateway)["reserved"]]
    for _ in range(2):
        advertise(gateway, CurrentJobs=1)
        reserved.append(throttle(gateway)["reserved"])
    assert reserved == [1, 1, 0]


def test_every_level_must_agree(throttled: Service, config_text: str, gateway: httpx.Client) -> None:
    levels = config_text.replace("VO: [cms, dune]", f"VO: [cms, dune]\n      {THROTTLE}").replace(
        "long: {CPUTime: 100000}",
        "long: {CPUTime: 100000, Throttle: {Policy: pending, MaxPendingJobs: 1, Stale: open}}",
    )
    throttled.configure(levels)
    advertise(gateway, as_of=watermark(gateway))
    advertise(gateway, "/ces/ce1/queues/long", as_of=watermark(gateway), CurrentPendingJobs=0)
    assert len(ask(gateway, count=5)["matches"]) == 1
    scopes = gateway.get(f"/api/v1/sites/{SITE}").json()["throttles"]
    assert [(each["scope"], each["room"]) for each in scopes] == [(SITE, 1), (f"{SITE}/ce1/long", 0)]


def test_an_expression_of_the_site_may_ask_for_jobs(
    throttled: Service, config_text: str, gateway: httpx.Client
) -> None:
    asks = 'Throttle: {Policy: expression, Requirements: TARGET.JobName == "short" && CurMatches < 2}'
    throttled.configure(config_text.replace("VO: [cms, dune]", f"VO: [cms, dune]\n      {asks}"))
    jobs = [{"Executable": "x", "JobName": "short"} for _ in range(4)]
    answer = throttled.user().post("/api/v1/jobs", json={"jobs": jobs})
    advertise(gateway, as_of=watermark(gateway))
    matches = ask(gateway, count=5)["matches"]
    assert [each["job_id"] for each in matches] == answer.json()["job_ids"][:2]
    assert ask(gateway)["reason"] == "throttled"


def test_without_a_fresh_advertisement_our_own_states_may_count(
    throttled: Service, config_text: str, gateway: httpx.Client
) -> None:
    derived = THROTTLE.replace("}", ", Stale: derived}")
    throttled.configure(config_text.replace("VO: [cms, dune]", f"VO: [cms, dune]\n      {derived}"))
    first = ask(gateway, count=5)["matches"]
    assert len(first) == 2
    for match in first:
        gateway.post(f"/api/v1/leases/{match['lease']}/start", json={}).raise_for_status()
    assert len(ask(gateway, count=5)["matches"]) == 2
    assert throttle(gateway)["counters"]["CurrentJobs"] == 4


def test_wrong_advertisements_are_refused(gateway: httpx.Client) -> None:
    path = f"/api/v1/sites/{SITE}/advertisement"
    for said, word in (
        ({"CurrentJobs": -1}, "CurrentJobs"),
        ({"CurrentJobs": "many"}, "CurrentJobs"),
        ({"currentjobs": 1}, "did you mean CurrentJobs"),
        ({"Requirements": "CurMatches <"}, "Requirements"),
        ({"Load": {"one": 1}}, "Load"),
        ({"CurMatches": 'real("nan")'}, "CurMatches: nan is not a number"),
        ({"CurMatches": 'real("inf")'}, "CurMatches: inf is not a number"),
        ({"CurMatches": "2 * Free", "Free": 2**53 - 1}, "CurMatches: 18014398509481982 is out of range"),
    ):
        answer = gateway.post(path, json=said)
        assert answer.status_code == 400, said
        assert word in answer.json()["error"]["message"]
    assert gateway.post(f"/api/v1/sites/{SITE}/ces/ce9/advertisement", json=EMPTY).status_code == 404


@pytest.mark.parametrize("stored", ['real("nan")', 'real("inf")', 2**53 - 1])
def test_a_start_value_that_nothing_can_be_compared_with_closes_its_site_only(
    throttled: Service, config_text: str, gateway: httpx.Client, stored: str | int
) -> None:
    """As an older release has stored it; of the last one the reservation is what makes it too large."""
    asks = "Throttle: {Policy: expression, Requirements: CurMatches < 1e300}"
    throttled.configure(config_text.replace("VO: [cms, dune]", f"VO: [cms, dune]\n      {asks}"))
    with database.writing(throttled.engine) as conn:
        reservations.accept_advertisement(
            conn, SITE, Advertisement(attributes={"CurMatches": 0}), now=utc_now()
        )
    [match] = ask(gateway)["matches"]
    with database.writing(throttled.engine) as conn:
        said = Advertisement(attributes={"CurMatches": stored})
        reservations.accept_advertisement(conn, SITE, said, now=utc_now())
    assert ask(gateway)["reason"] == "throttled"
    stands = throttle(throttled.user())
    assert (stands["room"], stands["why"]) == (0, "CurMatches < 1e300 is not true: CurMatches is absent")
    assert "CurMatches" not in stands["counters"]
    user = throttled.user()
    for path in ("/sites", f"/resources/queues/{SITE}/ce1/long/explain", f"/jobs/{match['job_id']}/explain"):
        assert user.get(f"/api/v1{path}").status_code == 200, path
    assert user.post("/api/v1/explain", json={"jobs": [{"Executable": "x"}]}).status_code == 200
    elsewhere = {**QUEUE, "Site": "LCG.B.org", "GridCE": "ce2", "Queue": "all"}
    answer = throttled.pilot().post("/api/v1/matcher/requestJob", json=elsewhere)
    assert len(answer.json()["matches"]) == 1


def test_only_who_looks_after_the_site_advertises(throttled: Service, gateway: httpx.Client) -> None:
    advertise(gateway, as_of=watermark(gateway))
    ask(gateway)
    path = f"/api/v1/sites/{SITE}/advertisement"
    statuses = {
        role: throttled.as_role(role, **wishes).post(path, json=EMPTY).status_code
        for role, wishes in {
            "site_admin": {"site": SITE},
            "operator": {},
            "gateway": {"site": "LCG.B.org", "vo": "cms"},
            "user": {"vo": "cms", "user": "ada"},
        }.items()
    }
    assert statuses == {"site_admin": 200, "operator": 200, "gateway": 403, "user": 403}
    seen = throttle(throttled.user())
    assert (seen["reserved"], seen["reservations"]) == (1, [])
    page = throttled.user().get("/api/v1/sites", params={"limit": 1}).json()
    assert ([each["site"] for each in page["sites"]], page["next"]) == ([SITE], SITE)


def test_only_who_looks_after_the_site_hears_of_jobs_and_limits_of_other_vos(
    throttled: Service, config_text: str, gateway: httpx.Client
) -> None:
    limit = "dune:\n    JobScheduling: {RunningLimit: {LCG.A.org: {JobType: {Secret: 1}}}}\n"
    throttled.configure(
        config_text.replace("VO: [cms, dune]", f"VO: [cms, dune]\n      {THROTTLE}").replace(
            "dune:\n    JobScheduling: {MaxRescheduling: 7}\n", limit
        )
    )
    advertise(gateway, as_of=watermark(gateway))
    secret = [{"Executable": "x", "JobType": "Secret"}]
    throttled.user(vo="dune").post("/api/v1/jobs", json={"jobs": secret}).raise_for_status()
    [match] = ask(throttled.pilot(vo="dune"))["matches"]
    told = {}
    for name, client in {
        "admin": throttled.as_role("site_admin", site=SITE),
        "operator": throttled.operator(),
        "dune": throttled.user(vo="dune"),
        "cms": throttled.user(),
        "director": throttled.as_role("director", vo="cms", site=SITE),
        "gateway": gateway,
    }.items():
        stands = client.get(f"/api/v1/sites/{SITE}").json()
        queue = client.get(f"/api/v1/resources/queues/{SITE}/ce1/long/explain").json()
        limits = any("of the VO dune" in text for text in queue["now"])
        told[name] = (bool(stands["limits"]), _reserved(stands) == {match["job_id"]}, limits)
    everything, nothing = (True, True, True), (False, False, False)
    assert told == {
        "admin": everything,
        "operator": everything,
        "dune": (True, False, True),
        "cms": nothing,
        "director": nothing,
        "gateway": nothing,
    }
    [own] = ask(gateway)["matches"]
    assert _reserved(gateway.get(f"/api/v1/sites/{SITE}").json()) == {own["job_id"]}


def test_a_common_limit_that_names_a_vo_or_a_person_is_not_for_members_of_other_vos(
    service: Service, config_text: str
) -> None:
    limits = "{VO: {cms: 5, dune: 6}, Owner: {eve: 3}, JobType: {Test: 9}}"
    common = f"  Defaults:\n    JobScheduling: {{RunningLimit: {{{SITE}: {limits}}}}}\n"
    service.configure(config_text.replace("  Defaults:\n", common, 1))
    seen = {
        vo: {each["value"] for each in client.get(f"/api/v1/sites/{SITE}").json()["limits"]}
        for vo, client in {"cms": service.user(), "": service.operator()}.items()
    }
    assert seen == {"cms": {"cms", "Test"}, "": {"cms", "dune", "eve", "Test"}}


def _reserved(stands: Any) -> set[int]:
    return {each["job_id"] for each in stands["throttles"][0]["reservations"]}


def test_only_who_looks_after_the_site_bans_it(throttled: Service, gateway: httpx.Client) -> None:
    path = f"/api/v1/sites/{SITE}/ban"
    elsewhere = throttled.as_role("site_admin", site="LCG.B.org")
    for client in (gateway, elsewhere, throttled.user()):
        assert client.post(path, json={"reason": "x"}).status_code == 403
    operator = throttled.operator()
    assert operator.post(path, json={"reason": ""}).status_code == 400
    assert operator.post(path, json={"reason": "x", "until": "2030-01-01T00:00:00"}).status_code == 400
    assert operator.post("/api/v1/sites/LCG.A.orf/ban", json={"reason": "x"}).status_code == 404


def test_a_ban_that_would_be_over_is_refused(throttled: Service) -> None:
    operator = throttled.operator()
    # Read in a time zone ahead of UTC, it would be beyond the calendar, and no ban could be read any more.
    last = {"reason": "x", "until": "9999-12-31T23:59:59+00:00"}
    assert operator.post(f"/api/v1/sites/{SITE}/ban", json=last).status_code == 400
    over = {"reason": "x", "until": "2001-01-01T00:00:00+00:00"}
    answer = operator.post(f"/api/v1/sites/{SITE}/ban", json=over)
    assert answer.status_code == 400
    assert "2001-01-01 00:00:00+00:00 is over" in answer.text
    assert operator.get(f"/api/v1/sites/{SITE}").json()["ban"] is None


def test_who_banned_a_site_and_who_allowed_it_again_is_in_the_audit_log(service: Service, caplog) -> None:
    admin = service.as_role("site_admin", site=SITE)
    with caplog.at_level(logging.INFO, "pilotage.audit"):
        admin.post(f"/api/v1/sites/{SITE}/ban", json={"reason": "power cut"}).raise_for_status()
        admin.post(f"/api/v1/sites/{SITE}/allow").raise_for_status()
    lines = [json.loads(each.getMessage()) for each in caplog.records if each.name == "pilotage.audit"]
    assert [(line["action"], line["site"], line["role"]) for line in lines] == [
        ("ban", SITE, "site_admin"),
        ("allow", SITE, "site_admin"),
    ]
    assert lines[0]["reason"] == "power cut"


def test_an_advertisement_that_each_match_would_read_slowly_is_refused(gateway: httpx.Client) -> None:
    advertise(gateway, CurrentJobs=1)
    refused: Sequence[tuple[dict[str, object], str]] = (
        ({"Text": "x" * 4097}, "Text: has 4097 characters, allowed are 4096"),
        ({"Texts": ["a", "x" * 4097]}, "Texts: has 4097 characters in one item, allowed are 4096"),
        ({f"Attribute{number}": 1 for number in range(201)}, "has 201 further attributes, allowed are 200"),
        ({"Notes": "x" * 70_000}, "bytes, allowed are 65536"),
        ({"Requirements": '"' + "x" * 70_000 + '" == Name'}, "bytes, allowed are 65536"),
    )
    for further, problem in refused:
        answer = gateway.post(f"/api/v1/sites/{SITE}/advertisement", json={**EMPTY, **further})
        assert answer.status_code == 400
        assert problem in answer.json()["error"]["message"]
        assert throttle(gateway)["counters"]["CurrentJobs"] == 1


def test_a_director_is_listed_for_the_sites_of_its_token_only(throttled: Service) -> None:
    report = {
        "kind": "director",
        "name": "claims-more",
        "holder": "h:1:2",
        "every": 60,
        "sites": [SITE, "LCG.B.org"],
    }
    director = throttled.as_role("director", vo="cms", site=SITE)
    director.post("/api/v1/site-processes", json=report).raise_for_status()
    seen = {
        site: throttled.as_role("site_admin", site=site).get("/api/v1/site-processes").json()["processes"]
        for site in (SITE, "LCG.B.org")
    }
    assert [each["sites"] for each in seen[SITE]] == [[SITE]]
    assert seen["LCG.B.org"] == []


def test_queues_are_reported_by_those_who_serve_them_and_shown_at_their_sites(throttled: Service) -> None:
    until = utc_now().replace(microsecond=0) + timedelta(minutes=30)
    own, other, made_up = f"{SITE}/ce1/long", "LCG.B.org/ce2/all", f"{SITE}/ce1/made-up"
    queues = [
        {"queue": queue, "paused_until": until.astimezone(timezone(timedelta(hours=-12))).isoformat()}
        for queue in (own, other, made_up, "x")
    ]
    too_small = [{"queue": queue, "slot": "1 core", "jobs": 1} for queue in (own, other, made_up)]
    report = {"kind": "director", "holder": "h:1:2", "every": 60, "sites": [SITE, "LCG.B.org"]}
    report |= {"queues": queues, "too_small": too_small}

    def seen(name: str, **role: str) -> list[list[str]]:
        shown = throttled.as_role(**role).get("/api/v1/site-processes").json()["processes"]
        [process] = [each for each in shown if each["name"] == name]
        assert {datetime.fromisoformat(each["paused_until"]) for each in process["queues"]} == {until}
        return [[each["queue"] for each in process[what]] for what in ("queues", "too_small")]

    for name, where in (("one", {"site": SITE}), ("all", {})):
        director = throttled.as_role("director", vo="cms", **where)
        director.post("/api/v1/site-processes", json={**report, "name": name}).raise_for_status()

    assert seen("one", role="operator") == [[own]] * 2
    assert seen("all", role="operator") == [[own, other]] * 2
    assert seen("all", role="vo_admin", vo="cms") == [[own, other]] * 2
    assert seen("all", role="site_admin", site=SITE) == [[own]] * 2
    assert seen("all", role="site_admin", site="LCG.B.org") == [[other]] * 2


def test_a_pause_without_end_is_refused(service: Service) -> None:
    for until in ("9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00", "2999-01-01T00:00:00Z"):
        queues = [{"queue": f"{SITE}/ce1/long", "paused_until": until}]
        report = {"kind": "director", "name": "n", "holder": "h:1:2", "every": 60, "queues": queues}
        answer = service.as_role("director", vo="cms").post("/api/v1/site-processes", json=report)
        assert answer.status_code == 400
        message = answer.json()["error"]["message"]
        assert "queues/0/paused_until" in message
        assert "is not within 30 days from now" in message


def test_a_director_is_reported_with_its_own_token_only_and_forgotten_when_it_is_overdue(
    throttled: Service,
) -> None:
    def report(token: httpx.Client, every: float) -> httpx.Response:
        body = {"kind": "director", "name": "own", "holder": "h:1:2", "every": every}
        body |= {"sites": [SITE], "lease": 60}
        return token.post("/api/v1/site-processes", json=body)

    def forget(token: httpx.Client) -> httpx.Response:
        return token.post("/api/v1/site-processes/forget", json={"name": "own"})

    own = throttled.as_role("director", vo="cms", site=SITE)
    other = throttled.as_role("director", vo="cms")
    assert report(own, 1e-9).status_code == 204
    refused = report(other, 60)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "other_process")
    assert report(own, 1e-9).status_code == 204

    assert forget(throttled.as_role("vo_admin", vo="lhcb", user="eve")).json()["processes"] == []
    early = forget(own)
    assert (early.status_code, early.json()["error"]["code"]) == (409, "other_process")
    with database.writing(throttled.engine) as conn:
        conn.execute(update(site_processes).values(seen_at=utc_now() - timedelta(hours=1)))
    assert [each["name"] for each in forget(other).json()["processes"]] == ["own"]
    assert forget(other).json()["processes"] == []


def test_a_vo_has_so_many_directors_and_gateways_and_no_more(
    throttled: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "SITE_PROCESSES", 2)
    director = throttled.as_role("director", vo="cms", site=SITE)

    def report(name: str, vo: str = "cms") -> httpx.Response:
        body = {"kind": "director", "name": name, "vo": vo, "holder": "h:1:2", "every": 60}
        sender = director if vo == "cms" else throttled.as_role("director", vo=vo)
        return sender.post("/api/v1/site-processes", json=body)

    assert [report(name).status_code for name in ("a", "b", "a", "c")] == [204, 204, 204, 400]
    assert "cms may have 2 directors and gateways" in report("c").json()["error"]["message"]
    assert report("c", vo="dune").status_code == 204


def test_reports_that_are_too_large_for_a_vo_extend_the_lease_and_are_left_out(
    throttled: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "SITE_REPORTS", 1500)
    director = throttled.as_role("director", vo="cms", site=SITE)
    large = {"kind": "director", "holder": "h:1:2", "every": 60, "sites": [SITE], "problems": ["x" * 400] * 2}
    for name in ("a", "b", "a"):
        director.post("/api/v1/site-processes", json={**large, "name": name}).raise_for_status()
    found = director.get("/api/v1/site-processes").json()["processes"]
    assert [len(each["problems"]) for each in found] == [2, 1]
    assert "too large together" in found[1]["problems"][0]
