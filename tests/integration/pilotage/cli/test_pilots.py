"""`pilotage pilots …` against a real service, each command as it is typed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotage.cli import application
from tests.support.service import Service

LONG, SHORT = "LCG.A.org/ce1/long", "LCG.A.org/ce1/short"
#: Standard output of a command that did what it was to.
Run = Callable[..., str]


@pytest.fixture
def run(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Run:
    monkeypatch.setenv("PILOTAGE_HOME", str(tmp_path / "nobody"))
    monkeypatch.setenv("PILOTAGE_URL", service.url)
    monkeypatch.setenv("PILOTAGE_TOKEN", service.token("director", vo="cms"))
    director = service.as_role("director", vo="cms")
    director.post("/api/v1/pilots", json={"stamp": "north.any.1", "queue": LONG})
    director.post(
        "/api/v1/pilots/north.any.1/status", json={"status": "Aborted", "reason": "\nexit 3\nlast words"}
    )
    director.post("/api/v1/pilots/north.any.1/output", json={"stderr": "\x1b[31mno such [library]"})
    director.post("/api/v1/pilots", json={"stamp": "north.any.2", "queue": LONG})
    director.post(
        "/api/v1/pilots/north.any.2/status", json={"status": "Done", "empty_reason": "no_task_queue"}
    )
    director.post("/api/v1/pilots", json={"stamp": "north.wms.any.3", "possible_queues": [LONG, SHORT]})

    def command(*words: str, status: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            application.main(["pilots", *words])
        said = capsys.readouterr()
        assert ended.value.code == status, said.err
        return said.out + said.err

    return command


def test_the_list_says_where_pilots_are_and_why_they_ended(run: Run):
    said = run("list")
    assert "one of 2" in said
    assert f"{LONG}" in said
    assert "exit 3, last words" in said
    listed = json.loads(run("list", "--status", "Aborted", "--json"))["pilots"]
    assert [pilot["stamp"] for pilot in listed] == ["north.any.1"]


def test_one_is_shown_with_the_end_of_what_it_wrote(run: Run):
    said = run("show", "north.any.1")
    assert "End of the standard error:\n\\x1b[31mno such [library]" in said
    assert "standard output" not in said
    assert json.loads(run("show", "north.any.2", "--json"))["output"] is None
    assert "pilot nobody does not exist" in run("show", "nobody", status=1)


def test_the_summary_says_what_queues_are_worth_and_why_pilots_got_nothing(run: Run):
    assert "0%" in run("summary")
    [row] = json.loads(run("summary", "--by", "queue", "--status", "Done,Aborted", "--json"))["summary"]
    assert (row["queue"], row["empty"], row["broken"], row["quality"]) == (LONG, 1, 1, 0.0)
    assert "no_task_queue" in run("summary", "--by", "empty_reason")
    assert "did you mean queue" in run("summary", "--by", "qeue", status=2)
    assert "no pilot was active or ended" in run("summary", "--status", "Deleted")
