"""Local pilots of `pilotage up`: a director of one site, whose pilots run on this host."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from examples.servers.starting import wait_until
from pilotage.cli.processes.local_pilots import LocalPilots, PilotHost
from pilotage.fabric.cycle_summaries import DirectorSummary
from pilotage.fabric.director.director import Director
from tests.support.service import Service

CONFIG = """
Resources:
  Sites:
    LCG.A.org:
      VO: [cms]
      CEs:
        ce1:
          NumberOfProcessors: 512
          MaxTotalJobs: 50
          MaxWaitingJobs: 50
          Queues: {large: {CPUTime: 100000}}
    LCG.B.org: {VO: [cms], CEs: {ce2: {Platform: exotic, Queues: {other: {CPUTime: 100000}}}}}
Registry:
  VO: {cms: {}, dune: {}}
"""
pytestmark = pytest.mark.config(CONFIG)
#: A second queue, for another VO.
MORE = CONFIG.replace("{large:", "{small: {VO: [dune], CPUTime: 1000}, large:")


@pytest.fixture
def seconds() -> list[float]:
    return [0.0]


@pytest.fixture
def pilots(
    service: Service, tmp_path: Path, seconds: list[float], monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalPilots]:
    open_director = LocalPilots._open_director

    def open_patient(pilots: LocalPilots, vos: Collection[str], queues: Collection[str]) -> Director:
        made = open_director(pilots, vos, queues)
        made.patience = 300  # however slow the host is, a cycle sees what it does
        return made

    monkeypatch.setattr(LocalPilots, "_open_director", open_patient)
    pilots = LocalPilots(
        parts=service.parts,
        site="LCG.A.org",
        url=service.url,
        host=PilotHost(directory=str(tmp_path / "pilots"), cores=2, memory=0, grace=300),
        words=("--max-empty=1", "--isolation=none"),
        clock=lambda: seconds[0],
    )
    yield pilots
    pilots.stop()


def cycle(pilots: LocalPilots, seconds: list[float]) -> DirectorSummary:
    seconds[0] += 60
    summary = pilots.look()
    assert summary is not None
    return summary


def submit(service: Service, number: int = 1, **more: object) -> list[int]:
    job = {"Executable": "/bin/sleep", "Arguments": "600", "NumberOfProcessors": 512, **more}
    return service.submit(*[job] * number)


def statuses(service: Service) -> dict[str, int]:
    rows = service.operator().get("/api/v1/jobs/summary", params={"by": "status"}).json()["summary"]
    return {row["status"]: row["count"] for row in rows}


def test_a_waiting_job_gets_a_pilot_that_is_recorded_and_leaves_nothing_behind(
    service: Service, pilots: LocalPilots, seconds: list[float]
) -> None:
    submit(service, Arguments="0")

    assert cycle(pilots, seconds).submitted == 1

    wait_until(lambda: statuses(service) == {"Done": 1})
    wait_until(lambda: not (summary := cycle(pilots, seconds)).running and not summary.waiting)
    [pilot] = service.operator().get("/api/v1/pilots").json()["pilots"]
    assert (pilot["status"], pilot["jobs"], pilot["vo"]) == ("Done", 1, "cms")
    wait_until(lambda: cycle(pilots, seconds) and not list(Path(pilots.host.directory).glob("local.*")))


def test_pilots_are_limited_by_places_and_not_by_what_their_queue_is_said_to_have(
    service: Service, pilots: LocalPilots, seconds: list[float]
) -> None:
    submit(service, 3)

    assert cycle(pilots, seconds).submitted == 2, "this host has two places, and hardly 512 processors"
    wait_until(lambda: statuses(service) == {"Running": 2, "Waiting": 1})
    assert cycle(pilots, seconds).submitted == 0


def test_at_the_end_pilots_return_their_jobs_and_nobody_misses_the_director(
    service: Service, pilots: LocalPilots, seconds: list[float]
) -> None:
    submit(service)
    cycle(pilots, seconds)
    wait_until(lambda: statuses(service) == {"Running": 1})

    pilots.stop()

    assert statuses(service).keys() <= {"Checking", "Received", "Waiting"}
    [process] = service.operator().get("/api/v1/site-processes").json()["processes"]
    assert (process["kind"], process["name"], process["every"]) == ("director", "local", 7 * 86_400)


@pytest.mark.parametrize(("address", "left"), [("http://127.0.0.1:9", 0), (None, 1)])
def test_pilots_of_a_killed_process_hold_no_places_if_the_next_one_listens_elsewhere(
    service: Service, pilots: LocalPilots, seconds: list[float], address: str | None, left: int
) -> None:
    pilots.end_pilots_of_former_address()
    submit(service)
    cycle(pilots, seconds)
    wait_until(lambda: statuses(service) == {"Running": 1})

    replace(pilots, url=address or pilots.url).end_pilots_of_former_address()

    assert len(pilots.host.survey((), "local.").stamps) == left


def test_a_cycle_is_due_when_something_has_changed_and_after_a_while(
    service: Service, pilots: LocalPilots, seconds: list[float]
) -> None:
    assert cycle(pilots, seconds).jobs == 0
    # The optimizer may still be at work: it writes to the log of jobs, which makes a cycle due.
    wait_until(lambda: pilots.look() is None)
    submit(service, Platform="exotic")
    assert pilots.look() is not None, "there is a new job, though not for this site"
    wait_until(lambda: pilots.look() is None)
    service.configure(MORE)
    assert pilots.look() is not None
    wait_until(lambda: pilots.look() is None)
    seconds[0] += 10
    assert pilots.look() is not None


def test_queues_and_vos_are_those_of_the_configuration_as_it_is(
    service: Service, pilots: LocalPilots, seconds: list[float]
) -> None:
    def reported() -> set[tuple[str, str]]:
        found = service.operator().get("/api/v1/site-processes").json()["processes"]
        return {(each["vo"], queue["queue"]) for each in found for queue in each["queues"] or ()}

    for _ in range(2):
        cycle(pilots, seconds)
    assert reported() == {("cms", "LCG.A.org/ce1/large")}

    service.configure(MORE)
    for _ in range(2):
        cycle(pilots, seconds)

    assert reported() == {("cms", "LCG.A.org/ce1/large"), ("dune", "LCG.A.org/ce1/small")}
