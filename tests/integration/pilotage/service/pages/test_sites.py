import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from playwright.sync_api import Page, expect

from pilotage.service.services import utc_now
from taskqueue.db import database
from taskqueue.pilots import hardware
from taskqueue.pilots.hardware import HardwareShape
from tests.support.factories import accounted_jobs
from tests.support.servers.chromium import SignedIn, picture
from tests.support.service import CONFIG, Service

pytestmark = pytest.mark.debian("chromium")

HOSTILE = "<img src=x onerror=alert(1)>"
LIMITS = "      RunningLimit: {JobType: {Merge: {count: 50, cores: 400}, Stage: {cores: 8}}}\n"
THROTTLE = "      Throttle: {Policy: level2, MaxJobs: 20, MaxSubmittingAndOutputGatheringJobs: 5}\n"
SITE, OTHER, QUEUE = "LCG.A.org", "LCG.B.org", "LCG.A.org/ce1/long"
WITHOUT_VOS = """\
    LCG.C.org:
      VO: [dune]
      CEs: {ce3: {Queues: {q: {Enabled: false}}}}
"""


@pytest.fixture(scope="module")
def grid(service: Service) -> Service:
    text = CONFIG.replace("    LCG.A.org:\n", f"    LCG.A.org:\n{THROTTLE}{LIMITS}", 1)
    service.configure(text.replace("    LCG.B.org:\n", f"{WITHOUT_VOS}    LCG.B.org:\n", 1))
    jobs = [{"Executable": "x", "Requirements": {"Memory": memory}} for memory in (2000, 9000, 9000)]
    assert service.user(vo="cms").post("/api/v1/jobs", json={"jobs": jobs}).status_code == 201
    one = {"Executable": "x", "Requirements": {"Memory": 100}}
    assert service.user(vo="dune", user="dan").post("/api/v1/jobs", json={"jobs": [one]}).status_code == 201
    gateway = service.as_role("site_admin", site=SITE, user="eva")
    watermark = gateway.post(f"/api/v1/sites/{SITE}/watermark").json()["watermark"]
    said = {
        "as_of": watermark,
        "CurrentJobs": 12,
        "CurrentSubmittingJobs": 1,
        "CurrentGatheringOutputJobs": 1,
    }
    assert gateway.post(f"/api/v1/sites/{SITE}/advertisement", json=said).json()["accepted"]
    return service


@pytest.fixture
def unbanned(grid: Service) -> Iterator[Service]:
    yield grid
    grid.operator().post(f"/api/v1/sites/{SITE}/allow").raise_for_status()


def _row(page: Page, name: str) -> str:
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=name, exact=True))
    return " ".join(row.first.inner_text().split())


def test_the_list_says_at_a_glance_how_sites_stand(grid: Service, signed_in: SignedIn):
    page = signed_in(grid, role="operator", user="root")
    page.goto("/sites")
    assert page.title() == "Sites – Pilotage"
    assert _row(page, SITE).startswith("LCG.A.org open")
    assert _row(page, SITE).endswith("0 0 2")  # running, pilots, and the jobs that find their memory there
    assert _row(page, "LCG.C.org").startswith("LCG.C.org off")
    picture(page, "sites/list")


def test_sites_are_found_by_name_and_state_and_sorted_at_an_address(grid: Service, signed_in: SignedIn):
    page = signed_in(grid, role="operator", user="root")
    page.goto("/sites")
    page.get_by_label("Name").fill("b.ORG")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("rowheader")).to_have_text([OTHER])
    page.goto("/sites?state=off")
    assert page.get_by_role("rowheader").all_text_contents() == ["LCG.C.org"]
    page.goto("/sites?sort=-could_run")
    assert page.get_by_role("rowheader").all_text_contents() == [OTHER, SITE, "LCG.C.org"]


def test_a_vo_sees_first_where_it_may_run_and_counts_its_own_jobs(grid: Service, signed_in: SignedIn):
    page = signed_in(grid, role="user", vo="dune", user="dan")
    page.goto("/sites")
    assert page.get_by_role("rowheader").all_text_contents() == [SITE, "LCG.C.org"]
    assert _row(page, SITE).endswith("1")
    page.get_by_label("Which").select_option("all")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("rowheader")).to_have_count(3)
    assert _row(page, OTHER).endswith("0")


def test_a_site_admin_sees_his_site_with_the_jobs_of_every_vo(grid: Service, signed_in: SignedIn):
    page = signed_in(grid, role="site_admin", site=SITE, user="eva")
    page.goto("/sites")
    assert page.get_by_role("rowheader").all_text_contents() == [SITE]
    assert _row(page, SITE).endswith("2")


def test_a_throttle_is_shown_as_limit_reported_and_reserved(grid: Service, signed_in: SignedIn):
    page = signed_in(grid, role="site_admin", site=SITE, user="eva")
    page.goto(f"/sites/{SITE}")
    told = page.get_by_role("article").filter(has_text="level2")
    expect(told).to_contain_text("CurrentJobs")
    expect(told).to_contain_text("12 reported")
    expect(told).to_contain_text("of 20 MaxJobs")
    expect(told).to_contain_text("room for 3")
    bar = told.get_by_role("img", name="CurrentJobs: 12 of 20", exact=True)
    assert bar.locator("rect.gauge-reported").get_attribute("width") == "60.0"
    picture(page, "sites/site")


def test_the_hardware_of_pilots_is_shown(grid: Service, signed_in: SignedIn):
    seen = [
        HardwareShape(processors=64, max_ram=260_000, architecture="x86_64", cpu_features=frozenset({"avx"})),
        HardwareShape(processors=16, gpus=2, gpu_vendor="nvidia", gpu_architecture=89, gpu_memory_mb=24_000),
    ]
    with database.writing(grid.engine) as conn:
        hardware.store_seen(conn, [(OTHER, each) for each in seen], now=utc_now())
    page = signed_in(grid, role="user", vo="cms", user="ann")
    page.goto(f"/sites/{OTHER}")
    table = page.get_by_role("table").filter(has_text="when they first asked")
    expect(table).to_contain_text(re.compile(r"260.000 ?[^.]"))
    expect(table).to_contain_text("x86-64-v1")
    expect(table).to_contain_text(re.compile("2 nvidia sm_89, 24.000 MB each"))
    picture(page, "sites/hardware")


def test_a_limit_is_shown_in_jobs_and_in_cores(grid: Service, signed_in: SignedIn):
    page = signed_in(grid, role="site_admin", site=SITE, user="eva")
    page.goto(f"/sites/{SITE}")
    both = page.get_by_role("row").filter(has_text="JobType Merge")
    expect(both).to_contain_text("50 and 400 cores at a time")
    expect(both).to_contain_text("0 there")
    expect(both).to_contain_text("0 cores")
    cores = page.get_by_role("row").filter(has_text="JobType Stage")
    expect(cores).to_contain_text("8 cores at a time")
    expect(cores).to_contain_text("room")


def test_a_queue_stands_once_and_its_page_tells_where_its_parameters_come_from(
    grid: Service, signed_in: SignedIn
):
    page = signed_in(grid, role="user", vo="dune", user="dan")
    page.goto(f"/sites/{SITE}")
    short = page.get_by_role("table", name="Queues").get_by_text("short", exact=True)
    expect(short).to_have_count(1)
    short.click()
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="MaxRAM", exact=True))
    expect(row).to_contain_text("8000")
    expect(row).to_contain_text("Queue VOs/dune, test.yaml:")
    expect(row).to_contain_text("version 1, test")


def test_the_cpu_time_of_a_queue_is_what_pilots_offer_there(grid: Service, signed_in: SignedIn):
    """Where none is stated, too: such a queue takes jobs of up to three days."""
    page = signed_in(grid, role="operator", user="root")
    page.goto("/sites/LCG.C.org")
    assert _row(page, "q ce3").startswith("q ce3 off 3 d –")
    page.goto(f"/sites/{OTHER}")
    assert _row(page, "all ce2").startswith("all ce2 on 1 d 4 h 16")


def test_a_site_admin_plans_a_downtime_and_removes_it(grid: Service, signed_in: SignedIn):
    page = signed_in(grid, role="site_admin", site=SITE, user="eva")
    page.goto(f"/sites/{SITE}")
    page.get_by_role("link", name="Plan a downtime…").click()
    page.get_by_label("Of", exact=True).select_option("ce1")
    page.get_by_label("From").fill("2040-05-06T09:00")
    page.get_by_label("To UTC").fill("2040-05-06T17:00")
    page.get_by_label("Why").fill(HOSTILE)
    page.get_by_role("button", name="Plan").click()
    told = page.get_by_text(f"Downtime of {SITE}/ce1")
    expect(told.locator("..")).to_contain_text("from 2040-05-06 09:00 until 2040-05-06 17:00 UTC")
    assert f"{HOSTILE}\nJobs that would not end before it" in told.locator("..").inner_text()
    picture(page, "sites/downtime")
    page.get_by_role("button", name="Remove").click()
    expect(told).to_have_count(0)


def test_what_ended_and_ran_is_drawn_for_those_who_may_count_it(grid: Service, signed_in: SignedIn):
    now = utc_now()
    accounted_jobs.a_day(grid.engine, now, site=SITE, other=OTHER)
    page = signed_in(grid, role="site_admin", site=SITE, user="eva")
    page.goto(f"/sites/{SITE}")
    plots = page.get_by_role("figure")
    ended = plots.filter(has_text="Jobs that ended there, 24 h")
    ended.get_by_text("Numbers").click()
    expect(ended.get_by_role("columnheader", name="Done")).to_be_visible()
    expect(ended.get_by_role("columnheader", name="Failed")).to_have_count(0)  # it was at the other site
    ran = plots.filter(has_text="Jobs that ran there, 24 h")
    ran.get_by_text("Numbers").click()
    expect(ran.get_by_role("columnheader", name="dune")).to_be_visible()
    ended.locator("canvas").wait_for()
    picture(page, "sites/over_time")
    other = signed_in(grid, role="site_admin", site=OTHER, user="bob")
    other.goto(f"/sites/{SITE}")
    expect(other.get_by_text("Jobs that ended there, 24 h")).to_have_count(0)
    other.goto(f"/sites/{OTHER}")
    expect(other.get_by_role("figure").filter(has_text="Jobs that ended there, 24 h")).to_have_count(1)


def test_waiting_jobs_are_counted_for_each_queue_as_far_as_one_may_count_them(
    grid: Service, signed_in: SignedIn
):
    for who, waiting in (
        ({"role": "site_admin", "site": SITE, "user": "eva"}, {"long": 2, "short": 0}),
        ({"role": "user", "vo": "dune", "user": "dan"}, {"long": 1, "short": 0}),
    ):
        page = signed_in(grid, **who)
        page.goto(f"/sites/{SITE}")
        table = page.get_by_role("table").filter(has_text="Waiting jobs it could run")
        rows = [row.inner_text().split() for row in table.get_by_role("row").all()[1:]]
        assert {row[0]: int(row[-1]) for row in rows} == waiting
    picture(page, "sites/queues")


def test_what_the_site_could_offer_comes_by_itself(grid: Service, signed_in: SignedIn):
    page = signed_in(grid, role="site_admin", site=SITE, user="eva")
    page.goto(f"/sites/{SITE}")
    offers = page.locator("#offers")
    expect(offers).to_contain_text("MaxRAM 9000")
    page.goto(f"/sites/{SITE}/offers")
    assert page.get_by_role("row").filter(has_text="MaxRAM 9000").first.is_visible()


def test_a_site_admin_bans_his_site_and_allows_it_again(unbanned: Service, signed_in: SignedIn):
    page = signed_in(unbanned, role="site_admin", site=SITE, user="eva")
    page.goto(f"/sites/{SITE}")
    page.get_by_label("Reason").fill(HOSTILE)
    page.get_by_role("link", name="Ban…").click()
    page.wait_for_url("**#ban")
    page.get_by_role("button", name=f"Ban {SITE}").click()
    expect(page.get_by_text("by eva, until")).to_contain_text(HOSTILE)
    assert unbanned.operator().get(f"/api/v1/sites/{SITE}").json()["ban"]["reason"] == HOSTILE
    page.goto("/sites?state=banned")
    expect(page.get_by_role("row").filter(has_text=SITE)).to_contain_text(HOSTILE)
    page.goto(f"/sites/{SITE}")
    page.get_by_role("button", name="Allow again").click()
    expect(page.get_by_role("link", name="Ban…")).to_be_visible()
    assert unbanned.operator().get(f"/api/v1/sites/{SITE}").json()["ban"] is None


def test_a_site_shows_what_its_directors_send(grid: Service, signed_in: SignedIn):
    until = (utc_now() + timedelta(minutes=30)).isoformat()
    report = {
        "kind": "director",
        "name": "north",
        "vo": "cms",
        "holder": "h:1:2",
        "every": 60,
        "sites": [SITE],
        "queues": [
            {"queue": f"{SITE}/ce1/short", "waiting": 4, "running": 6},
            {"queue": QUEUE, "paused_until": until, "reason": HOSTILE},
            {"queue": f"{OTHER}/ce2/all", "room": 5},
        ],
    }
    grid.as_role("director", vo="cms").post("/api/v1/site-processes", json=report).raise_for_status()
    page = signed_in(grid, role="site_admin", site=SITE, user="eva")
    page.goto(f"/sites/{SITE}")
    rows = page.get_by_role("table", name="As directors reported").get_by_role("row")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text(f"{QUEUE}")
    expect(rows.nth(1)).to_contain_text(HOSTILE)
    expect(rows.nth(2)).to_contain_text("full")
    picture(page, "sites/served")
    user = signed_in(grid, role="user", vo="cms", user="ada")
    user.goto(f"/sites/{SITE}")
    assert not user.get_by_text("As directors reported").count()


def test_a_site_admin_readmits_a_node(grid: Service, signed_in: SignedIn):
    for number in range(3):
        stamp = f"north.any.{number}"
        body = {"stamp": stamp, "queue": QUEUE}
        grid.as_role("director", vo="cms").post("/api/v1/pilots", json=body).raise_for_status()
        pilot = grid.as_role("pilot", vo="cms", queue=QUEUE, stamp=stamp)
        pilot.post(f"/api/v1/pilots/{stamp}/node", json={"node": "n1.a.org"}).raise_for_status()
        end = {"status": "Failed", "reason": HOSTILE, "host_trouble": True}
        pilot.post(f"/api/v1/pilots/{stamp}/status", json=end).raise_for_status()
    others = signed_in(grid, role="vo_admin", vo="cms", user="eve")
    others.goto(f"/sites/{SITE}")
    expect(others.get_by_role("row").filter(has_text="n1.a.org")).to_contain_text(HOSTILE)
    assert not others.get_by_role("button", name="Readmit").count()
    page = signed_in(grid, role="site_admin", site=SITE, user="eva")
    page.goto(f"/sites/{SITE}")
    expect(page.get_by_role("row").filter(has_text="n1.a.org")).to_contain_text(HOSTILE)
    picture(page, "sites/nodes")
    page.get_by_role("button", name="Readmit").click()
    expect(page.get_by_text("n1.a.org")).to_have_count(0)
    assert grid.operator().get(f"/api/v1/sites/{SITE}/nodes").json()["nodes"] == []


@pytest.mark.parametrize(
    "who",
    [
        {"role": "user", "vo": "cms", "user": "ada"},
        {"role": "vo_admin", "vo": "cms", "user": "eve"},
        {"role": "site_admin", "site": OTHER, "user": "bob"},
    ],
    ids=lambda who: who["role"],
)
def test_nobody_else_bans_or_drains(grid: Service, signed_in: SignedIn, who: dict[str, str]):
    page = signed_in(grid, **who)
    page.goto(f"/sites/{SITE}")
    assert not page.get_by_role("button", name="Ban").count()
    assert not page.get_by_role("link", name="Plan a downtime…").count()
    page.goto(f"/sites/{QUEUE}")
    assert not page.get_by_role("button", name="Drain").count()
    csrf = page.locator("input[name=csrf]").first.get_attribute("value")
    sent = {"form": {"csrf": csrf, "reason": "mine"}, "headers": {"origin": grid.url}}
    for address in (f"/sites/{SITE}/ban", f"/sites/{SITE}/allow", f"/sites/{QUEUE}/drain"):
        assert page.request.post(address, **sent).status == 403, address
    assert grid.operator().get(f"/api/v1/sites/{SITE}").json()["ban"] is None


def test_a_queue_says_what_each_parameter_keeps_away_and_what_it_serves(grid: Service, signed_in: SignedIn):
    page = signed_in(grid, role="vo_admin", vo="cms", user="eve")
    page.goto(f"/sites/{QUEUE}")
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="MaxRAM", exact=True))
    expect(row).to_contain_text("CE, test.yaml:")
    expect(row).to_contain_text("2 jobs")
    expect(page.get_by_role("heading", name="1 pool it serves")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="Memory = 2000")).to_contain_text("1 Waiting")
    assert not page.get_by_role("row").filter(has_text="Memory = 100").count()  # of another VO
    picture(page, "sites/queue")


def test_a_vo_may_not_look_as_another(grid: Service, signed_in: SignedIn):
    page = signed_in(grid, role="user", vo="cms", user="ada")
    for address in (f"/sites/{QUEUE}?vo=dune", f"/sites/{SITE}?vo=dune"):
        answer = page.goto(address)
        assert answer is not None
        assert answer.status == 403, address
    assert not page.get_by_text("8000").count()


def test_a_site_admin_looks_as_any_vo_at_his_queues(grid: Service, signed_in: SignedIn):
    page = signed_in(grid, role="site_admin", site=SITE, user="eva")
    page.goto(f"/sites/{SITE}/ce1/short")
    page.get_by_label("As it is for the VO").select_option("dune")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**?vo=dune")
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="MaxRAM", exact=True))
    expect(row).to_contain_text("8000")


def test_a_drained_queue_gets_nothing_until_it_is_resumed(grid: Service, signed_in: SignedIn):
    page = signed_in(grid, role="site_admin", site=SITE, user="eva")
    asked = {"Site": SITE, "GridCE": "ce1", "Queue": "long", "CPUTime": 100000}
    page.goto(f"/sites/{QUEUE}")
    page.get_by_role("button", name="Drain").click()
    expect(page.get_by_text("It gets no new jobs")).to_be_visible()
    refused = grid.pilot(QUEUE).post("/api/v1/matcher/requestJob", json=asked).json()
    assert refused["reason"] == "not_usable"
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Drain")).to_be_visible()
    assert grid.parts.live.current.enabled(grid.parts.live.current.addresses[0], "cms")


def test_an_unknown_site_is_answered_with_what_was_probably_meant(grid: Service, signed_in: SignedIn):
    page = signed_in(grid, role="operator", user="root")
    answer = page.goto("/sites/LCG.A.orgg")
    assert answer is not None
    assert answer.status == 404
    expect(page.get_by_text("did you mean LCG.A.org?")).to_be_visible()
