"""What a pilot finds out about its slot where it was not told."""

from pathlib import Path

import pytest

from pilotage.fabric.pilot import arguments, offer
from pilotage.fabric.pilot.node import db12, discovery, facts, slot_limits
from pilotage.fabric.pilot.settings import JobFilters, QueuePlace, Slot, SlotLimits

PLACE = QueuePlace("A.B.ch", "ce", "long")
WORDS = ["--url", "http://x", "--site", "A.B.ch", "--ce", "ce", "--queue", "long"]
NODE = {"Cores": 64, "Memory": 256_000, "GPUs": 4}


def told(*words: str) -> Slot:
    return arguments.read_settings(arguments.parser().parse_args([*WORDS, *words]), {}).slot


def said(slot: Slot, parameters: dict[str, object] | None = None, elapsed: float = 0) -> dict[str, object]:
    return offer.make_offer(PLACE, slot, JobFilters(), parameters or {}).at(elapsed)


@pytest.mark.parametrize(
    ("environment", "left"),
    [
        ({"SLURM_JOB_END_TIME": "5000"}, 4000),
        ({"PBS_WALLTIME": "3600"}, 3600),
        ({"SLURM_JOB_END_TIME": "5000", "OAR_JOB_WALLTIME_SECONDS": "100"}, 100),
        ({"SLURM_JOB_END_TIME": "500"}, 1),
        ({"SLURM_JOB_END_TIME": "99999999999"}, None),
        ({"SLURM_JOB_END_TIME": "soon", "PBS_WALLTIME": ""}, None),
        ({}, None),
    ],
)
def test_the_batch_system_says_when_the_slot_ends(environment: dict[str, str], left: int | None) -> None:
    assert discovery.slot_seconds_left(environment, now=1000) == left


@pytest.mark.parametrize(
    ("says", "left"),
    [
        ("echo 2-03:04:05", 2 * 86_400 + 3 * 3600 + 4 * 60 + 5),
        ("echo ' 59:59'", 3599),
        ("echo 1:00:00", 3600),
        ("echo 0:00", 1),
        ("echo UNLIMITED", None),
        ("echo INVALID", None),
        ("echo 59:59; exit 1", None),
    ],
)
def test_where_no_variable_says_so_slurm_is_asked(tmp_path: Path, says: str, left: int | None) -> None:
    (tmp_path / "squeue").write_text(
        f'#!/bin/sh\n[ "$*" = "--noheader --all --format=%L --jobs 17" ] || exit 2\n{says}\n'
    )
    (tmp_path / "squeue").chmod(0o755)
    assert discovery.slot_seconds_left({"SLURM_JOB_ID": "17", "PATH": str(tmp_path)}, now=0) == left


def test_what_the_batch_system_says_goes_over_the_queue_and_under_what_was_told() -> None:
    environment = {"PBS_WALLTIME": "3600"}
    for slot, expected in ((told(), 3600), (told("--lifetime", "50"), 50)):
        found = discovery.complete_slot(slot, environment, now=0, measured={})
        assert said(found, {"maxWallClockTime": 7200})["CPUTime"] == expected


def test_a_whole_node_is_offered_with_all_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        slot_limits, "measure_limits", lambda *_, **__: SlotLimits()
    )  # not those of the tests
    found = discovery.complete_slot(told("--whole-node", "--max-ram", "1000"), {}, now=0, measured=NODE)
    request = said(found, {"NumberOfProcessors": 1, "MaxRAM": 2000})
    assert request["WholeNode"] is True
    assert (request["NumberOfProcessors"], request["MaxRAM"], request["GPUs"]) == (64, 1000, 4)


def test_a_part_of_a_node_is_not_taken_for_all_of_it() -> None:
    request = said(discovery.complete_slot(told(), {}, now=0, measured=NODE))
    assert request["NumberOfProcessors"] == 1
    assert "WholeNode" not in request
    assert "GPUs" not in request


def test_cpu_time_is_offered_in_normalised_seconds() -> None:
    queue = {"maxWallClockTime": 1000, "CPUNormalizationFactor": 10}
    assert said(told(), queue)["CPUTime"] == 10_000
    assert said(told("--cpu-power", "2.5"), queue)["CPUTime"] == 2500
    assert said(told("--cpu-power", "2.5"), queue, elapsed=300)["CPUTime"] == 1500
    assert said(told("--cpu-time", "100"), queue)["CPUTime"] == 1000


def test_a_power_that_is_measured_is_of_the_benchmark() -> None:
    ticks = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0])
    # The median round takes 2 s for 150,000 of 12.5 million numbers.
    assert db12.sample_power(lambda: next(ticks)) == 1.5
    found = discovery.complete_slot(told("--cpu-power", "measure"), {}, now=0, measured={})
    assert found.cpu_power is not None
    assert found.cpu_power > 0


@pytest.mark.parametrize("text", ["0", "-1", "much", "nan", "inf"])
def test_a_power_that_is_none_is_wrong_usage(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        told(f"--cpu-power={text}")
    assert "--cpu-power" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('ID="almalinux"\nVERSION_ID="9.4"\nPLATFORM_ID="platform:el9"\n', ("el9", "almalinux", "9.4")),
        ('# comment\n\nID=debian\nVERSION_ID="12"\nNAME="Debian GNU/Linux"\n', ("debian12", "debian", "12")),
        ("ID=arch\n", ("arch", "arch", None)),
        ('ID="broken\n', (None, None, None)),
    ],
)
def test_a_system_says_what_it_is(tmp_path: Path, text: str, expected: tuple[str | None, ...]) -> None:
    (tmp_path / "os-release").write_text(text)
    found = facts.measure_os(tmp_path / "os-release")
    assert tuple(found.get(name) for name in ("OS", "OSName", "OSVersion")) == expected
