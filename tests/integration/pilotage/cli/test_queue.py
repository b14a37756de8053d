"""`pilotage queue drain`, `resume`, `find` and `pool for-queue` against a real service."""

import json
from pathlib import Path

import pytest

from tests.support.commands import Run, run, send_to
from tests.support.service import Service

__all__ = ["run"]

SITE, QUEUE = "LCG.A.org", "LCG.A.org/ce1/long"
ASKED = {"Site": SITE, "GridCE": "ce1", "Queue": "long", "CPUTime": 100000}


@pytest.fixture(autouse=True)
def _as_site_admin(service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    send_to(service, tmp_path / "nobody", monkeypatch, "site_admin", site=SITE, user="eva")


def test_a_queue_is_drained_and_resumed(run: Run, service: Service) -> None:
    assert run("queue", "drain", QUEUE, "--reason", "new disks") == (0, f"{QUEUE}: gets no new jobs\n", "")
    _, out, _ = run("queue", "explain", QUEUE)
    told = " ".join(out.split())
    assert f"{QUEUE} is drained (Enabled: false), since " in told, "also while no job waits"
    assert told.endswith(" by eva: new disks")
    pilot = service.pilot(QUEUE)
    assert pilot.post("/api/v1/matcher/requestJob", json=ASKED).json()["reason"] == "not_usable"
    [newest, *_] = service.operator().get("/api/v1/config/versions").json()["versions"]
    assert newest["message"] == "new disks"
    assert run("queue", "resume", QUEUE) == (0, f"{QUEUE}: gets jobs again\n", "")
    assert pilot.post("/api/v1/matcher/requestJob", json=ASKED).json()["reason"] == "no_task_queue"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("queue", "drain", "LCG.B.org/ce2/all"), "not yours to change"),
        (("queue", "drain", "LCG.A.org/ce1/longg"), "did you mean LCG.A.org/ce1/long?"),
        (("queue", "resume", QUEUE), "Enabled"),
    ],
)
def test_what_cannot_be_switched_is_refused(
    run: Run, service: Service, words: tuple[str, str], said: str
) -> None:
    version = service.parts.live.current.version
    status, _, error = run(*words)
    assert (status, said in error) == (1, True), error
    assert service.parts.live.current.version == version


@pytest.mark.parametrize(
    "words",
    [
        ("queue", "drain", QUEUE, "--reason"),
        ("config", "set", f"Resources/Sites/{SITE}/MaxRAM=1", "-m"),
        ("config", "rollback", "1", "--message"),
        ("site", "ban", SITE, "--reason"),
    ],
    ids=" ".join,
)
def test_a_reason_that_is_stated_is_not_blank(run: Run, service: Service, words: tuple[str, ...]) -> None:
    status, _, error = run(*words, "  ")
    assert (status, "'  ' is blank; state a reason" in error) == (2, True), error
    assert service.parts.live.current.version == 1


def test_an_empty_reason_is_none_as_in_1_0(run: Run, service: Service) -> None:
    assert run("queue", "drain", QUEUE, "--reason", "")[0] == 0
    assert run("config", "set", f"Resources/Sites/{SITE}/MaxRAM=1", "-m", "")[0] == 0
    assert service.parts.live.current.version == 3


def test_a_site_admin_finds_queues_for_any_vo_at_the_own_site(run: Run) -> None:
    status, out, _ = run("queue", "find", "--vo", "dune", "--requires", "MaxRAM=8000", "--json")
    assert (status, list(json.loads(out)["LCG.A.org"]["ce1"])) == (0, ["short"])
    status, out, _ = run("queue", "find", "--vo", "cms", "--requires", "other.MaxRAM >= 1", "--node", "CE")
    assert (status, "LCG.A.org/ce1\t" in out, "LCG.B.org" in out) == (0, True, False)
    assert (
        "LCG.A.org\t" in run("queue", "find", "--vo", "cms", "--node", "Site", "--ce-requires", "VO=cms")[1]
    )


def test_found_queues_are_shown_with_what_was_required(run: Run) -> None:
    status, out, _ = run("queue", "find", "--vo", "dune", "--requires", "maxram=8000")
    headings, row = (line.split("\t") for line in out.splitlines())
    assert (status, headings, row[0]) == (0, ["Site/CE/Queue", "maxram"], "LCG.A.org/ce1/short")
    assert float(row[1].replace(",", "")) >= 8000
    headings = run("queue", "find", "--vo", "dune", "--requires", "other.MaxRAM >= 8000")[1].splitlines()[0]
    assert "maxWallClockTime" in headings


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("queue", "find", "--vo", "cms", "--node", "Sites"), 2, "did you mean Site?"),
        (
            ("queue", "find", "--vo", "cms", "--requires", "A=1", "--requires", "x > 1"),
            2,
            "an expression stands alone",
        ),
        (("queue", "find", "--vo", "cms", "--requires", "A=1", "--requires", "A=2"), 2, "required twice"),
        (("queue", "find", "--requires", "A=1"), 2, "vo: is required"),
        (("pool", "for-queue", "LCG.A.org"), 2, "LCG.A.org"),
        (("pool", "for-queue", "LCG.A.org/ce1/lnog"), 1, "did you mean LCG.A.org/ce1/long?"),
    ],
)
def test_a_search_that_cannot_be_made_is_refused(
    run: Run, words: tuple[str, ...], code: int, said: str
) -> None:
    status, _, error = run(*words)
    assert said in error
    assert status == code


def test_the_pools_of_queues_are_listed_by_a_command(run: Run, service: Service) -> None:
    job = {"Executable": "x", "Requirements": {"Memory": 1000}}
    service.user(vo="dune").post("/api/v1/jobs", json={"jobs": [job]}).raise_for_status()
    [pool] = service.operator().get("/api/v1/pools").json()["pools"]
    status, out, error = run("pool", "for-queue", "LCG.A.org/ce1/short", "LCG.A.org/ce1/lnog")
    assert (status, pool["pool_id"] in out) == (0, True)
    assert error == "LCG.A.org/ce1/lnog: no such queue, did you mean LCG.A.org/ce1/long?\n"
