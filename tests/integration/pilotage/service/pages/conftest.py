"""A service for all tests of a file, one of whose pages show much, and the browser."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from agents import accounting
from pilotage.service.services import utc_now
from requirements.states import JobStatus as S
from requirements.states import PilotStatus
from taskqueue.db import database
from taskqueue.pilots import hardware, pilots
from taskqueue.pilots.hardware import HardwareShape
from taskqueue.sites import closures, processes
from taskqueue.sites.closures import Ban, Downtime, Severity
from taskqueue.sites.processes import QueueState, SiteProcess, TooSmallSlot
from tests.support.factories import stored_rows
from tests.support.servers.chromium import chromium, signed_in, windows
from tests.support.service import CONFIG, Service, running_on_sqlite

__all__ = ["chromium", "signed_in", "windows"]

A, B, C = "LCG.A.org", "LCG.B.org", "LCG.C.org"
_GRID = CONFIG.replace(
    "Operations:\n",
    f"    {C}: {{VO: [cms], CEs: {{ce3: {{Queues: {{q: {{CPUTime: 100000}}}}}}}}}}\nOperations:\n",
    1,
).replace(
    f"    {A}:\n",
    f"    {A}:\n      Throttle: {{Policy: level2, MaxJobs: 20, MaxSubmittingAndOutputGatheringJobs: 5}}\n"
    "      RunningLimit: {JobType: {Merge: {count: 50, cores: 400}, Stage: {cores: 8}}}\n"
    "      Floors: {cms: 30%, dune: 4}\n",
    1,
)


@pytest.fixture(scope="module")
def service(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_on_sqlite(sqlite_template, tmp_path_factory.mktemp("service")) as service:
        yield service


@pytest.fixture(scope="module")
def world(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Jobs of three people and two VOs in all statuses; pilots, one of them long ago; a site that fails.

    Of what pages show besides, one of each: limits, floors, a ban, a downtime, directors, versions.
    """
    with running_on_sqlite(sqlite_template, tmp_path_factory.mktemp("world")) as service:
        for user, vo in (("ada", "cms"), ("bob", "cms"), ("ida", "cms"), ("ida", "dune")):
            group = {"Executable": "x", "JobGroup": "scan", "Site": A}
            service.submit(*[group] * 4, user=user, vo=vo)
            service.submit(
                {"Executable": "x", "JobGroup": "big", "Requirements": {"Memory": 900000}}, user=user, vo=vo
            )
            service.submit({"Executable": "x", "Requirements": {"Memory": 100}}, user=user, vo=vo)
        service.submit(*[{"Executable": "x", "JobGroup": "fails", "Site": B}] * 70)  # more than a page
        killed = service.submit({"Executable": "x", "JobGroup": "scan"})
        service.user().post(f"/api/v1/jobs/{killed[0]}/kill").raise_for_status()
        held = service.submit({"Executable": "x", "JobGroup": "scan"})
        service.user().post(f"/api/v1/jobs/{held[0]}/hold").raise_for_status()
        for _ in range(12):
            run_job(service, f"{B}/ce2/all", {"status": "Failed", "exit_code": 1})
        run_job(service, f"{B}/ce2/all", {"status": "Done"})
        run_job(service, f"{A}/ce1/long", {"status": "Done"})
        run_job(service, f"{A}/ce1/long", {"status": "Failed", "exit_code": 65})
        run_job(service, f"{A}/ce1/long", {"status": "Failed", "exit_code": 65})
        run_job(service, f"{A}/ce1/long", {"status": "Failed", "exit_code": 137})
        run_job(service, f"{A}/ce1/long", {"status": "Failed", "exit_code": 65}, vo="dune")
        run_job(service, f"{A}/ce1/long", None)
        with database.writing(service.engine) as conn:
            old = utc_now() - timedelta(days=3)
            pilots.record_contact(conn, stamp="old", vo="cms", queue=None, now=old)
            stored_rows.force_pilot(conn, "old", status=PilotStatus.DONE)
        _add_states(service)
        _report_sites(service)
        assert accounting.cycle(service.engine, now=utc_now(), holder="test") is not None
        yield service


def run_job(service: Service, queue: str, end: Mapping[str, Any] | None, *, vo: str = "cms") -> None:
    """A pilot that gets a job, which ends so; None: it runs."""
    pilot = service.pilot(queue, vo)
    _, lease = _take(pilot, queue)
    pilot.post(f"{lease}/start", json={}).raise_for_status()
    if end is not None:
        pilot.post(f"{lease}/finish", json=end).raise_for_status()


def _take(pilot: httpx.Client, queue: str, **wishes: int) -> tuple[int, str]:
    """The job that a pilot, or a gateway, gets, and the address of its lease."""
    site, ce, name = queue.split("/")
    asked = {"Site": site, "GridCE": ce, "Queue": name, "CPUTime": 100_000, **wishes}
    [match] = pilot.post("/api/v1/matcher/requestJob", json=asked).raise_for_status().json()["matches"]
    return match["job_id"], f"/api/v1/leases/{match['lease']}"


def _add_states(service: Service) -> None:
    """Jobs in the statuses that no run leads to, a job after another, a grid job, and pilots without jobs."""
    queue, now = f"{A}/ce1/long", utc_now()
    steps = [{"Executable": "x", "JobName": "make"}, {"Executable": "x", "JobName": "fit", "After": "make"}]
    service.submit(
        *({**step, "JobGroup": "workflow", "Requirements": {"Memory": 9_000_000}} for step in steps)
    )
    for status in (S.MATCHED, S.STALLED, S.COMPLETING, S.COMPLETED, S.RESCHEDULED):
        [job_id] = service.submit({"Executable": "x", "JobGroup": "scan", "Site": A})
        pilot = service.pilot(queue)
        _, lease = _take(pilot, queue, JobID=job_id)
        if status != S.MATCHED:
            pilot.post(f"{lease}/start", json={}).raise_for_status()
            with database.writing(service.engine) as conn:
                stored_rows.set_status(conn, job_id, status, minor="As seen", source="test", now=now)
    [generate] = service.submit({"Executable": "x", "JobName": "generate", "Site": A})
    gateway = service.as_role("gateway", vo="cms", site=A, user="gate")
    _, lease = _take(gateway, queue, JobID=generate)
    gateway.post(f"{lease}/start").raise_for_status()
    reported = {
        "progress": "generating",
        "phases": [{"name": "generate", "done": 117, "of": 250, "unit": "events"}],
        "local_jobs": {"active": 3, "done": 4, "error": 1},
    }
    gateway.post(f"{lease}/heartbeat", json=reported).raise_for_status()
    director = service.as_role("director", vo="cms", user="north")
    for reason in ("no_task_queue", "limits"):
        director.post("/api/v1/pilots", json={"stamp": f"empty-{reason}", "queue": queue}).raise_for_status()
        news = {"reference": "e.batch", "status": "Done", "empty_reason": reason}
        director.post(f"/api/v1/pilots/empty-{reason}/status", json=news).raise_for_status()


def _report_sites(service: Service) -> None:
    """What directors, gateways and admins state of sites, and how the configuration changed."""
    service.configure(_GRID)
    now = utc_now()
    gateway, operator = service.as_role("gateway", vo="cms", site=A, user="gate"), service.operator()
    watermark = gateway.post(f"/api/v1/sites/{A}/watermark").raise_for_status().json()["watermark"]
    stated = {
        "as_of": watermark,
        "CurrentJobs": 12,
        "CurrentSubmittingJobs": 1,
        "CurrentGatheringOutputJobs": 1,
    }
    gateway.post(f"/api/v1/sites/{A}/advertisement", json=stated).raise_for_status()
    reported = {
        "queues": [QueueState(queue=f"{A}/ce1/long", waiting=3, running=40, room=2)],
        "problems": ["condor_submit: SECMAN:2007: Failed to end classad message"],
        "too_small": [TooSmallSlot(queue=f"{A}/ce1/short", slot="2000 MB and 1 core", jobs=9)],
    }
    outage = Downtime(
        place=f"{B}/ce2",
        begins=now + timedelta(hours=1),
        ends=now + timedelta(hours=5),
        severity=Severity.OUTAGE,
        reason="new switches",
        author="eve",
        at=now,
    )
    shape = HardwareShape(
        processors=16, gpus=2, gpu_vendor="nvidia", gpu_architecture=89, gpu_memory_mb=24_000
    )
    with database.writing(service.engine) as conn:
        process = SiteProcess(
            name="north", kind="director", vo="cms", holder="h", every=60, seen_at=now, sites=[A], **reported
        )
        processes.report(conn, process, lease=timedelta(0), now=now)
        closures.add_downtimes(conn, [outage])
        closures.set_ban(conn, Ban(site=C, reason="disks fail", author="eve", at=now, until=None))
        hardware.store_seen(conn, [(A, shape)], now=now)
    pilot = {"stamp": "n", "queue": f"{A}/ce1/long"}
    director = service.as_role("director", vo="cms", user="north")
    for number in range(3):
        stamp = f"broken-{number}-of-many-pilots-with-a-long-name"
        director.post("/api/v1/pilots", json={**pilot, "stamp": stamp}).raise_for_status()
        news = {"reference": f"{number}.batch.example.org", "status": "Failed", "reason": "exit status 70"}
        director.post(f"/api/v1/pilots/{stamp}/status", json=news).raise_for_status()
    change = {"set": {f"Resources/Sites/{A}/CEs/ce1/Queues/long/MaxRAM": 4001}, "message": "more of it"}
    newest = {"If-Match": str(service.parts.live.current.version)}
    operator.patch("/api/v1/config", json={**change, "revert_after": 3600}, headers=newest).raise_for_status()
