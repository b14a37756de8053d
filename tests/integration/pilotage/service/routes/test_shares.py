"""Shares and the order of two jobs over HTTP: what is shown to whom, and that matching keeps to it."""

from collections import Counter
from typing import Any

import httpx
import pytest

from agents import priorities
from agents.priorities import PriorityState
from pilotage.service.services import utc_now
from tests.support.service import CONFIG as COMMON
from tests.support.service import Service

CONFIG = COMMON.replace(
    "    cms_user: {VO: cms}\n", "    cms_user: {VO: cms}\n    cms_prod: {VO: cms, JobShare: 3000}\n"
)
QUEUE = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 10**6, "MaxRAM": 4000}
pytestmark = pytest.mark.config(CONFIG)


def _submit(service: Service, user: str, group: str = "", *, number: int = 1, **more: object) -> list[int]:
    client = service.as_role("user", vo="cms", user=user, group=group or None)
    jobs = [{"Executable": "x", "Requirements": {"Memory": 2000}, **more} for _ in range(number)]
    answer = client.post("/api/v1/jobs", json={"jobs": jobs})
    assert answer.status_code == 201, answer.text
    return list(answer.json()["job_ids"])


def _weigh(service: Service) -> None:
    """Run the priority agent once, and let the matcher read it, which may use what it knew for a moment."""
    config = service.parts.live.current
    priorities.cycle(service.engine, config, now=utc_now(), holder="test", memory=PriorityState())
    service.parts.matcher.refresh()


def _shares(client: httpx.Client) -> dict[tuple[str, str | None], Any]:
    answer = client.get("/api/v1/shares", params={"vo": "cms"})
    assert answer.status_code == 200, answer.text
    return {(each["owner_group"], each["owner"]): each for each in answer.json()["shares"]}


def _order(client: httpx.Client, first: int, second: int) -> Any:
    answer = client.get("/api/v1/shares/order", params={"first": first, "second": second})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_vo_admin_sees_all_owners_and_a_user_groups_and_himself(service: Service) -> None:
    _submit(service, "ada", number=2)
    _submit(service, "bob")
    _submit(service, "eve", "cms_prod")
    found = _shares(service.as_role("vo_admin", vo="cms", user="lead"))
    assert list(found) == [
        *(("cms_prod", None), ("cms_user", None), ("cms_prod", "eve"), ("cms_user", "ada")),
        ("cms_user", "bob"),
    ]
    prod, ada = found["cms_prod", None], found["cms_user", "ada"]
    assert (prod["configured"], prod["share"], prod["part"], prod["place"]) == (3000, 3000, 0.75, 1)
    assert (ada["configured"], ada["part"], ada["waiting"], ada["used"]) == (500, 0.125, 2, [])
    of_ada = _shares(service.user("ada"))
    assert list(of_ada) == [("cms_prod", None), ("cms_user", None), ("cms_user", "ada")]
    assert [each["is_own"] for each in of_ada.values()] == [False, False, True]
    assert service.user("dan", "dune").get("/api/v1/shares?vo=cms").status_code == 403
    assert service.operator().get("/api/v1/shares").status_code == 400


def test_the_shares_are_those_that_the_agent_gives_the_matchers(service: Service) -> None:
    [mine], [hers] = _submit(service, "ada"), _submit(service, "eve", "cms_prod")
    _weigh(service)
    order = _order(service.user("ada"), hers, mine)
    shares = _shares(service.as_role("vo_admin", vo="cms", user="lead"))
    assert order["weights"] == [shares["cms_prod", "eve"]["share"], shares["cms_user", "ada"]["share"]]
    assert (order["decided_by"], order["chance"]) == ("weight", 0.75)
    assert order["headline"] == (
        f"job {hers} comes first 75 times of 100: chance decides by the weights of task queues, 3000 and "
        f"1000; what differs most is the share of the group: 3000 of job {hers}, 1000 of job {mine}"
    )
    assert order["queues"] == [2, 2, 2]
    assert [each["what"] for each in order["steps"]][:1] == ["share of the group"]


def test_use_with_its_half_life_is_shown(service: Service) -> None:
    section = "Operations/cms/JobScheduling"
    edits = {
        f"{section}/EnableSharesCorrection": True,
        f"{section}/ShareCorrections/groups/TimeSlices/decay/HalfLife": 86_400,
    }
    operator = service.operator()
    version = operator.get("/api/v1/config").headers["ETag"]
    answer = operator.patch(
        "/api/v1/config", json={"set": edits, "message": "decay"}, headers={"If-Match": version}
    )
    assert answer.status_code == 200, answer.text
    [running] = _submit(service, "eve", "cms_prod")
    pilot = service.pilot()
    [match] = pilot.post("/api/v1/matcher/requestJob", json=QUEUE).json()["matches"]
    assert match["job_id"] == running
    pilot.post(f"/api/v1/leases/{match['lease']}/start", json={}).raise_for_status()
    _submit(service, "eve", "cms_prod")
    _submit(service, "ada")
    found = _shares(service.as_role("vo_admin", vo="cms", user="lead"))
    [used] = found["cms_prod", None]["used"]
    assert (used["measure"], used["half_life"], used["time_span"]) == ("WallTime", 86_400, 864_000)
    assert used["amount"] > 0
    assert found["cms_user", None]["used"][0]["amount"] == 0
    # It used all, so the others get more than is configured: both are at their bounds.
    assert found["cms_prod", None]["share"] / found["cms_user", None]["share"] == pytest.approx(
        3 * 0.75 / 3, rel=1e-6
    )
    assert found["cms_prod", "eve"]["used"] == [], "nothing corrects among owners"


def test_jobs_that_no_queue_can_run_have_no_part_of_the_draws(service: Service) -> None:
    """They take from the share of their owner and group, though: as the matcher draws the others."""
    [runs] = _submit(service, "ada")
    _submit(service, "ada", Requirements={"Memory": 10**6}, number=3)
    _submit(service, "bob", Requirements={"Memory": 10**6})
    [large] = _submit(service, "eve", "cms_prod")
    found = _shares(service.as_role("vo_admin", vo="cms", user="lead"))
    group, ada, bob = (found["cms_user", owner] for owner in (None, "ada", "bob"))
    assert [(each["waiting"], each["stuck"]) for each in (group, ada, bob)] == [(5, 4), (4, 3), (1, 1)]
    assert found["cms_prod", None]["stuck"] == 0
    assert (ada["share"], bob["share"], bob["part"]) == (500, 500, 0)
    assert group["part"] == ada["part"] == pytest.approx(250 / 3250)
    assert found["cms_prod", None]["part"] == pytest.approx(3000 / 3250)
    _weigh(service)
    assert _order(service.operator(), large, runs)["chance"] == pytest.approx(3000 / 3250)


def test_a_job_that_is_always_first_is_so_among_those_that_state_no_priority(service: Service) -> None:
    waiting = _submit(service, "ada", number=5)
    [urgent] = _submit(service, "ada", Priority=10)
    _weigh(service)
    order = _order(service.user("ada"), urgent, waiting[0])
    assert (order["decided_by"], order["chance"]) == ("weight", pytest.approx(1, abs=1e-5))
    assert "what differs most is the part of the task queue, by priorities" in order["headline"]
    [match] = service.pilot().post("/api/v1/matcher/requestJob", json=QUEUE).json()["matches"]
    assert match["job_id"] == urgent


def test_jobs_that_no_queue_could_both_run_do_not_compete(service: Service) -> None:
    [small] = _submit(service, "ada", Site="LCG.A.org")
    [large] = _submit(service, "bob", Requirements={"Memory": 9000})
    order = _order(service.user("ada"), large, small)
    assert (order["decided_by"], order["chance"], order["queues"]) == ("queues", None, [1, 1, 0])
    assert order["headline"] == "they do not compete: no queue could run both"


def test_where_a_limit_keeps_one_of_them_out_the_other_comes_first(service: Service) -> None:
    [mine], [hers] = _submit(service, "ada", Site="LCG.B.org"), _submit(service, "bob", JobGroup="g")
    operator = service.operator()
    version = operator.get("/api/v1/config").headers["ETag"]
    edits = {"Operations/cms/JobScheduling/RunningLimit/LCG.B.org/JobGroup/g": 0}
    answer = operator.patch(
        "/api/v1/config", json={"set": edits, "message": "no"}, headers={"If-Match": version}
    )
    assert answer.status_code == 200, answer.text
    order = _order(service.user("ada"), hers, mine)
    assert (order["decided_by"], order["chance"]) == ("closed", 0)
    assert order["headline"].startswith(f"job {mine} comes first: no queue for both takes job {hers} now")


def test_jobs_of_a_queue_that_is_switched_off_do_not_compete_now(service: Service) -> None:
    [mine], [hers] = (_submit(service, user, Site="LCG.A.org") for user in ("ada", "bob"))
    operator = service.operator()
    body = {"set": {"Resources/Sites/LCG.A.org/Enabled": False}, "message": "no"}
    version = operator.get("/api/v1/config").headers["ETag"]
    operator.patch("/api/v1/config", json=body, headers={"If-Match": version}).raise_for_status()
    order = _order(service.user("ada"), hers, mine)
    assert (order["decided_by"], order["chance"], order["queues"]) == ("closed", None, [0, 0, 0])
    assert order["headline"].startswith("they do not compete now: no queue that could run both takes both")


def test_a_job_that_runs_is_compared_by_its_kind(service: Service) -> None:
    [hers] = _submit(service, "bob")
    [match] = service.pilot().post("/api/v1/matcher/requestJob", json=QUEUE).json()["matches"]
    assert match["job_id"] == hers
    [mine] = _submit(service, "ada")
    headline = _order(service.user("ada"), hers, mine)["headline"]
    assert headline.startswith(f"job {hers} is Matched at LCG.A.org already; of jobs like them that wait: ")
    service.user("bob").post(f"/api/v1/jobs/{hers}/kill").raise_for_status()
    order = _order(service.user("ada"), hers, mine)
    assert (order["decided_by"], order["queues"], order["weights"]) == ("status", [], [])
    assert order["headline"].startswith(f"they do not compete: job {hers} is Killed, job {mine} is Waiting")


def test_jobs_of_other_vos_do_not_exist(service: Service) -> None:
    [mine] = _submit(service, "ada")
    [other] = service.submit({"Executable": "x"}, user="dan", vo="dune")
    for first, second, status in ((mine, other, 404), (mine, 10**6, 404), (mine, mine, 400)):
        answer = service.user("ada").get("/api/v1/shares/order", params={"first": first, "second": second})
        assert answer.status_code == status
    order = _order(service.operator(), mine, other)
    assert (order["decided_by"], order["chance"]) == ("vo", None)
    assert order["headline"].startswith("neither comes first: their VOs take turns, ")
    same = service.user("ada").get("/api/v1/shares/order", params={"first": mine, "second": mine})
    assert f"second: {mine} is the first job, too: give two different jobs" in same.json()["error"]["message"]
    lead = service.as_role("vo_admin", vo="cms", user="lead")
    assert "the token is not for the VO dune" in lead.get("/api/v1/shares", params={"vo": "dune"}).text


def test_pilots_are_given_jobs_as_the_order_foresees(service: Service) -> None:
    mine, hers = _submit(service, "ada", number=60), _submit(service, "eve", "cms_prod", number=60)
    _weigh(service)
    chance = _order(service.user("ada"), hers[0], mine[0])["chance"]
    pilot, given = service.pilot(), Counter[bool]()
    for _ in range(60):
        [match] = pilot.post("/api/v1/matcher/requestJob", json=QUEUE).json()["matches"]
        given[match["job_id"] in hers] += 1
        pilot.post(f"/api/v1/leases/{match['lease']}/finish", json={"exit_code": 0, "status": "Done"})
    assert abs(given[True] - 60 * chance) < 17, "five standard deviations"
