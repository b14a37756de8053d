"""Bans, throttles and limits hold however a pilot spells its place, and however little it says of it."""

from typing import Any

import httpx
import pytest
from sqlalchemy import select

from taskqueue.db import database
from taskqueue.schema.tables import attempts
from tests.support import databases
from tests.support.service import Service

CONFIG = """
Resources:
  Sites:
    LCG.A.org:
      VO: [cms, dune]
      Throttle: {Policy: level0, MaxSubmittingJobs: 2, Stale: derived}
      CEs: {ce1: {Queues: {long: {}}}}
    LCG.B.org:
      VO: [cms]
      CEs:
        ce1:
          Throttle: {Policy: level0, MaxSubmittingJobs: 2, Stale: derived}
          Queues: {long: {}, short: {}}
        ce2: {Queues: {long: {}}}
    LCG.C.org:
      VO: [cms, dune]
      CEs: {ce1: {Queues: {long: {}, short: {}}}}
    LCG.D.org:
      Enabled: false
      CEs: {ce1: {Queues: {long: {}}}}
Operations:
  dune:
    JobScheduling: {RunningLimit: {LCG.C.org: {CEs: {ce1: {JobType: {Merge: 1}}}}}}
Registry:
  VO: {cms: {}, dune: {}}
  Groups: {cms_user: {VO: cms}, dune_user: {VO: dune}}
"""
pytestmark = [databases.BOTH, pytest.mark.config(CONFIG)]


def submit(service: Service, count: int, vo: str = "cms", **asked: object) -> None:
    service.submit(*[{"Executable": "x", **asked}] * count, vo=vo)


def ask(client: httpx.Client, **said: object) -> Any:
    return client.post("/api/v1/matcher/requestJob", json={"CPUTime": 100_000, "count": 6, **said})


def given(client: httpx.Client, **said: object) -> int:
    answer = ask(client, **said)
    assert answer.status_code == 200, answer.text
    return len(answer.json()["matches"])


def problem(client: httpx.Client, **said: object) -> str:
    answer = ask(client, **said)
    assert answer.status_code == 400, answer.text
    [found] = answer.json()["error"]["details"]["problems"]
    return f"{found['path']} {found['message']}"


SPELLINGS = [
    "LCG.A.org ",
    " LCG.A.org",
    "[LCG.A.org]",
    ["LCG.A.org"],
    "lcg.a.ORG",
    ["LCG.A.org", "lcg.a.org"],
]


def test_a_ban_holds_for_every_spelling_of_the_site(service: Service) -> None:
    submit(service, 1, Site="LCG.A.org")
    service.operator().post("/api/v1/sites/LCG.A.org/ban", json={"reason": "x"}).raise_for_status()
    for site in SPELLINGS:
        assert ask(service.pilot(), Site=site).json()["reason"] == "banned", site


def test_a_throttle_holds_for_every_spelling_of_the_place(service: Service) -> None:
    submit(service, 6, Site="LCG.A.org")
    assert given(service.pilot(), Site=SPELLINGS[0]) == 2
    for site in SPELLINGS:
        assert given(service.pilot(), Site=site) == 0, site
    attempts = service.operator().get("/api/v1/sites/LCG.A.org").json()["throttles"][0]["counters"]
    assert attempts["CurrentSubmittingJobs"] == 2


def test_a_queue_is_found_for_every_spelling_of_its_address(service: Service) -> None:
    submit(service, 3, Site="LCG.B.org")
    place = {"Site": ["lcg.b.org"], "GridCE": " CE1", "Queue": "[Long]"}
    assert given(service.pilot("LCG.B.org/ce1/long"), **place) == 2
    assert given(service.pilot(), **place) == 0


@pytest.mark.parametrize("name", ["Site", "GridCE", "Queue"])
def test_a_pilot_is_not_at_several_places(service: Service, name: str) -> None:
    submit(service, 1)
    place = {"Site": "LCG.C.org", "GridCE": "ce1", "Queue": "long"}
    names = list(place)[: list(place).index(name) + 1]
    said = {each: place[each] for each in names} | {name: [place[name], "other"]}
    assert problem(service.pilot(), **said).startswith(f"{name} has several values")


def test_where_a_site_has_limits_a_pilot_is_not_at_several_unknown_sites_either(service: Service) -> None:
    assert problem(service.pilot(), Site=["LCG.X.org", "lcg.c.org"]).startswith("Site has several values")
    assert problem(service.pilot(), Site=["LCG.X.org", "LCG.Y.org"]).startswith("Site is not stated")


@pytest.mark.parametrize("role", ["pilot", "gateway"])
def test_who_may_be_in_a_throttled_ce_has_to_say_so(service: Service, role: str) -> None:
    submit(service, 6)
    gateway = service.as_role("gateway", vo="cms", site="LCG.B.org")
    client = gateway if role == "gateway" else service.pilot()
    assert problem(client, Site="LCG.B.org") == (
        "GridCE is not stated; LCG.B.org/ce1 counts its jobs or is closed, so state GridCE"
    )
    assert given(client, Site="LCG.B.org", GridCE="ce1 ") == 2
    assert given(client, Site="LCG.B.org", GridCE="CE1") == 0
    assert given(client, Site="LCG.B.org", GridCE="ce2") == 4


def test_a_limit_of_a_ce_asks_those_whose_jobs_it_counts_to_state_it(service: Service) -> None:
    submit(service, 3, vo="dune", JobType="Merge")
    submit(service, 1)
    assert "LCG.C.org/ce1 counts" in problem(service.pilot(vo="dune"), Site="LCG.C.org")
    assert given(service.pilot(vo="dune"), Site="LCG.C.org", GridCE=["CE1"]) == 1
    assert given(service.pilot(vo="dune"), Site="LCG.C.org", GridCE="ce1") == 0
    assert given(service.pilot(vo="cms"), Site="LCG.C.org") == 1, "another VO's limit is none of its business"


def test_a_pilot_that_states_no_queue_gets_jobs_of_the_vos_that_may_use_one_there(service: Service) -> None:
    submit(service, 1, vo="dune")
    dune = service.pilot(vo="dune")
    for place in ({"Site": "LCG.B.org", "GridCE": "ce2"}, {"Site": "LCG.D.org"}, {"Site": "lcg.d.org "}):
        assert ask(dune, **place).json()["reason"] == "not_usable", place
    director = service.as_role("director", vo="dune")
    listed = director.post("/api/v1/matcher/getMatchingTaskQueues", json={"CPUTime": 1, "Site": "LCG.D.org"})
    assert listed.json()["task_queues"] == []
    assert ask(dune, Site="LCG.C.org", GridCE="ce9").json()["reason"] == "not_usable"
    assert given(dune, Site="LCG.C.org", GridCE="ce1") == 1


def test_a_gateway_asks_for_pilots_of_its_own_site_only(service: Service) -> None:
    director = service.as_role("director", vo="cms")
    for stamp, queue in (("here", "LCG.B.org/ce2/long"), ("there", "LCG.C.org/ce1/long")):
        director.post("/api/v1/pilots", json={"stamp": stamp, "queue": queue}).raise_for_status()
    submit(service, 3)
    gateway = service.as_role("gateway", vo="cms", site="LCG.B.org")
    for stamp in ("here", "there", "nobody"):
        assert given(gateway, Site="LCG.B.org", GridCE="ce2", PilotStamp=stamp, count=1) == 1
    known = director.get("/api/v1/pilots").json()["pilots"]
    assert {each["stamp"]: each["jobs"] for each in known} == {"here": 1, "there": 0}
    with database.reading(service.engine) as conn:
        held = conn.execute(select(attempts.c.stamp).order_by(attempts.c.job_id)).scalars().all()
    assert held == ["here", None, None]
