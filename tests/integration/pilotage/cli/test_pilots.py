"""`pilotage pilots …` against a real service, each command as it is typed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.commands import Run, run, send_to
from tests.support.service import Service

__all__ = ["run"]

LONG, SHORT = "LCG.A.org/ce1/long", "LCG.A.org/ce1/short"
#: What a command prints that ends with a status.
Print = Callable[..., str]


@pytest.fixture
def printed(service: Service, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Print:
    send_to(service, tmp_path / "nobody", monkeypatch, "director", vo="cms")
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

    def run_pilots(*words: str, status: int = 0) -> str:
        ended, out, err = run("pilots", *words)
        assert ended == status, err
        return out + err

    return run_pilots


def test_the_list_says_where_pilots_are_and_why_they_ended(printed: Print):
    said = printed("list")
    assert "one of 2" in said
    assert f"{LONG}" in said
    assert "exit 3, last words" in said
    listed = json.loads(printed("list", "--status", "Aborted", "--json"))["pilots"]
    assert [pilot["stamp"] for pilot in listed] == ["north.any.1"]


def test_one_is_shown_with_the_end_of_what_it_wrote(printed: Print):
    said = printed("show", "north.any.1")
    assert "End of the standard error:\n\\x1b[31mno such [library]" in said
    assert "standard output" not in said
    assert json.loads(printed("show", "north.any.2", "--json"))["output"] is None
    assert "pilot nobody does not exist" in printed("show", "nobody", status=1)


def test_the_summary_says_what_queues_are_worth_and_why_pilots_got_nothing(printed: Print):
    assert "0%" in printed("summary")
    [row] = json.loads(printed("summary", "--by", "queue", "--status", "Done,Aborted", "--json"))["summary"]
    assert (row["queue"], row["empty"], row["broken"], row["quality"]) == (LONG, 1, 1, 0.0)
    assert "no_task_queue" in printed("summary", "--by", "empty_reason")
    assert "did you mean queue" in printed("summary", "--by", "qeue", status=2)
    assert "no pilot was active or ended" in printed("summary", "--status", "Deleted")
