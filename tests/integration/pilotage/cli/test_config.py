"""`pilotage config set`, `apply`, `preview`, `diff`, `history`, `rollback` by the command, with a service."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from pilotage.cli import doctor, settings
from pilotage.cli.doctor import Finding, Health
from tests.support.commands import Run, run, send_to
from tests.support.service import Service

__all__ = ["run"]

TREE = """# ours
Resources:
  Sites:
    LCG.A.org:
      CEs:
        ce1:
          MaxRAM: 4000  # of the CE
          Queues: {long: {CPUTime: 100000, VOs: {dune: {MaxRAM: 5000}}}}
Operations:
  Defaults: {JobDescription: {Memory: {type: number, resource: MaxRAM}}}
"""
CE = "Resources/Sites/LCG.A.org/CEs/ce1"


pytestmark = pytest.mark.config(TREE)


@pytest.fixture
def service(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    send_to(service, tmp_path, monkeypatch)
    return service


@pytest.fixture
def as_cms(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTAGE_TOKEN", service.token("vo_admin", vo="cms", user="eve"))


def in_json(run: Run, *arguments: object) -> Any:
    status, out, err = run(*arguments, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def text(service: Service) -> str:
    return service.parts.live.current.source


def test_a_wrong_value_is_named_without_a_line_of_a_text_that_nobody_has(service: Service, run: Run) -> None:
    status, _, problem = run("config", "set", f"{CE}/MaxRAM=abc")
    assert status == 2
    assert "'abc' is not allowed here" in problem
    assert "(api" not in problem


def test_values_are_set_as_they_would_be_written_and_comments_stay(service: Service, run: Run) -> None:
    status, out, _ = run("config", "set", f"{CE}/MaxRAM=8000", f"{CE}/OS=[el8, el9]", "-m", "more")
    assert status == 0
    assert f"~ {CE}/MaxRAM = 8000 (was 4000)" in out
    assert f"+ {CE}/OS = [el8, el9]" in out
    assert "version 2 is in force" in out
    assert "MaxRAM: 8000  # of the CE" in text(service)
    done = in_json(run, "config", "set", f"{CE}/Throttle={{Policy: level0}}", "--remove", f"{CE}/OS")
    assert [(each["path"], each["change"]) for each in done["changes"]] == [
        (f"{CE}/OS", "removed"),
        (f"{CE}/Throttle", "added"),
    ]
    assert "nothing changed, version 3" in run("config", "set", f"{CE}/MaxRAM=8000")[1]


def test_a_limit_of_a_vo_that_does_not_exist_is_stored_with_a_warning(
    service: Service, run: Run, tmp_path: Path, engine: Engine, now: datetime
) -> None:
    def find_in_doctor() -> Finding:
        url = engine.url.render_as_string(hide_password=False)
        chosen = settings.load({"home": tmp_path, "database_url": url}, {})
        [found] = [each for each in doctor.check_database(chosen, now) if each.subject == "configuration"]
        return found

    assert find_in_doctor().health is Health.GOOD
    limit = "Resources/Sites/LCG.A.org/RunningLimit/VO/dun"
    line = f"warning: {limit}: nothing else in the configuration names this VO, did you mean dune?"
    assert line in run("config", "preview", "--set", f"{limit}=3")[1]
    status, out, _ = run("config", "set", f"{limit}=3")
    assert (status, line in out, "version 2 is in force" in out) == (0, True, True)
    found = find_in_doctor()
    assert (found.health, f"such as {line.removeprefix('warning: ')}" in found.message) == (
        Health.WARNING,
        True,
    )
    assert "warning" not in run("config", "set", f"{CE}/MaxRAM=8000")[1], "no new one"
    file = tmp_path / "resources.yaml"
    file.write_text(text(service).replace("dun:", "dunee:"))
    [warning] = in_json(run, "config", "apply", file)["warnings"]
    assert (warning["path"], warning["suggestion"]) == (f"{limit}ee", "dune")
    assert f"warning: {limit}: " in run("config", "rollback", 2)[1]


def test_beside_many_warnings_the_new_ones_are_shown_and_the_rest_of_them_is_counted(
    service: Service, run: Run, tmp_path: Path
) -> None:
    limits = "Operations/Defaults/JobScheduling/RunningLimit"
    many = {f"S{number}": {"JobType": {"Any": 1}} for number in range(160)}
    status, out, _ = run("config", "set", f"{limits}={json.dumps(many)}", "--yes")
    assert (status, out.count("warning: "), "… and 60 more warnings" in out) == (0, 100, True)
    done = in_json(run, "config", "set", f"{limits}/Zuerich/JobType/Any=1")
    assert [each["path"] for each in done["warnings"]] == [f"{limits}/Zuerich"]
    assert done["more_warnings"] == 0
    file = tmp_path / "resources.yaml"
    file.write_text(text(service).replace("Zuerich", "Zug").replace("S1", "T1"))
    found = in_json(run, "config", "apply", file)
    assert (len(found["warnings"]), found["more_warnings"]) == (72, 0)
    _, _, err = run("config", "check", file)
    assert (err.count("warning: "), "… and 61 more (--json lists all)" in err) == (100, True)


@pytest.mark.parametrize(
    "words",
    [(), ("MaxRAM",), ("=5",), ("a/b=[1",), ("a/b=1\nc: 2",), ("a/b={x: 1}}",)],
)
def test_words_that_are_no_edit_are_refused_before_anything_is_sent(
    service: Service, run: Run, words: tuple[str, ...]
) -> None:
    assert run("config", "set", *words)[0] == 2
    assert service.parts.live.current.version == 1


def test_a_preview_is_shown_then_a_guard_holds_the_change_back(
    service: Service, run: Run, tmp_path: Path
) -> None:
    jobs = [{"Executable": "x", "Requirements": {"Memory": 3000}}] * 3
    assert service.user().post("/api/v1/jobs", json={"jobs": jobs}).status_code == 201
    file = tmp_path / "smaller.yaml"
    file.write_text(TREE.replace("4000", "2000"))
    status, out, _ = run("config", "preview", file)
    assert status == 0
    assert f"~ {CE}/MaxRAM = 2000 (was 4000)" in out
    assert "3 jobs of cms, such as 1, become stuck without LCG.A.org/ce1/long" in out
    assert "0 gain queues, 1 lose some, 1 are left without any" in out
    assert in_json(run, "config", "preview", "--set", f"{CE}/MaxRAM=2000")["totals"]["stuck_jobs"] == 3
    assert "pilotage replay" not in out
    _, out, _ = run("config", "preview", "--set", f"{CE}/Queues/short/CPUTime=100")
    assert f"pilotage replay --from 1d --set {CE}/Queues/short/CPUTime=100" in out
    assert "1 queue is new: LCG.A.org/ce1/short" in out
    status, _, err = run("config", "apply", file, "--guard", "stuck_jobs=0")
    assert (status, service.parts.live.current.version) == (1, 1)
    assert "stuck_jobs=0: there would be 3" in err
    assert run("config", "set", f"{CE}/MaxRAM=2000", "--guard", "stuck_jobs=0")[0] == 1
    assert run("config", "apply", file, "--guard", "stuck_jobs<=3")[0] == 0
    assert "nothing would change" in run("config", "preview", file)[2]
    unchanged = in_json(run, "config", "preview", file)
    assert (unchanged["changes"], unchanged["totals"]["stuck_jobs"]) == ([], 0)


def test_a_floor_that_falls_or_goes_is_told_by_a_preview_and_held_back_by_a_guard(
    service: Service, run: Run
) -> None:
    floor = "Resources/Sites/LCG.A.org/Floors/cms"
    assert run("config", "set", f"{floor}=20")[0] == 0
    there = "it has 0 cores there, 0 waiting jobs fit"
    falls = f"the floor of cms at LCG.A.org becomes {{}} instead of 20 cores: {there}"
    assert falls.format("5 cores") in run("config", "preview", "--set", f"{floor}=5")[1]
    assert falls.format("none") in run("config", "preview", "--remove", floor)[1]
    status, _, err = run("config", "set", "--remove", floor, "--guard", "lowered_floors=0")
    assert (status, "lowered_floors=0: there would be 1" in err) == (1, True)
    assert "the floor of" not in run("config", "preview", "--set", f"{floor}=30")[1]


def test_what_a_value_decides_about_is_told_for_what_queues_require_too(service: Service, run: Run) -> None:
    """And jobs that gain queues are no pools that do: these have queues by their Requirements alone."""
    service.submit({"Executable": "x"}, {"Executable": "x", "CPUTime": 400_000})
    out = run("config", "preview", "--set", f"{CE}/RequiredTag=[gpu]", "--set", f"{CE}/Tag=[gpu]")[1]
    assert "RequiredTag: it decides about 2 waiting jobs of cms, and lets none in there" in out
    out = run("config", "preview", "--set", f"{CE}/Queues/long/CPUTime=600000")[1]
    assert "pools, by Requirements alone: 0 gain queues, 0 lose some, 0 are left without any" in out
    [cms] = (line.split() for line in out.splitlines() if line.strip().startswith("cms"))
    assert cms[-2] != "–", "a job gains a queue"


def test_the_end_of_a_temporary_value_by_a_change_is_told_by_a_preview(service: Service, run: Run) -> None:
    floor = "Resources/Sites/LCG.A.org/Floors/cms"
    for value, time in ((20, ()), (5, ("--for", "2d")), (2, ("--for", "2h"))):
        assert run("config", "set", f"{floor}={value}", *time)[0] == 0
    rows = [line.split() for line in run("config", "temporary")[1].splitlines() if floor in line]
    assert [row[1:3] for row in rows] == [["2", "5"], ["5", "20"]]
    for change in (("--remove", floor), ("--set", f"{floor}=7")):
        told = " ".join(run("config", "preview", *change)[1].split())
        assert all(f"{floor} is temporary: {value} does not come back at 20" in told for value in (5, 20))
    assert "is temporary" not in run("config", "preview", "--set", "Resources/Sites/LCG.A.org/MaxRAM=9")[1]


def test_versions_are_listed_compared_and_taken_back(service: Service, run: Run, tmp_path: Path) -> None:
    run("config", "set", f"{CE}/MaxRAM=8000", "-m", "more memory")
    run("config", "set", f"{CE}/Cores=8")
    _, out, _ = run("config", "history", "--path", f"{CE}/MaxRAM")
    assert "more memory" in out
    assert "Cores" not in out
    assert run("config", "diff", "--from", 1, "--to", 2)[1] == f"~ {CE}/MaxRAM = 8000 (was 4000)\n"
    file = tmp_path / "other.yaml"
    file.write_text(text(service).replace("8000", "9000"))
    assert run("config", "diff", file)[1] == f"~ {CE}/MaxRAM = 9000 (was 8000)\n"
    assert run("config", "diff")[0] == 2
    status, out, _ = run("config", "rollback", 1, "-m", "too much")
    assert (status, text(service)) == (0, TREE)
    assert "back to version 1: too much" in run("config", "history")[1]
    assert "version 4 is in force" in out
    assert run("config", "rollback", 77)[0] == 1


def test_a_value_is_shown_with_who_wrote_it(service: Service, run: Run) -> None:
    jobs = {"jobs": [{"Executable": "x", "Requirements": {"Memory": 9000}}]}
    assert service.user().post("/api/v1/jobs", json=jobs).status_code == 201
    run("config", "set", f"{CE}/MaxRAM=8000")
    show = ("config", "show", "LCG.A.org/ce1/long", "--vo", "cms", "--blame")
    [ram] = [line for line in run(*show)[1].splitlines() if "MaxRAM" in line]
    assert ram.split()[:2] == ["MaxRAM", "8000"]
    assert "root" in ram
    assert ram.split()[-2:] == ["2", "1"]
    [blamed] = [each for each in in_json(run, *show)["values"] if each["path"] == "MaxRAM"]
    assert blamed["excludes"] == {"jobs": 1, "only_this": 1}
    assert run(*show, "--file", "x.yaml")[0] == 2


@pytest.mark.usefixtures("as_cms")
def test_a_vo_admin_sets_previews_applies_and_takes_back_his_own(
    service: Service, run: Run, tmp_path: Path
) -> None:
    own = f"{CE}/Queues/long/VOs/cms/MaxRAM"
    assert run("config", "set", f"{own}=9000")[0] == 0
    status, _, err = run("config", "set", f"{CE}/MaxRAM=1")
    assert status == 1
    assert f"{CE}/MaxRAM: not yours to change" in err
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(service.as_role("vo_admin", vo="cms").get("/api/v1/config").json()["config"]))
    assert "nothing changed" in run("config", "apply", file)[1]
    file.write_text(file.read_text().replace("9000", "9500"))
    assert run("config", "diff", file)[1] == f"~ {own} = 9500 (was 9000)\n"
    assert in_json(run, "config", "preview", file)["changes"][0]["after"] == 9500
    assert run("config", "apply", file)[0] == 0
    assert "MaxRAM: 5000" in text(service)
    assert run("config", "rollback", 1)[0] == 0
    assert "cms" not in text(service)


def test_one_command_changes_many_places_after_a_preview(service: Service, run: Run) -> None:
    everywhere = "Resources/Sites/*/CEs/*/Queues/*/VOs/cms/SoftwareTag+=v7"
    status, _, err = run("config", "set", everywhere)
    assert (status, "needs --yes" in err, "SoftwareTag: [v7]" in err) == (2, True, True)
    assert service.parts.live.current.version == 1
    shown = in_json(run, "config", "preview", "--set", everywhere, "--where", "MaxRAM=4000")
    assert [each["path"] for each in shown["changes"]] == [f"{CE}/Queues/long/VOs/cms"]
    assert run("config", "set", everywhere, "--where", "MaxRAM=4001")[0] == 2
    assert run("config", "set", everywhere, "--where", "MaxRAM=4000", "--yes")[0] == 0
    assert "nothing changed, version 2" in run("config", "set", everywhere)[1]
    unchanged = in_json(run, "config", "preview", "--set", everywhere)
    assert (unchanged["version"], unchanged["changes"]) == (2, [])
    assert "nothing would change in version 2" in run("config", "preview", "--set", everywhere)[2]
    assert unchanged.keys() == shown.keys()
    assert unchanged["totals"] == dict.fromkeys(shown["totals"], 0)
    assert "[v7, v8]" in run("config", "set", everywhere.replace("=v7", "=v8"), "--yes")[1]


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize(("written", "is_one"), [("v7,v8", True), ("[v7, v8]", False), ("'v7,v8'", False)])
def test_a_text_with_commas_is_added_as_one_item_with_a_warning_unless_it_is_quoted(
    run: Run, written: str, is_one: bool
) -> None:
    path = f"{CE}/Queues/long/VOs/cms/SoftwareTag"
    _, _, err = run("config", "preview", "--set", f"{path}+={written}")
    warned = f"warning: {path}: 'v7,v8' is one item; several are written as '{path}+=[v7,v8]'"
    assert (warned in err) == is_one


@pytest.mark.usefixtures("as_cms")
def test_a_bulk_edit_has_the_rights_of_its_author(run: Run) -> None:
    status, _, err = run("config", "set", "Resources/Sites/*/MaxRAM=1", "--yes")
    assert (status, "not yours to change" in err) == (1, True)
    assert run("config", "set", "Resources/Sites/*/VOs/cms/MaxRAM=1", "--yes")[0] == 0


def test_a_change_for_some_hours_says_when_it_reverts_and_is_listed(service: Service, run: Run) -> None:
    status, out, _ = run("config", "set", f"{CE}/MaxRAM=8000", "--for", "6h")
    assert status == 0
    assert "reverts at " in out
    [row] = in_json(run, "config", "temporary", f"{CE}")["values"]
    assert (row["path"], row["value"], row["restored"], row["version"]) == (f"{CE}/MaxRAM", 8000, 4000, 2)
    assert "4000" in run("config", "temporary")[1]
    assert in_json(run, "config", "history")["versions"][0]["reverts_at"] == row["reverts_at"]
    status, _, err = run("config", "set", f"{CE}/MaxRAM=9000", "--for", "6 hours")
    assert (status, "'6 hours' is not a duration; allowed are 90s, 30m, 6h, 2d" in err) == (2, True)


@pytest.mark.usefixtures("service")
def test_one_command_keeps_temporary_values_of_many_places(run: Run) -> None:
    run("config", "set", f"{CE}/MaxRAM=8000", "--for", "6h")
    everywhere = "Resources/Sites/*/CEs/*/MaxRAM=8000"
    status, out, _ = run("config", "set", everywhere, "--yes", "--for", "12h")
    assert (status, "reverts at " in out) == (0, True)
    assert len(in_json(run, "config", "temporary")["values"]) == 1
    assert "nothing changed" in run("config", "set", everywhere, "--yes")[1]
    assert in_json(run, "config", "temporary")["values"] == []
