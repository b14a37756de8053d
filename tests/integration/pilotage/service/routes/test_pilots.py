"""Pilots over HTTP: where they may land, what they wrote, how they fared."""

from datetime import timedelta

import pytest

from pilotage.service.services import utc_now
from taskqueue.pilots import isolation
from tests.support.service import Service

LONG, SHORT, OTHER = "LCG.A.org/ce1/long", "LCG.A.org/ce1/short", "LCG.B.org/ce2/all"


def place(queue: str) -> dict[str, object]:
    site, ce, name = queue.split("/")
    return {"Site": site, "GridCE": ce, "Queue": name, "CPUTime": 100_000}


def send(service: Service, stamp: str, *possible_queues: str, **wishes: str) -> str:
    """Register a pilot whose queue a broker picks; its token."""
    director = service.as_role("director", **{"vo": "cms", **wishes})
    body = {"stamp": stamp, "possible_queues": possible_queues, "secret": True}
    answer = director.post("/api/v1/pilots", json=body)
    assert answer.status_code == 201, answer.text
    exchanged = service.client(answer.json()["secret"]).post(
        f"/api/v1/pilots/{stamp}/token", json={"request_id": "12345678-1234-5678-1234-567812345678"}
    )
    assert exchanged.status_code == 200, exchanged.text
    token: str = exchanged.json()["token"]
    return token


def test_a_pilot_of_a_broker_belongs_to_the_first_queue_that_it_states(service: Service):
    pilot = service.client(send(service, "a.b.c.1", LONG, SHORT))
    operator = service.operator()
    assert operator.get("/api/v1/pilots/a.b.c.1").json()["site"] == ""
    asked = pilot.post("/api/v1/matcher/getSubmitPoolsForQueue", json={"queues": [SHORT]})
    assert asked.status_code == 200, asked.text
    told = operator.get("/api/v1/pilots/a.b.c.1").json()
    assert (told["queue"], told["possible_queues"]) == ("short", [LONG, SHORT])
    assert pilot.post("/api/v1/matcher/requestJob", json=place(SHORT)).status_code == 200
    assert pilot.post("/api/v1/matcher/requestJob", json=place(LONG)).status_code == 403


@pytest.mark.parametrize("is_asked_first", [False, True])
def test_a_pilot_gets_nothing_where_its_broker_was_not_allowed_to_send_it(
    service: Service, *, is_asked_first: bool
):
    service.user().post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]})
    pilot = service.client(send(service, "a.b.c.2", LONG, SHORT))
    if is_asked_first:
        refused = pilot.post("/api/v1/matcher/getSubmitPoolsForQueue", json={"queues": [OTHER]})
    else:
        refused = pilot.post("/api/v1/matcher/requestJob", json=place(OTHER))
    assert refused.status_code == 403
    assert "was not sent to LCG.B.org/ce2/all" in refused.text
    assert pilot.post("/api/v1/matcher/requestJob", json=place(LONG)).json()["matches"]


def test_a_director_sends_to_its_sites_only_and_sees_what_is_on_its_way_there(service: Service):
    body = {"stamp": "s", "possible_queues": [LONG, OTHER]}
    director = service.as_role("director", vo="cms", site="LCG.A.org")
    assert director.post("/api/v1/pilots", json=body).status_code == 403
    send(service, "a.b.c.3", LONG, site="LCG.A.org")
    send(service, "a.b.c.4", OTHER)
    seen = director.get("/api/v1/pilots").json()["pilots"]
    assert [pilot["stamp"] for pilot in seen] == ["a.b.c.3"]
    assert director.get("/api/v1/pilots/a.b.c.4").status_code == 404
    assert director.get("/api/v1/pilots", params={"site": "LCG_A.org"}).json()["pilots"] == []


@pytest.mark.parametrize(
    "places",
    [
        {},
        {"queue": LONG, "possible_queues": [SHORT]},
        {"possible_queues": []},
        {"possible_queues": ["LCG.A.org/ce1/lung"]},
    ],
)
def test_a_pilot_without_a_place_that_is_known_is_not_stored(service: Service, places: dict[str, object]):
    answer = service.as_role("director", vo="cms").post("/api/v1/pilots", json={"stamp": "s", **places})
    assert answer.status_code in (400, 404)
    assert service.operator().get("/api/v1/pilots").json()["pilots"] == []


def test_what_a_failed_pilot_wrote_is_shown_to_those_that_may_see_it(service: Service):
    send(service, "a.b.c.5", LONG)
    director = service.as_role("director", vo="cms")
    path = "/api/v1/pilots/a.b.c.5/output"
    assert director.get(path).json()["error"]["code"] == "pilot_output_not_found"
    assert director.post(path, json={"stderr": "no such library"}).status_code == 200
    assert service.as_role("site_admin", site="LCG.A.org").get(path).json()["stderr"] == "no such library"
    assert service.as_role("site_admin", site="LCG.B.org").get(path).status_code == 404
    assert service.as_role("director", vo="dune").get(path).status_code == 404
    assert service.as_role("director", vo="dune").post(path, json={}).status_code == 404
    assert director.get("/api/v1/pilots/a.b.c.5").json()["has_output"] is True


def test_a_director_learns_which_stamps_are_nobodys(service: Service):
    send(service, "a.b.c.6", LONG)
    director = service.as_role("director", vo="cms")
    director.post("/api/v1/pilots", json={"stamp": "a.b.c.7", "queue": LONG})
    director.post("/api/v1/pilots/a.b.c.7/status", json={"status": "Aborted"})
    question = {"stamps": ["a.b.c.6", "a.b.c.7", "a.b.c.8"]}
    said = service.as_role("director", vo="dune").post("/api/v1/pilots/standings", json=question).json()
    assert said["standings"] == {"a.b.c.6": "active", "a.b.c.7": "ended", "a.b.c.8": "unknown"}


def test_pilots_are_counted_by_queue_with_why_they_were_empty_and_what_their_queue_is_worth(service: Service):
    director = service.as_role("director", vo="cms")
    service.user().post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]})
    for number, (status, reason) in enumerate(
        [
            ("Done", "no_task_queue"),
            ("Done", "limits"),
            ("Done", "limits"),
            ("Aborted", None),
            ("Waiting", None),
        ]
    ):
        stamp = f"north.any.{number}"
        director.post("/api/v1/pilots", json={"stamp": stamp, "queue": LONG})
        news = {"status": status, "empty_reason": reason}
        assert director.post(f"/api/v1/pilots/{stamp}/status", json=news).status_code == 200
    served = service.client(send(service, "north.any.7", LONG, SHORT))
    assert served.post("/api/v1/matcher/requestJob", json=place(LONG)).json()["matches"]

    by_queue = director.get("/api/v1/pilots/summary", params={"by": "queue"}).json()["summary"]
    by_reason = director.get("/api/v1/pilots/summary", params={"by": "empty_reason"}).json()["summary"]

    [row] = by_queue
    expected = {"count": 6, "jobs": 1, "active": 2, "with_jobs": 1, "empty": 3, "broken": 1}
    assert row == {**expected, "failed_jobs": 0, "queue": LONG, "quality": 0.0}  # its only job has not ended
    assert {row["empty_reason"]: row["empty"] for row in by_reason} == {
        "": 0,
        "limits": 2,
        "no_task_queue": 1,
    }
    text = service.as_role("monitor").get("/metrics").text
    assert f'pilotage_pilots{{queue="{LONG}",status="Done",vo="cms"}} 3.0' in text
    assert f'pilotage_empty_pilots{{queue="{LONG}",reason="limits",vo="cms"}} 2.0' in text
    assert f'pilotage_queue_quality{{queue="{LONG}",vo="cms"}} 0.0' in text


def report_end(
    service: Service,
    number: int,
    *,
    node: str = "n1",
    host_trouble: bool = True,
    status: str = "Failed",
    reason: str = "no space left",
    **more: str,
) -> None:
    """A pilot that tells its node and ends."""
    stamp = f"north.any.{number}"
    pilot = service.client(send(service, stamp, LONG))
    pilot.post("/api/v1/matcher/getSubmitPoolsForQueue", json={"queues": [LONG]})  # where it landed
    assert pilot.post(f"/api/v1/pilots/{stamp}/node", json={"node": node}).status_code == 200
    news = {"status": status, "reason": reason, "host_trouble": host_trouble, **more}
    assert pilot.post(f"/api/v1/pilots/{stamp}/status", json=news).status_code == 200


def ask_for_node(service: Service, stamp: str, node: str) -> dict[str, object]:
    pilot = service.client(send(service, stamp, LONG))
    pilot.post("/api/v1/matcher/getSubmitPoolsForQueue", json={"queues": [LONG]})
    answer = pilot.post(f"/api/v1/pilots/{stamp}/node", json={"node": node})
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


def test_a_pilot_that_its_batch_system_started_again_may_request_jobs_soon(service: Service):
    [job_id] = service.user().post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]}).json()["job_ids"]
    pilot = service.client(service.token("pilot", vo="cms", queue=LONG, stamp="by-hand"))
    site, ce, queue = LONG.split("/")
    request = {"Site": site, "GridCE": ce, "Queue": queue, "CPUTime": 10**6}
    [match] = pilot.post("/api/v1/matcher/requestJob", json=request).json()["matches"]
    pilot.post(f"/api/v1/leases/{match['lease']}/start", json={}).raise_for_status()

    def begin(process: str) -> str:
        body = {"node": "n1", "process": process}
        pilot.post("/api/v1/pilots/by-hand/node", json=body).raise_for_status()
        return str(service.user().get(f"/api/v1/jobs/{job_id}").json()["status"])

    assert begin("second") == "Stalled"
    explained = service.user().get(f"/api/v1/jobs/{job_id}/explain").json()["now"]
    assert explained == ["its pilot has ended: it is rescheduled soon, or fails if that was done too often"]
    assert pilot.post("/api/v1/matcher/requestJob", json=request).json()["reason"] == "slot_full"
    pilot.post(f"/api/v1/leases/{match['lease']}/heartbeat", json={}).raise_for_status()
    assert begin("second") == "Running"


def test_a_node_is_excluded_after_three_pilots_in_a_row_ended_because_of_it(service: Service):
    for number in range(2):
        report_end(service, number)
    report_end(service, 2, host_trouble=False)  # it shows nothing
    assert ask_for_node(service, "north.any.7", "n1")["excluded_until"] is None
    report_end(service, 3)
    late = {"reports": [{"stamp": "north.any.3", "status": "Failed", "reason": "its job ended"}]}
    answer = service.as_role("director", vo="cms").post("/api/v1/pilots/statuses", json=late)
    assert answer.status_code == 200, answer.text
    report_end(service, 4, node="n2")

    excluded = ask_for_node(service, "north.any.8", "n1")

    assert excluded["reason"] == "no space left"
    assert str(excluded["excluded_until"]) > utc_now().isoformat()
    assert ask_for_node(service, "north.any.9", "n2")["excluded_until"] is None
    shown = service.operator().get("/api/v1/pilots/north.any.0").json()
    assert (shown["node"], shown["host_trouble"]) == ("n1", True)


def test_nodes_that_cannot_isolate_jobs_are_explained(service: Service):
    user = service.user()
    [job_id] = user.post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]}).json()["job_ids"]

    def explained() -> list[str]:
        of_job = user.get(f"/api/v1/jobs/{job_id}/explain").json()["now"]
        found = [each for each in of_job if "isolat" in each]
        queue = service.operator().get(f"/api/v1/resources/queues/{LONG}/explain").json()["now"]
        assert [each for each in queue if "isolat" in each] == found
        return found

    assert explained() == []
    missing = f"it runs no more; {isolation.NOT_ISOLATED}: --isolation userns does not work here"
    report_end(service, 0, host_trouble=False, status="Done", reason=missing)
    report_end(service, 1, node="n2", empty_reason=f"{isolation.NO_ISOLATION}userns", reason="secret")
    report_end(service, 2, node="n3")
    late = {"reports": [{"stamp": "north.any.1", "status": "Failed", "reason": "its job ended"}]}
    service.as_role("director", vo="cms").post("/api/v1/pilots/statuses", json=late).raise_for_status()

    [open_gap, closed_gap] = explained()

    assert open_gap == (
        f"1 of 3 pilots of cms that ended at {LONG} lately ran jobs without isolation, so that they could "
        "read files of each other's: the nodes, such as n1, have no user namespaces"
    )
    assert closed_gap == (
        f"1 of 3 pilots of cms that ended at {LONG} lately got no job: they have to isolate jobs "
        "(--isolation=userns), and the nodes, such as n2, have no user namespaces"
    )


def test_pilots_that_die_before_they_start_count_for_their_node(service: Service):
    director = service.as_role("director", vo="cms")
    stamps = [f"north.any.{number}" for number in range(4)]
    for stamp in stamps:
        director.post("/api/v1/pilots", json={"stamp": stamp, "queue": LONG}).raise_for_status()
    reports = [
        {"stamp": each, "status": "Aborted", "reason": "\nfailed", "node": "n1"} for each in stamps[:3]
    ]
    reports.append({"stamp": stamps[3], "status": "Aborted", "reason": "\nrefused", "node": ""})
    director.post("/api/v1/pilots/statuses", json={"reports": reports}).raise_for_status()

    [excluded] = service.operator().get("/api/v1/sites/LCG.A.org/nodes").json()["nodes"]
    assert (excluded["node"], excluded["reason"]) == ("n1", "\nfailed")
    shown = {each: service.operator().get(f"/api/v1/pilots/{each}").json() for each in stamps}
    assert [each["host_trouble"] for each in shown.values()] == [True, True, True, False]
    assert str(ask_for_node(service, "north.any.8", "n1")["excluded_until"]) > utc_now().isoformat()


def test_a_site_admin_finds_the_node_at_which_pilots_break(service: Service):
    for number, node in enumerate(("n1", "n1", "n2")):
        report_end(service, number, node=node)
    admin = service.as_role("site_admin", site="LCG.A.org")
    counted = admin.get("/api/v1/pilots/summary", params={"by": "node"}).json()["summary"]
    assert {each["node"]: (each["count"], each["broken"]) for each in counted} == {"n1": (2, 2), "n2": (1, 1)}
    elsewhere = service.as_role("site_admin", site="LCG.B.org")
    assert elsewhere.get("/api/v1/pilots/summary", params={"by": "node"}).json()["summary"] == []


def test_a_site_admin_finds_the_node_at_which_jobs_fail(service: Service):
    service.submit(*[{"Executable": "x"}] * 3)
    director = service.as_role("director", vo="cms")
    for number, exit_code in enumerate((1, 1, 0)):
        stamp, node = f"north.any.{number}", f"n{exit_code}"
        pilot = service.client(send(service, stamp, LONG))
        [match] = pilot.post("/api/v1/matcher/requestJob", json=place(LONG) | {"node": node}).json()[
            "matches"
        ]
        status = "Failed" if exit_code else "Done"
        report = {"status": status, "exit_code": exit_code}
        pilot.post(f"/api/v1/leases/{match['lease']}/start", json={}).raise_for_status()
        pilot.post(f"/api/v1/leases/{match['lease']}/finish", json=report).raise_for_status()
        news = {"stamp": stamp, "status": "Done", "node": node}
        director.post("/api/v1/pilots/statuses", json={"reports": [news]}).raise_for_status()
    admin = service.as_role("site_admin", site="LCG.A.org")
    counted = admin.get("/api/v1/pilots/summary", params={"by": "node"}).json()["summary"]
    assert {each["node"]: (each["jobs"], each["failed_jobs"]) for each in counted} == {
        "n0": (1, 0),
        "n1": (2, 2),
    }


def test_a_site_admin_sees_excluded_nodes_and_readmits_them(service: Service):
    for number in range(3):
        report_end(service, number)
    admin = service.as_role("site_admin", site="LCG.A.org")
    [excluded] = admin.get("/api/v1/sites/LCG.A.org/nodes").json()["nodes"]
    assert (excluded["node"], excluded["vo"], excluded["reason"]) == ("n1", "cms", "no space left")
    of_vo = service.as_role("vo_admin", vo="cms", user="eve").get("/api/v1/sites/LCG.A.org/nodes")
    assert of_vo.json()["nodes"] == [excluded]
    of_another = service.as_role("vo_admin", vo="dune", user="dan").get("/api/v1/sites/LCG.A.org/nodes")
    assert of_another.json()["nodes"] == []
    body = {"node": "n1"}
    for role, wishes in (("vo_admin", {"vo": "cms", "user": "eve"}), ("site_admin", {"site": "LCG.B.org"})):
        answer = service.as_role(role, **wishes).post("/api/v1/sites/LCG.A.org/readmit", json=body)
        assert answer.status_code == 403, role

    assert admin.post("/api/v1/sites/LCG.A.org/readmit", json=body).json() == {"nodes": []}

    assert ask_for_node(service, "north.any.8", "n1")["excluded_until"] is None
    again = admin.post("/api/v1/sites/LCG.A.org/readmit", json=body)
    assert (again.status_code, again.json()["error"]["code"]) == (404, "node_not_excluded")


def test_pilots_of_another_vo_exclude_no_node(service: Service):
    for number in range(3):
        report_end(service, number)
    stamp = "north.any.7"
    body = {"stamp": stamp, "queue": LONG, "vo": "dune"}
    service.as_role("director", vo="dune").post("/api/v1/pilots", json=body).raise_for_status()
    pilot = service.as_role("pilot", vo="dune", queue=LONG, stamp=stamp)
    answer = pilot.post(f"/api/v1/pilots/{stamp}/node", json={"node": "n1"})
    assert answer.json() == {"excluded_until": None, "reason": ""}


def test_a_summary_leaves_out_what_ended_before_and_other_peoples_pilots(service: Service):
    director = service.as_role("director", vo="cms")
    for stamp in ("ended", "lives"):
        director.post("/api/v1/pilots", json={"stamp": stamp, "queue": LONG})
    director.post("/api/v1/pilots/ended/status", json={"status": "Failed"})

    def count(role: str = "director", *, vo: str = "cms", hours: int = -1) -> int:
        since = (utc_now() + timedelta(hours=hours)).isoformat()
        answer = service.as_role(role, vo=vo).get("/api/v1/pilots/summary", params={"since": since})
        return sum(row["count"] for row in answer.json()["summary"])

    assert (count(), count(hours=1), count(vo="dune")) == (2, 1, 0)
    listed = director.get("/api/v1/pilots", params={"since": "1h"}).json()["pilots"]
    assert {each["stamp"] for each in listed} == {"ended", "lives"}
    assert director.get("/api/v1/pilots/summary", params={"since": "2d"}).json()["summary"]
    assert director.get("/api/v1/pilots", params={"since": "tomorow"}).status_code == 400


def test_a_wrong_name_in_a_summary_is_refused_with_what_was_meant(service: Service):
    answer = service.operator().get("/api/v1/pilots/summary", params={"by": "queu"})
    assert answer.status_code == 400
    assert "did you mean queue" in answer.text
