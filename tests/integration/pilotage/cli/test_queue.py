"""`pilotage queue drain` and `resume` against a real service."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pilotage.cli import application
from tests.running_service import Service

SITE, QUEUE = "LCG.A.org", "LCG.A.org/ce1/long"
ASKED = {"Site": SITE, "GridCE": "ce1", "Queue": "long", "CPUTime": 100000}
#: Answers of a command: exit status, standard output, standard error.
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    monkeypatch.setenv("PILOTAGE_HOME", str(tmp_path / "nobody"))
    monkeypatch.setenv("PILOTAGE_URL", service.url)
    monkeypatch.setenv("PILOTAGE_TOKEN", service.token("site_admin", site=SITE, user="eva"))

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            application.main(["queue", *words])
        said = capsys.readouterr()
        return int(str(ended.value.code)), said.out, said.err

    return run


def test_a_queue_is_drained_and_resumed(run: Run, service: Service) -> None:
    assert run("drain", QUEUE, "--reason", "new disks") == (0, f"{QUEUE}: gets no new jobs\n", "")
    pilot = service.pilot(QUEUE)
    assert pilot.post("/api/v1/matcher/requestJob", json=ASKED).json()["reason"] == "not_usable"
    [newest, *_] = service.operator().get("/api/v1/config/versions").json()["versions"]
    assert newest["message"] == "new disks"
    assert run("resume", QUEUE) == (0, f"{QUEUE}: gets jobs again\n", "")
    assert pilot.post("/api/v1/matcher/requestJob", json=ASKED).json()["reason"] == "no_task_queue"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("drain", "LCG.B.org/ce2/all"), "not yours to change"),
        (("drain", "LCG.A.org/ce1/longg"), "did you mean LCG.A.org/ce1/long?"),
        (("resume", QUEUE), "Enabled"),
    ],
)
def test_what_cannot_be_switched_is_refused(
    run: Run, service: Service, words: tuple[str, str], said: str
) -> None:
    version = service.parts.live.current.version
    status, _, error = run(*words)
    assert (status, said in error) == (1, True), error
    assert service.parts.live.current.version == version
