"""A submission by the command line while the database fails over: repeated with its key, stored once."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from pilotage.cli import application
from pilotage.client import submission
from pilotage.client.api import wait_out
from pilotage.service.queries import jobs
from tests.support.commands import send_to
from tests.support.service import Service


@pytest.fixture
def keys(service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str | None]:
    """Of all submissions; the first is stored, but its commit is not confirmed, the second never comes."""
    send_to(service, tmp_path / "nobody", monkeypatch, "user", vo="cms", user="ada")
    submit, keys = jobs.submit, list[str | None]()

    def submit_during_failover(*words: Any, key: str | None, **options: Any) -> Any:
        keys.append(key)
        accepted = submit(*words, key=key, **options) if len(keys) != 2 else None
        if len(keys) <= 2:
            raise OperationalError("COMMIT", {}, Exception("the server has gone away"))
        return accepted

    monkeypatch.setattr(jobs, "submit", submit_during_failover)
    monkeypatch.setattr(submission, "wait_out", partial(wait_out, sleep=lambda _: None))
    return keys


def _submit(tmp_path: Path, words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[object, Any]:
    (tmp_path / "job.yaml").write_text("Executable: /bin/true\n")
    with pytest.raises(SystemExit) as ended:
        application.main(["job", "submit", str(tmp_path / "job.yaml"), *words])
    return ended.value.code, capsys.readouterr()


def test_a_submission_waits_out_a_failover_and_is_stored_once(
    service: Service, keys: list[str | None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = _submit(tmp_path, ["--json", "--patience", "300"], capsys)
    assert not code
    assert "trying again for 300 s" in said.err
    assert keys == [keys[0]] * 3 != [None] * 3
    [stored] = service.user().get("/api/v1/jobs").json()["jobs"]
    assert json.loads(said.out)["job_ids"] == [stored["job_id"]]


def test_without_patience_the_key_is_stated_that_ends_the_submission_later(
    service: Service, keys: list[str | None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = _submit(tmp_path, ["--patience", "0"], capsys)
    assert code == 1
    key = str(keys[0])
    assert key in said.err
    keys.append(None)  # the failover is over
    code, _ = _submit(tmp_path, ["--idempotency-key", key], capsys)
    assert not code
    assert len(service.user().get("/api/v1/jobs").json()["jobs"]) == 1
