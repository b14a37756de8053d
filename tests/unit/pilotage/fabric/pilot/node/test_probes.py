"""What probe scripts say, and that those that fail do no harm."""

from pathlib import Path

import pytest

from matcher.request import match_request
from pilotage.fabric.pilot import offer
from pilotage.fabric.pilot.node import discovery
from pilotage.fabric.pilot.settings import JobFilters, QueuePlace, Slot


def probe(directory: Path, name: str, script: str, *, mode: int = 0o755) -> None:
    (directory / name).write_text(f"#!/bin/sh\n{script}\n")
    (directory / name).chmod(mode)


def test_lines_are_facts_and_words_are_tags(tmp_path: Path) -> None:
    lines = ["Root = 6.30/04", 'Version="6.30"', "Singularity", "Memory=8000", "", "Fast=true"]
    probe(tmp_path, "a", "cat <<'END'\n" + "\n".join(lines) + "\nEND")
    probe(tmp_path, "b", 'echo \'Releases=["r1", "r2"]\'; echo GPUModel=null; echo Singularity')
    probe(tmp_path, "README", "echo Wrong", mode=0o644)
    probe(tmp_path, ".hidden", "echo Wrong")
    found = discovery.run_probes(tmp_path, {"PATH": "/usr/bin:/bin"})
    releases = {"Releases": ["r1", "r2"], "GPUModel": None}
    assert found.facts == {"Root": "6.30/04", "Version": "6.30", "Memory": 8000, "Fast": True, **releases}
    assert found.tags == ("Singularity",)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo Good=1; exit 3", "ended with status 3"),
        ("kill -9 $$", "ended with status -9"),
        ("echo Good=1; echo not a tag", "'not a tag' is neither name=value nor a tag"),
        ("yes x=1 | head -51", "printed 51 lines"),
        ("head -c 5000 /dev/zero", "printed 5000 bytes"),
        ("printf '\\377=1'", "no text"),
        ("printf 'Name=a\\033[31m'", "cannot be printed"),
    ],
)
def test_one_that_fails_says_nothing_and_is_named(tmp_path: Path, script: str, why: str) -> None:
    probe(tmp_path, "bad", script)
    probe(tmp_path, "good", "echo Right=1")
    found = discovery.run_probes(tmp_path, {"PATH": "/usr/bin:/bin"})
    assert set(found.facts) == {"Right", discovery.FAILED}
    [failed] = found.facts[discovery.FAILED]
    assert failed.startswith("bad: ")
    assert why in failed


def test_one_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    probe(tmp_path, "bad", "sleep 60 & sleep 60")
    found = discovery.run_probes(tmp_path, {"PATH": "/usr/bin:/bin"}, patience=0.5)
    assert found.facts == {discovery.FAILED: ["bad: did not end within 0.5 s"]}


def test_one_that_cannot_be_executed_and_a_directory_that_is_none_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "odd").write_text("#!/no/such/interpreter\n")
    (tmp_path / "odd").chmod(0o755)
    assert list(discovery.run_probes(tmp_path, {}).facts) == [discovery.FAILED]
    assert discovery.run_probes(tmp_path / "none", {}) == discovery.ProbedFacts()


def test_their_directory_may_be_named_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "probes").mkdir()
    probe(tmp_path / "probes", "a", "echo Right=1; pwd >&2")
    monkeypatch.chdir(tmp_path)
    assert discovery.run_probes(Path("probes"), {"PATH": "/usr/bin:/bin"}).facts == {"Right": 1}


def test_they_do_not_see_what_is_the_pilots_own(tmp_path: Path) -> None:
    probe(tmp_path, "a", 'echo "Token=$PILOTAGE_TOKEN"; echo "Seen=$SEEN"')
    found = discovery.run_probes(
        tmp_path, {"PATH": "/usr/bin:/bin", "PILOTAGE_TOKEN": "secret", "SEEN": "yes"}
    )
    assert found.facts == {"Token": "", "Seen": "yes"}


def test_however_much_they_say_the_service_takes_it(tmp_path: Path) -> None:
    for number in range(10):
        probe(tmp_path, f"p{number}", f'for i in $(seq 40); do echo "N{number}_$i={"x" * 60}"; done')
    probe(tmp_path, "q", "echo memory=1; echo huge=99999999999999999999999; echo odd=NaN; echo d={}")
    slot = discovery.complete_slot(Slot(probes=tmp_path), {"PATH": "/usr/bin:/bin"}, now=0)
    request = offer.make_offer(QueuePlace("A.B.ch", "ce", "q"), slot, JobFilters(), {}).at(0)
    facts = match_request.read_resource(request).node_facts
    assert len([name for name in facts if name.startswith("N0_")]) == 40
    assert discovery.FAILED in facts
    assert facts.get("memory", facts.get("Memory")) == 1
