"""`pilotage config import classad` and `export classad`, by the command, with a service."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from pilotage.cli.commands.config import edit
from pilotage.cli.connection import ServiceOptions
from tests.support.commands import Run, run, send_to
from tests.support.service import Service, running

__all__ = ["run"]

SEED = Path(__file__).parents[2] / "data" / "glue_ce.ad"
QUEUE = "EGEE.Milano.it/atlfarm006.mi.infn.it:2119/blah-pbs-long"
TREE = "Resources: {Sites: {LCG.A.org: {CEs: {ce1: {Queues: {long: {CPUTime: 100000}}}}}}}\n"


@pytest.fixture
def service(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with running(engine, tmp_path, TREE) as service:
        send_to(service, tmp_path, monkeypatch)
        yield service


def in_json(run: Run, *arguments: object) -> Any:
    status, out, err = run(*arguments, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def test_an_ad_is_shown_then_applied_and_then_nothing_is_left_to_change(service: Service, run: Run) -> None:
    ask = ("config", "import", "classad", SEED, "--site", "EGEE.Milano.it")
    status, out, err = run(*ask)
    assert (status, err) == (0, "")
    assert f"{QUEUE} (new)" in out
    assert "  + GlueHostBenchmarkSI00 = 400" in out
    assert "queues: 1 new, 0 changed, 0 as they are; parameters: 69 added" in out
    assert "nothing is stored, --apply does it" in out
    assert service.parts.live.current.version == 1

    applied = in_json(run, *ask, "--apply", "-m", "the farm of Milano")
    assert (applied["applied"], applied["version"], applied["new"]) == (True, 2, [QUEUE])
    again = in_json(run, *ask, "--apply")
    assert (again["applied"], again["version"], again["changes"]) == (False, 2, [])
    newest, _ = in_json(run, "config", "history")["versions"]
    assert (newest["message"], newest["author"]) == ("the farm of Milano", "root")


def test_what_was_imported_is_exported_and_is_the_same_again(
    service: Service, run: Run, tmp_path: Path
) -> None:
    run("config", "import", "classad", SEED, "--site", "EGEE.Milano.it", "--apply")
    exported = tmp_path / "ces.ad"
    status, out, err = run("config", "export", "classad", "EGEE.Milano.it")
    assert (status, err) == (0, "")
    exported.write_text(out)
    assert in_json(run, "config", "import", "classad", exported)["changes"] == []
    assert len(in_json(run, "config", "export", "classad")["queues"]) == 2
    status, _, err = run("config", "export", "classad", "LCG.A.org/ce1/lnog")
    assert (status, err.strip()) == (
        1,
        "pilotage: path LCG.A.org/ce1/lnog does not exist, did you mean LCG.A.org/ce1/long?",
    )


def test_fresh_values_are_a_version_and_stale_ones_are_none(
    service: Service, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "state.ad"
    for time, version in ((100, 2), (200, 3), (150, 3), (200, 3)):
        file.write_text(f'[id = "ce1/long"; update_time = {time}; expiry_time = 60; FreeCPUs = 4]')
        run("config", "import", "classad", file, "--apply")
        assert service.parts.live.current.version == version


def test_a_queue_shows_what_has_expired(service: Service, run: Run) -> None:
    run("config", "import", "classad", SEED, "--site", "EGEE.Milano.it", "--apply")
    shown = in_json(run, "queue", "show", QUEUE)
    assert (shown["expired"]["GlueCEStateFreeCPUs"], shown["parameters"]["SI00"]) == (1, 400)
    assert "GlueCEStateFreeCPUs" not in shown["parameters"]
    assert "expired, it was Production" in run("queue", "show", QUEUE)[1]


def test_another_version_meanwhile_is_a_conflict_and_changes_nothing(
    service: Service, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = edit.fetch_configuration

    def fetch_then_somebody_else(service_options: ServiceOptions) -> Any:
        found = fetch(service_options)
        service.configure(TREE.replace("100000", "200000"))
        return found

    monkeypatch.setattr(edit, "fetch_configuration", fetch_then_somebody_else)
    status, out, err = run("config", "import", "classad", SEED, "--site", "S", "--apply")
    assert (status, out) == (1, "")
    assert "version 2" in err
    assert service.parts.live.current.version == 2


def test_only_who_may_change_the_configuration_applies(
    service: Service, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOTAGE_TOKEN", service.token("user", vo="cms", user="ada"))
    status, out, _ = run("config", "import", "classad", SEED, "--site", "S")
    assert (status, "(new)" in out) == (0, True)
    status, out, err = run("config", "import", "classad", SEED, "--site", "S", "--apply")
    assert (status, out, len(err.splitlines())) == (1, "", 1)
    assert service.parts.live.current.version == 1


def test_a_file_serves_without_a_service(run: Run, tmp_path: Path) -> None:
    tree = tmp_path / "resources.yaml"
    tree.write_text(TREE)
    ask = ("config", "import", "classad", SEED, "--site", "EGEE.Milano.it", "--file", tree)
    status, out, _ = run(*ask, "--yaml")
    assert status == 0
    tree.write_text(out)
    assert in_json(run, *ask)["counts"] == {
        "new": 0, "changed": 0, "same": 1, "added": 0, "other": 0, "removed": 0,
    }  # fmt: skip
    assert run(*ask, "--apply")[0] == 2
    assert "GlueCEPolicyMaxCPUTime = 172800;" in run("config", "export", "classad", "--file", tree)[1]


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("", 2, "there is no ad"),
        ('[id = "a/b"; x = ;]', 2, "ces.ad:1:18"),
        ('[id = "a/b"]\n[info = []]', 2, "ces.ad:2"),
        (None, 1, "ces.ad: No such file or directory"),
    ],
)
def test_a_mistake_is_told_in_a_line(
    run: Run, tmp_path: Path, text: str | None, status: int, said: str
) -> None:
    file = tmp_path / "ces.ad"
    if text is not None:
        file.write_text(text)
    (tmp_path / "tree.yaml").write_text("Resources: {}\n")
    found, out, err = run("config", "import", "classad", file, "--file", tmp_path / "tree.yaml")
    assert (found, out, len(err.splitlines())) == (status, "", 1)
    assert said in err
