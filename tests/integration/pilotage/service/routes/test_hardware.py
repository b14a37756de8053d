"""Hardware that pilots had: recorded at a first request for work, listed, and missed at submission."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from cs_config.options import bounds
from pilotage.service.services import utc_now
from tests.support.service import Service, running

TREE = """
Resources:
  Sites:
    LCG.A.org: {VO: [cms], CEs: {ce1: {Queues: {long: {CPUTime: 100000}}}}}
    LCG.B.org: {VO: [cms], CEs: {ce1: {Queues: {long: {CPUTime: 100000}}}}}
Registry:
  VO: {cms: {}}
"""
WARN = "Operations: {cms: {JobScheduling: {UnseenHardwareDays: 7}}}"
SLOT = {
    "Site": "LCG.A.org",
    "GridCE": "ce1",
    "Queue": "long",
    "CPUTime": 100_000,
    "JobType": "Test",
    "MaxRAM": 15_873,
    "NumberOfProcessors": 8,
}


def warn(user: httpx.Client, **more: object) -> list[str]:
    """The warnings of hardware: these queues state less than their pilots have."""
    job = {"Executable": "/bin/true", "CPUTime": 3600, **more}
    found: list[str] = user.post("/api/v1/jobs", json={"jobs": [job]}).json()["warnings"]
    return [each for each in found if "hardware" in each]


def list_seen(user: httpx.Client, **params: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = user.get("/api/v1/hardware", params=params).json()["hardware"]
    return found


def test_hardware_that_nobody_had_is_warned_of(engine: Engine, tmp_path: Path) -> None:
    later = [timedelta(days=-30)]  # of the matcher, which records
    with running(engine, tmp_path, TREE + WARN, clock=lambda: utc_now() + later[0]) as service:
        user, pilot = service.user(), service.pilot("LCG.A.org/ce1/long")
        assert pilot.post("/api/v1/matcher/requestJob", json=SLOT).is_success
        service.parts.hardware.store()
        assert warn(user, MinRAM=30_000) == []  # no pilot was seen lately: nothing is known
        later[0] = timedelta()
        service.parts.hardware.store()  # of another day
        for less in (0, 1000):  # a later request states what is left, in another shape
            assert pilot.post("/api/v1/matcher/requestJob", json={**SLOT, "MaxRAM": 15_873 - less}).is_success
        service.parts.hardware.store()
        assert warn(user, MinRAM=15_873, NumberOfProcessors=8) == []
        [text] = warn(user, MinRAM=30_000)
        assert text.startswith(
            "no pilot of an eligible site had such hardware in the last 7 days: the nearest"
        )
        assert "lacks MinRAM (at least 30000 MB)" in text
        assert warn(user, MinRAM=30_000, Site="LCG.B.org") == []  # no pilot was seen there


@pytest.mark.config(TREE + WARN)
def test_submissions_that_are_decided_later_are_warned_of_by_class(service: Service) -> None:
    user, pilot = service.user(), service.pilot("LCG.A.org/ce1/long")
    assert pilot.post("/api/v1/matcher/requestJob", json=SLOT).is_success
    service.parts.hardware.store()
    job = {"Executable": "/bin/true", "CPUTime": 3600, "Parameters": bounds.DECIDED_JOBS}
    few, much = {**job, "MinRAM": 1000}, {**job, "MinRAM": 30_000}
    answer = user.post("/api/v1/jobs", json={"jobs": [few, much]}).json()
    assert len(answer["job_ids"]) == 2 * bounds.DECIDED_JOBS
    [text] = answer["warnings"]
    assert "lacks MinRAM (at least 30000 MB)" in text


@pytest.mark.parametrize(("option", "days"), [("", 90), (WARN, 7)])
def test_an_explanation_names_hardware_that_no_pilot_had(
    engine: Engine, tmp_path: Path, option: str, days: int
) -> None:
    with running(engine, tmp_path, TREE + option) as service:
        user, pilot = service.user(), service.pilot("LCG.A.org/ce1/long")

        def explain(**more: object) -> list[str]:
            job = {"Executable": "/bin/true", "CPUTime": 3600, "Site": "LCG.A.org", **more}
            job_id = user.post("/api/v1/jobs", json={"jobs": [job]}).json()["job_ids"][0]
            now = user.get(f"/api/v1/jobs/{job_id}/explain").json()["now"]
            return [each for each in now if "such hardware" in each]

        assert explain(MinRAM=30_000) == []  # nothing is known
        assert pilot.post("/api/v1/matcher/requestJob", json=SLOT).is_success
        service.parts.hardware.store()
        assert explain(MinRAM=15_000) == []
        [text] = explain(MinRAM=30_000)
        assert text.startswith(
            f"no pilot of an eligible site had such hardware in the last {days} days: the nearest"
        )


@pytest.mark.config(TREE)
def test_seen_hardware_is_listed_by_site(service: Service) -> None:
    user, pilot = service.user(), service.pilot("LCG.A.org/ce1/long")
    document = {
        "site": "LCG.A.org",
        "GridCE": "ce1",
        "Queue": "long",
        "JobType": "Test",
        "system": {"name": "Linux"},
        "wall_time": 86_400,
        "cpu_power_db12": 10.0,
        "cpu": {
            "num_nodes": 1,
            "num_cores": 16,
            "ram_mb": 32_000,
            "architecture": {"name": "aarch64", "features": ["asimd", "atomics", "asimdrdm", "crc32"]},
        },
        "gpu": {"count": 1, "vendor": "nvidia", "arch": "sm_89", "vram_mb_per_gpu": 24_000}
        | {"min_runtime_version": "12.4"},
    }
    assert pilot.post("/api/v1/matcher/requestJob", json=document).is_success
    service.parts.hardware.store()
    [seen] = list_seen(user)
    assert {name: seen[name] for name in ("processors", "max_ram_mb", "cpu_level", "gpus")} == {
        "processors": 16,
        "max_ram_mb": 32_000,
        "cpu_level": "armv8.1-a",
        "gpus": 1,
    }
    assert (seen["gpu_vendor"], seen["gpu_architecture"], seen["gpu_runtime"]) == ("nvidia", 89, "12.4")
    assert list_seen(user, site="LCG.A.org") == [seen]
    assert list_seen(user, site="LCG.B.org") == []
    assert user.get("/api/v1/hardware", params={"site": "LCG.C.org"}).status_code == 404
