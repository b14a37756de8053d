"""The overview names what is broken: each thing is broken on purpose, and is not named before."""

import html
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from agents import leader
from cs_config.tree.address import QueueAddress
from examples.servers.certificates import Authority
from optimizers.workers.rq import RQNotifier
from pilotage import extensions
from pilotage.cli import doctor, settings
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.problems import checks, readiness
from pilotage.service.problems.checks import CHECKS
from pilotage.service.problems.finding import Finding, Health
from pilotage.service.services import utc_now
from requirements.states import JobStatus, PilotStatus
from taskqueue.accounting import depths, sums
from taskqueue.accounting.depths import QueueDepth
from taskqueue.accounting.usage import Usage
from taskqueue.blob_stores.store import BlobStore
from taskqueue.db import agent_leases, database
from taskqueue.db.replica import Replica
from taskqueue.errors import StorageFull
from taskqueue.jobs.optimizer_queue import OptimizerQueueState
from taskqueue.pilots import pilots
from taskqueue.sites import closures, processes
from taskqueue.sites.closures import Ban, Downtime, Severity
from taskqueue.sites.processes import QueueState, SiteProcess, TooSmallSlot
from tests.support.factories import stored_rows
from tests.support.page_walk import ROLES, Walk
from tests.support.service import CONFIG, Service, running_on_sqlite

REPOSITORY = Path(__file__).parents[5]
A, B = "LCG.A.org", "LCG.B.org"
#: A throttle that nobody advertises for, and a limit that one job fills.
LIMITED = CONFIG.replace(
    f"    {A}:\n",
    f"    {A}:\n      Throttle: {{Policy: level0, MaxSubmittingJobs: 2}}\n"
    f"      RunningLimit: {{JobType: {{User: 0}}}}\n",
    1,
)


@pytest.fixture
def calm(sqlite_template: Path, tmp_path: Path) -> Iterator[Service]:
    """An installation with nothing wrong: its agents work, and jobs end well."""
    worked = utc_now() + timedelta(minutes=10)  # on a slow machine, too, they are not overdue meanwhile
    (tmp_path / "service").mkdir()
    with running_on_sqlite(sqlite_template, tmp_path / "service") as service:
        with database.writing(service.engine) as conn:
            for name in extensions.list_intervals(leader.INTERVALS, with_optional=False):
                fence = agent_leases.acquire(
                    conn, name=name, holder="us", now=worked, ttl=timedelta(minutes=5)
                )
                assert fence is not None
                agent_leases.finish_cycle(conn, name=name, fence=fence, now=worked)
        _end(service, f"{A}/ce1/long", JobStatus.DONE, jobs=100, seconds=3600)
        _end(service, f"{B}/ce2/all", JobStatus.DONE, jobs=100, seconds=3600)
        yield service


def _end(service: Service, queue: str, status: JobStatus, *, jobs: int, seconds: float) -> None:
    """Jobs that ended at a queue in this hour, as the agent counts them."""
    key = (sums.truncate_to_hour(utc_now()), "cms", *queue.split("/"), "ada", "cms_user", status.value)
    use = Usage(jobs=jobs, attempts=jobs, wall_seconds=jobs * seconds)
    with database.writing(service.engine) as conn:
        sums.USE.add(conn, {key: asdict(use)})


def _report(service: Service, name: str, **values: object) -> None:
    now = utc_now()
    process = SiteProcess(name=name, **{"vo": "cms", "holder": "h", "every": 60, "seen_at": now, **values})
    with database.writing(service.engine) as conn:
        processes.report(conn, process, lease=timedelta(0), now=process.seen_at)


def _ban(service: Service) -> None:
    ban = Ban(site=B, reason="disk server burns", author="eve", at=utc_now(), until=None)
    with database.writing(service.engine) as conn:
        closures.set_ban(conn, ban)


def _close(service: Service) -> None:
    now = utc_now()
    downtime = Downtime(
        place=f"{B}/ce2",
        begins=now - timedelta(hours=1),
        ends=now + timedelta(hours=1),
        severity=Severity.OUTAGE,
        reason="new switches",
        author="eve",
        at=now,
    )
    with database.writing(service.engine) as conn:
        closures.add_downtimes(conn, [downtime])


def _fill(service: Service) -> None:
    service.configure(LIMITED)
    _sample(service)


def _sample(service: Service, now: datetime | None = None) -> None:
    """Seven waiting jobs that the first site could run, as the agent counts them."""
    with database.writing(service.engine) as conn:
        depth = QueueDepth(site=A, queue=depths.ALL, vo="cms", jobs=7)
        depths.store_sample(conn, depths.truncate(now or utc_now()), [depth])


def _strand(service: Service) -> None:
    service.submit(*[{"Executable": "x", "Requirements": {"Memory": 900000}}] * 3)


def _strand_class(service: Service) -> None:
    service.submit(*[{"Executable": "x", "GPUs": 4}] * 3)


def _leave_due(service: Service) -> None:
    """Two jobs that wait for the optimizers: one as usual, one for much longer."""
    late, fresh = service.submit({"Executable": "x"}, {"Executable": "x"})
    now = utc_now()
    with database.writing(service.engine) as conn:
        for job_id, due in ((late, now - timedelta(minutes=10)), (fresh, now)):
            stored_rows.force(conn, job_id, status=JobStatus.RECEIVED.value, due_at=due)


def _set(service: Service, name: str, value: object) -> None:
    object.__setattr__(service.parts, name, value)


def _pause(service: Service) -> None:
    paused = QueueState(
        queue=f"{B}/ce2/all", paused_until=utc_now() + timedelta(minutes=5), reason="exit status 4"
    )
    _report(service, "west", kind="director", queues=[paused])


def _silence_pilots(service: Service) -> None:
    """Pilots that run: two that never asked, one that did, and one that has just begun."""
    began, queue = utc_now() - timedelta(minutes=11), QueueAddress.parse(f"{B}/ce2/all")
    with database.writing(service.engine) as conn:
        for stamp in ("silent-1", "silent-2", "asks", "fresh"):
            pilots.register(conn, stamp=stamp, vo="cms", queue=queue, submitted_by="west", now=began)
            start = utc_now() if stamp == "fresh" else began
            pilots.set_status(conn, stamp, PilotStatus.RUNNING, now=start)
        pilots.record_contact(conn, stamp="asks", vo="cms", queue=queue, now=began)


def test_a_queue_with_silent_pilots_says_so(calm: Service) -> None:
    calm.submit({"Executable": "x"})
    _silence_pilots(calm)
    found = calm.operator().get(f"/api/v1/resources/queues/{B}/ce2/all/explain").json()
    assert "2 pilots of cms run here and never reached the service" in found["now"]


def test_a_queue_that_is_drained_is_not_advised_to_be_drained(calm: Service) -> None:
    BROKEN["a queue that swallows jobs"][0](calm)
    [hole] = [each for each in _list_findings(calm) if each.subject == "black holes"]
    assert hole.remedy == f"`pilotage queue drain {A}/ce1/short` keeps jobs from it"
    calm.operator().post(f"/api/v1/resources/queues/{A}/ce1/short/drain", json={}).raise_for_status()
    [hole] = [each for each in _list_findings(calm) if each.subject == "black holes"]
    assert hole.remedy == "it gets no jobs now: have its nodes mended before it does again"


def _fail_agent(service: Service) -> None:
    with database.writing(service.engine) as conn:
        fence = agent_leases.acquire(conn, name="pools", holder="us", now=utc_now(), ttl=timedelta(minutes=5))
        assert fence is not None
        agent_leases.finish_cycle(conn, name="pools", fence=fence, now=utc_now(), broken=["dune"])


class _FullStore:
    """A store of archives whose disk is full."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    def check_space(self) -> None:
        raise StorageFull("no space left for archives")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


#: What is broken, how, and what the overview says of it then.
BROKEN: dict[str, tuple[Callable[[Service], None], str]] = {
    "a configuration that this release cannot read": (
        lambda service: setattr(service.parts.live, "problem", "Sites: a word of a later release"),
        "Sites: a word of a later release",
    ),
    "an installation without a queue": (
        lambda service: service.configure("Resources: {}"),
        "has no queue, so that nothing can run: <code>pilotage up --resources FILE</code>",
    ),
    "an agent that fails for a VO": (
        _fail_agent,
        "failed: pools for dune: their log shows why",
    ),
    "Redis": (
        lambda service: _set(service, "optimizer_queue", lambda: OptimizerQueueState(problem="refused")),
        "does not answer; jobs wait for the sweep: refused",
    ),
    "workers": (
        lambda service: _set(service, "optimizer_queue", lambda: OptimizerQueueState(waiting=3)),
        "no worker listens: 3 batches of jobs wait",
    ),
    "the clock of the host": (
        lambda service: _set(service, "clock_problem", lambda: "45 s ahead of the database's"),
        "clock: 45 s ahead of the database",
    ),
    "a director that complains": (
        lambda service: _report(service, "north", kind="director", problems=["condor_submit: timed out"]),
        "the director north reports: condor_submit: timed out",
    ),
    "a gateway that is silent": (
        lambda service: _report(service, "south", kind="gateway", seen_at=utc_now() - timedelta(hours=5)),
        "the gateway south (h) last reported for cms 5.0 h ago",
    ),
    "a director whose slots are too small": (
        lambda service: _report(
            service, "east", kind="director", too_small=[TooSmallSlot(queue="A/c/q", slot="2 GB", jobs=9)]
        ),
        "the slots of the director east at A/c/q are too small for 9 jobs of cms that fit there: 2 GB",
    ),
    "a queue that breaks pilots": (
        _pause,
        f"the director west sends no pilots of cms to {B}/ce2/all until ",
    ),
    "nodes that cannot reach the service": (
        _silence_pilots,
        f"2 pilots of cms at {B}/ce2/all run for more than 10 minutes and never reached the service",
    ),
    "a site that fails jobs": (
        lambda service: _end(service, f"{B}/ce2/all", JobStatus.FAILED, jobs=60, seconds=3600),
        f"at {B} 60 of 160 jobs of cms failed since ",
    ),
    "a queue that swallows jobs": (
        lambda service: _end(service, f"{A}/ce1/short", JobStatus.FAILED, jobs=4000, seconds=3),
        f"at {A}/ce1/short 4,000 of 4,000 jobs of cms failed, after 3 s on average",
    ),
    "a banned site": (_ban, f"{B} is banned: disk server burns"),
    "a downtime": (_close, f"{B}/ce2 is closed by a downtime until "),
    "an advertisement that does not come": (_fill, f"{A} has no fresh advertisement and is closed"),
    "a full limit": (_fill, f"{A} has 0 jobs with JobType User, its own RunningLimit is 0, 7 jobs wait that"),
    "jobs that no queue can run": (_strand, "3 jobs wait in 1 SubmitPool without an eligible queue"),
    "jobs of a class that no queue fits": (
        _strand_class,
        "3 jobs wait in 1 requirement class, such as job 1: no queue is eligible: 3 of 3 fail GPUs, at least",
    ),
    "optimizers that take no jobs": (_leave_due, "1 job is not prepared, due since "),
    "a certificate that ends soon": (
        lambda service: _set(service, "certificate", REPOSITORY / "README.md"),
        "README.md cannot be read",
    ),
    "a replica that is away": (
        lambda service: _set(
            service, "replica", Replica(service.engine, service.engine)
        ),  # nobody looked yet
        "is away or late; the primary is read instead",
    ),
    "a disk of archives that is full": (
        lambda service: _set(service, "blobs", _FullStore(service.parts.blobs)),
        "no space left for archives",
    ),
}


def _read_problems(service: Service, role: str = "operator", **wishes: object) -> str:
    """The list of problems on the overview."""
    cookie = f"pilotage-{httpx.URL(service.url).port}={service.token(role, **wishes)}"
    headers = {"HX-Request": "true", "Cookie": cookie}
    page = service.client().get("/", params={"part": "course"}, headers=headers)
    assert page.status_code == 200, page.text[:500]
    [found] = re.findall(r'<section class="card" aria-labelledby="look">.*?</section>', page.text, re.DOTALL)
    return html.unescape(found)


def _list_findings(service: Service) -> list[Finding]:
    operator = Caller(role=Role.OPERATOR, subject="root")
    with database.reading(service.engine) as conn:
        return checks.find_problems(conn, readiness.scope_of(service.parts, operator))


@pytest.mark.parametrize("what", BROKEN)
def test_an_operator_is_told_by_the_overview_what_is_broken(what: str, calm: Service) -> None:
    break_it, message = BROKEN[what]
    before = _read_problems(calm)
    assert "Nothing" in before, "the installation has other problems"
    assert message not in before
    break_it(calm)
    after = _read_problems(calm)
    assert message in after
    assert "Nothing" not in after
    assert all(each.remedy for each in _list_findings(calm) if each.health.is_problem)


#: Words of twelve things that are broken at once, and what to do.
TWELVE = {
    "the director north (h) last reported for cms": "start it there, or `pilotage site forget north`",
    "the gateway south reports: disk of the shared area is full": "its log there shows more",
    f"at {B} 60 of 160 jobs of cms failed since": f"tell the site, or `pilotage site ban {B}`",
    f"at {A}/ce1/short 4,000 of 4,000 jobs of cms failed": f"`pilotage queue drain {A}/ce1/short`",
    f"{A} has 0 jobs with JobType User, its own RunningLimit is 0, 7 jobs wait that": "",  # as it should be
    f"{A} has no fresh advertisement and is closed": "start its gateway",
    "3 jobs wait in 1 SubmitPool without an eligible queue": "`pilotage job explain ID`",
    f"{B} is banned: disk server burns": f"`pilotage site allow {B}` ends it",
    "does not answer; jobs wait for the sweep": "start it, or correct `redis_url`",
    " is over in 12 days": "renew it",
    "the primary is read instead": "start it, or mend the replication",
    "no space left for archives": "free or add space there",
}


def test_twelve_broken_things_are_named_with_what_to_do(
    calm: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Nothing" in _read_problems(calm)
    _report(calm, "north", kind="director", every=600)
    # The director should have reported five times; the jobs of `calm` are of this hour or the one before.
    later = utc_now() + timedelta(minutes=50)
    _set(calm, "clock", lambda: later)
    _report(calm, "south", kind="gateway", problems=["disk of the shared area is full"], seen_at=later)
    for what in ("a site that fails jobs", "a queue that swallows jobs", "a banned site"):
        BROKEN[what][0](calm)
    calm.configure(LIMITED)
    _strand(calm)
    _sample(calm, later)
    certificate, key = Authority(tmp_path).sign("service", days=13)
    _set(calm, "certificate", certificate)
    away = database.connect("postgresql+psycopg://nobody@127.0.0.1:9/none")
    _set(calm, "replica", Replica(calm.engine, away))
    calm.parts.replica.look(later)
    away_url = "redis://127.0.0.1:9/0"
    _set(calm, "optimizer_queue", RQNotifier(away_url).read_state)
    full = SimpleNamespace(f_blocks=10, f_frsize=4096, f_bavail=0)
    monkeypatch.setattr("taskqueue.blob_stores.directory.os.statvfs", lambda _: full)

    listed = _list_findings(calm)
    overview = re.sub(r"<[^>]*>", "", _read_problems(calm))
    given: dict[str, object] = {"home": tmp_path, "database_url": str(calm.engine.url), "redis_url": away_url}
    given |= {"database_replica_url": str(away.url), "tls_certificate": certificate, "tls_key": key}
    (tmp_path / "blobs").mkdir()
    of_doctor = list(doctor.check_installation(settings.load(given, {}), later))
    for words, remedy in TWELVE.items():
        for found in (listed, of_doctor):
            named = [each for each in found if words in each.message]
            assert [remedy in each.remedy for each in named] == [True], (words, named or found)
        assert words in overview
        assert remedy.replace("`", "") in overview
    metrics = calm.as_role("monitor", user="m").get("/metrics").text
    for subject in {each.subject for each in listed if each.health.is_problem}:
        assert f'subject="{subject}"' in metrics


def test_no_page_of_an_empty_installation_reads_as_if_all_were_well(
    sqlite_template: Path, tmp_path: Path
) -> None:
    with running_on_sqlite(sqlite_template, tmp_path, "Resources: {}") as empty:
        problems = _read_problems(empty)
        walk = Walk(empty, ROLES["operator"])
        pages = {address: page.text for address, page in walk.iterate()}
        chosen = settings.load({"home": tmp_path, "database_url": str(empty.engine.url)}, {})
        found = [each for each in doctor.check_database(chosen, utc_now()) if each.subject == "configuration"]
    assert "Nothing" not in problems
    assert "so that nothing can run" in problems
    assert "No site is configured" in pages["/sites"]
    assert "pilotage config apply FILE" in pages["/sites"]
    assert [each.health for each in found] == [Health.WARNING]


def test_what_is_full_as_it_should_be_is_a_note_and_no_problem(calm: Service) -> None:
    calm.configure(LIMITED.replace("      Throttle: {Policy: level0, MaxSubmittingJobs: 2}\n", "", 1))
    assert "RunningLimit" not in _read_problems(calm), "no job waits for it"
    _sample(calm)
    found = _read_problems(calm)
    assert "Nothing" in found
    assert "7 jobs wait that could run there" in found


def test_sites_that_fail_as_many_jobs_as_the_others_are_not_named(calm: Service) -> None:
    for queue in (f"{A}/ce1/long", f"{B}/ce2/all"):
        _end(calm, queue, JobStatus.FAILED, jobs=60, seconds=3600)
    assert "Nothing" in _read_problems(calm)


def test_doctor_and_metrics_have_the_same_problems(calm: Service, tmp_path: Path) -> None:
    for what in ("a director that complains", "a banned site", "a site that fails jobs"):
        BROKEN[what][0](calm)
    chosen = settings.load({"home": tmp_path, "database_url": str(calm.engine.url)}, {})
    of_doctor = Counter(
        each.subject for each in doctor.check_database(chosen, utc_now()) if each.health is Health.WARNING
    )
    assert of_doctor == {"directors and gateways": 1, "bans": 1, "failing sites": 1}
    text = calm.as_role("monitor", user="m").get("/metrics").text
    for subject in of_doctor:
        assert f'pilotage_problems{{health="warning",subject="{subject}",vo=""}} 1.0' in text


def test_nobody_sees_problems_of_others(calm: Service) -> None:
    for what in BROKEN:
        if what != "an installation without a queue":
            BROKEN[what][0](calm)
    of_user = _read_problems(calm, "user", vo="cms", user="ada")
    assert f"at {B} 60 of 160 jobs of cms failed" in of_user
    for hidden in ("north", "Redis", "clock", "no space", "later release", "/jobs?status"):
        assert hidden not in of_user
    of_other = _read_problems(calm, "vo_admin", vo="dune", user="kim")
    assert "cms" not in of_other
    of_site = _read_problems(calm, "site_admin", site=A, user="eva")
    assert f"{A}/ce1/short" in of_site
    assert B not in of_site


def test_each_check_has_an_alert_whose_section_states_cause_and_cure() -> None:
    alerts = (REPOSITORY / "deploy/prometheus/alerts.yaml").read_text()
    cures = (REPOSITORY / "docs/operator/when-it-breaks.md").read_text()
    for check in [each for each in CHECKS if each.alert is not None]:
        assert f"- alert: {check.alert}\n" in alerts
        assert f"# {check.alert}\n" in cures
    [listed] = re.findall(r"- alert: PilotageProblem\n.*?for:", alerts, re.DOTALL)
    named = {each for names in re.findall('subject=~"(.*?)"', listed) for each in names.split("|")}
    with_it = {each for check in CHECKS if check.alert == checks.ANY_PROBLEM for each in check.subjects}
    assert named <= with_it
    assert with_it - named == {"blobs", "counters"}, "what is wrong there is bad; counters that were mended"
