"""Whether `pilotage doctor` sees that an agent is not run."""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pilotage.cli import doctor, settings
from pilotage.cli.doctor import Finding, Health
from pilotage.cli.processes.agent import list_names
from pilotage.cli.settings import Settings
from taskqueue.db import agent_leases
from taskqueue.db import database as db_database
from taskqueue.sites import processes
from taskqueue.sites.processes import QueueState, SiteProcess

AGENTS = list_names()
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def installation(home: Path) -> Settings:
    return settings.load({"home": home}, {})


def came_through(home: Path, agents: Iterable[str], at: datetime, broken: Collection[str] = ()) -> None:
    """An installation in which these agents had a cycle at this time, which failed for some VOs."""
    url = installation(home).database_url
    db_database.upgrade(url)
    engine = db_database.connect(url)
    with db_database.writing(engine) as conn:
        for name in agents:
            fence = agent_leases.acquire(conn, name=name, holder="us", now=at, ttl=timedelta(seconds=30))
            assert fence is not None
            agent_leases.finish_cycle(conn, name=name, fence=fence, now=at, broken=broken)
    engine.dispose()


def agents_of(home: Path, now: datetime) -> Finding:
    [found] = [each for each in doctor.check_database(installation(home), now) if each.subject == "agents"]
    return found


def test_an_agent_that_nobody_runs_is_named(tmp_path: Path) -> None:
    came_through(tmp_path, set(AGENTS) - {"waits"}, NOW)
    found = agents_of(tmp_path, NOW)
    assert (found.health, found.message.partition(":")[0]) == (Health.WARNING, "nobody runs waits now")


def test_agents_that_work_are_fine_until_they_are_late(tmp_path: Path) -> None:
    came_through(tmp_path, AGENTS, NOW)
    assert agents_of(tmp_path, NOW + timedelta(minutes=1)).health is Health.GOOD
    late = agents_of(tmp_path, NOW + timedelta(minutes=2))
    assert late.health is Health.WARNING
    assert "retention" not in late.message  # it looks every ten minutes only


def test_problems_that_a_director_reports_are_shown_once_for_all_its_vos(tmp_path: Path) -> None:
    came_through(tmp_path, AGENTS, NOW)
    engine = db_database.connect(installation(tmp_path).database_url)
    with db_database.writing(engine) as conn:
        for vo in ("cms", "lhcb"):
            report = SiteProcess(
                kind="director",
                name="north",
                vo=vo,
                holder="h",
                every=60,
                problems=["farm: away"],
                seen_at=NOW,
            )
            processes.report(conn, report, lease=timedelta(0), now=NOW)
    engine.dispose()

    found = doctor.check_database(installation(tmp_path), NOW)

    assert [(each.health, each.message) for each in found if each.subject == "directors and gateways"] == [
        (Health.WARNING, "the director north reports: farm: away"),
        (Health.GOOD, "1 at work"),
    ]


def test_queues_that_a_director_has_paused_are_named(tmp_path: Path) -> None:
    came_through(tmp_path, AGENTS, NOW)
    engine = db_database.connect(installation(tmp_path).database_url)
    until = NOW + timedelta(minutes=4)
    queues = [
        QueueState(queue="A/ce/long", paused_until=until, reason="failed, exit status 4"),
        QueueState(queue="A/ce/short", paused_until=NOW, reason="it is over"),
        QueueState(queue="A/ce/fine", waiting=3),
    ]
    report = SiteProcess(
        kind="director", name="north", vo="cms", holder="h:1:2", every=60, queues=queues, seen_at=NOW
    )
    with db_database.writing(engine) as conn:
        processes.report(conn, report, lease=timedelta(0), now=NOW)
        [stored] = processes.list_processes(conn)
    engine.dispose()
    assert stored.queues == tuple(queues)

    found = doctor.check_database(installation(tmp_path), NOW + timedelta(minutes=1))

    messages = [each.message for each in found if each.subject == "directors and gateways"]
    paused, at_work = messages
    assert paused == (
        "the director north sends no pilots of cms to A/ce/long until 12:04 UTC: "
        "most of the last ones failed, or got no job: failed, exit status 4"
    )
    assert at_work == "1 at work"
