import pytest
from playwright.sync_api import expect

from tests.support.servers.chromium import SignedIn, picture
from tests.support.service import Service

pytestmark = pytest.mark.debian("chromium")

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def grid(service: Service) -> Service:
    """Two users of one VO, one of another; one pool that no queue is eligible for."""
    _submit(service, "ada", "cms", {"Memory": 2000}, {"Memory": 2000}, {"Memory": 99000})
    _submit(service, "bob", "cms", {"CPUModel": HOSTILE})
    _submit(service, "dan", "dune", {"Memory": 5000})
    return service


def _submit(service: Service, user: str, vo: str, *asked: dict[str, object]) -> None:
    service.submit(*({"Executable": "x", "Requirements": each} for each in asked), user=user, vo=vo)


def test_pools_say_what_is_asked_where_it_leads_and_who_waits(grid: Service, signed_in: SignedIn):
    page = signed_in(grid, role="vo_admin", vo="cms", user="eve")
    page.goto("/pools")
    assert page.title() == "Pools – Pilotage"
    row = page.get_by_role("row").filter(has_text="Memory = 2000")
    expect(row.get_by_role("cell").nth(2)).to_have_text("3")
    expect(row.get_by_role("link", name="2 Waiting")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="Memory = 99000")).to_contain_text("none eligible")
    expect(page.get_by_role("row").filter(has_text="CPUModel")).to_contain_text(HOSTILE)
    assert not page.get_by_role("row").filter(has_text="Memory = 5000").count()
    picture(page, "sites/pools")


def test_an_operator_narrows_the_pools_to_a_vo_and_turns_the_page(grid: Service, signed_in: SignedIn):
    page = signed_in(grid, role="operator", user="root")
    page.goto("/pools")
    assert page.get_by_role("rowheader").count() == 4
    page.get_by_label("VO").select_option("dune")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("rowheader")).to_have_count(1)
    expect(page.get_by_role("row").filter(has_text="Memory = 5000")).to_have_count(1)
    page.goto("/pools?limit=3")
    page.get_by_role("link", name="Next page").click()
    expect(page.get_by_role("rowheader")).to_have_count(1)
    assert "limit=3" in page.url


def test_a_pool_lists_its_queues_by_site_and_leads_to_its_jobs(grid: Service, signed_in: SignedIn):
    page = signed_in(grid, role="vo_admin", vo="cms", user="eve")
    page.goto("/pools")
    page.get_by_role("row").filter(has_text="Memory = 2000").get_by_role("rowheader").get_by_role(
        "link"
    ).click()
    expect(page.get_by_role("heading", name="3 eligible queues at 2 sites")).to_be_visible()
    expect(page.get_by_role("link", name="ce1/long")).to_have_attribute("href", "/sites/LCG.A.org/ce1/long")
    jobs = page.get_by_role("definition").get_by_role("link", name="2").get_attribute("href")
    assert jobs is not None
    assert jobs.startswith("/jobs?pool=")
    assert jobs.endswith("&status=Waiting")
    page.get_by_role("link", name="Its task queues").click()
    page.wait_for_url("**/task-queues?**")
    expect(page.get_by_role("rowheader")).to_have_count(1)


def test_a_pool_without_a_queue_says_so(grid: Service, signed_in: SignedIn):
    page = signed_in(grid, role="user", vo="cms", user="ada")
    page.goto("/pools")
    page.get_by_role("row").filter(has_text="99000").get_by_role("rowheader").get_by_role("link").click()
    expect(page.get_by_text("No queue is eligible.")).to_be_visible()


def test_a_site_admin_sees_what_his_queues_are_asked_for_and_no_jobs(grid: Service, signed_in: SignedIn):
    page = signed_in(grid, role="site_admin", site="LCG.A.org", user="eva")
    page.goto("/pools")
    asked = page.get_by_role("row").filter(has=page.get_by_role("rowheader"))
    assert sorted(text.split("=")[1].split()[0] for text in asked.all_inner_texts()) == ["2000", "5000"]
    row = asked.filter(has_text="Memory = 2000")
    expect(row).to_contain_text("2 Waiting")
    assert not row.get_by_role("link", name="2 Waiting").count()
    row.get_by_role("rowheader").get_by_role("link").click()
    expect(page.get_by_role("heading", name="3 eligible queues, 2 of them yours")).to_be_visible()
    assert not page.get_by_text("LCG.B.org").count()
    picture(page, "sites/pool_of_site_admin")
    assert not page.get_by_role("link", name="Task queues").count()
    answer = page.goto("/task-queues")
    assert answer is not None
    assert answer.status == 403


def test_task_queues_show_users_their_own_and_vo_admins_those_of_the_vo(grid: Service, signed_in: SignedIn):
    page = signed_in(grid, role="user", vo="cms", user="bob")
    page.goto("/task-queues")
    row = page.get_by_role("row").filter(has_text="bob")
    assert row.get_by_role("cell").nth(0).text_content() == "cms"
    assert row.get_by_role("cell").nth(5).text_content() == "1000"  # the share of the group
    assert row.get_by_role("cell").last.text_content() == "1"
    assert page.get_by_role("rowheader").count() == 1
    page.goto("/task-queues?owner=ada")
    expect(page.get_by_text("No task queue has jobs")).to_be_visible()

    page = signed_in(grid, role="vo_admin", vo="cms", user="eve")
    page.goto("/task-queues")
    assert page.get_by_role("rowheader").count() == 3
    page.get_by_label("Owner").fill("ada")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("rowheader")).to_have_count(2)
    picture(page, "sites/task_queues")


def test_shares_show_who_has_which_part_and_why_a_job_comes_first(grid: Service, signed_in: SignedIn):
    page = signed_in(grid, role="user", vo="cms", user="bob")
    page.goto("/shares")
    row = page.get_by_role("row").filter(has_text="you")
    assert row.get_by_role("cell").nth(2).text_content() == "1"
    assert not page.get_by_role("row").filter(has_text="ada").count()
    page.get_by_label("Why does job").fill("1")
    page.get_by_label("come before job").fill("2")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("heading", name="Job 1 before job 2?")).to_be_visible()
    expect(page.get_by_text("Job 1 comes first: both are in one task queue")).to_be_visible()
    page.goto("/shares?first=1&second=4")
    expect(page.get_by_text("They do not compete: no queue could run both.")).to_be_visible()

    page = signed_in(grid, role="vo_admin", vo="cms", user="eve")
    page.goto("/task-queues")
    page.get_by_role("link", name="Shares").click()
    expect(page.get_by_role("row").filter(has_text="ada")).to_be_visible()
    expect(page.get_by_role("columnheader", name="No queue")).to_be_visible()
    picture(page, "sites/shares")
    for address in ("/shares?first=7&second=x", "/shares?first=1&second=1"):
        answer = page.goto(address)
        assert answer is not None
        assert answer.status == 400


def test_the_numbers_of_a_list_and_of_a_pool_go_on_by_themselves(grid: Service, signed_in: SignedIn):
    page = signed_in(grid, role="director", vo="dune", user="dora")
    page.clock.install()
    asked = {"Memory": 3333}
    _submit(grid, "dan", "dune", asked)
    page.goto("/pools")
    row = page.get_by_role("row").filter(has_text="Memory = 3333")
    expect(row).to_contain_text("1 Waiting")
    expect(row.get_by_role("link", name="Waiting")).to_have_count(0)  # directors list no jobs
    _submit(grid, "dan", "dune", asked)
    page.clock.fast_forward(31_000)
    expect(row).to_contain_text("2 Waiting")
    row.get_by_role("link").click()
    jobs = page.get_by_role("heading", name="Jobs").locator("..")
    expect(jobs.get_by_role("definition")).to_have_text("2")
    _submit(grid, "dan", "dune", asked)
    page.clock.fast_forward(31_000)
    expect(jobs.get_by_role("definition")).to_have_text("3")
