"""ARC CE beyond the checks that every batch system passes: tokens, environments, and a CE that is away."""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from examples.servers.starting import wait_until
from pilotage.fabric.batch.batch_system import (
    ENDED,
    BatchJob,
    BatchSystemAway,
    Handle,
    JobReport,
    JobResources,
    State,
    SubmissionRefused,
)
from pilotage.plugins.arc.arc import Arc
from pilotage.plugins.arc.rest import ArcRest, Credentials
from pilotage.plugins.batch_check import command
from tests.support.factories.grid_jobs import Site, ended, montecarlo, output, until
from tests.support.servers.arc import ArcCe

pytestmark = pytest.mark.debian("arc")

Connected = Callable[..., Arc]


@pytest.fixture
def connected(arc_ce: ArcCe) -> Iterator[Connected]:
    """Makes the adapter, with the certificate unless another proof is given."""
    opened: list[ArcRest] = []

    def make(**proof: Path) -> Arc:
        proof = proof or {"certificate": arc_ce.certificate, "key": arc_ce.key}
        opened.append(ArcRest(arc_ce.url, Credentials(authorities=arc_ce.authorities, **proof)))
        return Arc(rest=opened[-1])

    yield make
    for each in opened:
        each.close()


def job(script: str = ":", **asked: object) -> BatchJob:
    values = {"queue": "fork", **asked}
    return BatchJob(stamp=f"test-{uuid.uuid4()}", script=f"#!/bin/sh\n{script}\n", **values)  # type: ignore[arg-type]


def submit(system: Arc, job: BatchJob) -> Handle:
    return Handle(stamp=job.stamp, reference=system.submit(job))


def all_ended(system: Arc, handles: list[Handle]) -> dict[str, JobReport]:
    deadline = time.monotonic() + 300
    while True:
        found = system.status(handles)
        if {each.state for each in found.values()} <= ENDED:
            return dict(found)
        assert time.monotonic() < deadline, found
        time.sleep(0.5)


def test_jobs_by_token_and_by_certificate_run_and_are_removed(
    connected: Connected, arc_ce: ArcCe, tmp_path: Path
) -> None:
    by_token, by_certificate = connected(token_file=arc_ce.token()), connected()
    one = submit(by_token, job("echo by token; exit 3", resources=JobResources(memory=100, wall_time=300)))
    environment = "APPS/TEST one two&<three>"
    two = submit(by_certificate, job("echo by certificate; echo $TEST_OPTIONS", flags=(environment,)))
    assert by_token.find([one.stamp]) == {one.stamp: (one.reference,)}
    assert one.stamp not in by_certificate.find([one.stamp]), "another identity, another user"

    failed = all_ended(by_token, [one])[one.stamp]
    assert (failed.state, failed.exit_code) == (State.FAILED, 3)
    assert by_token.output(one).stdout == b"by token\n"
    done = all_ended(by_certificate, [two])[two.stamp]
    assert (done.state, done.exit_code) == (State.DONE, 0)
    assert by_certificate.output(two).stdout == b"by certificate\none two&<three>\n"

    anew = connected()
    assert anew.find([two.stamp]) == {two.stamp: (two.reference,)}, "known without having been seen"
    by_token.forget([one])
    by_certificate.forget([two])
    wait_until(lambda: by_token.status([one])[one.stamp].state is State.MISSING)


def test_a_gateway_forwards_a_grid_job_without_a_shared_directory(
    connected: Connected, arc_ce: ArcCe, tmp_path: Path
) -> None:
    system = connected()
    site = Site(directory=tmp_path, system=system, shared=tmp_path / "none", batch_queue="fork")
    manager = site.manager()
    manager.journal.take(montecarlo(500, 250, Seed=40, FirstEvent=0))
    try:
        job = until(manager, ended)
        files = output(job)
        assert job.outcome is not None
        assert job.outcome.application_status == "2 of 2 local jobs done", files["manager.log"]
        assert [files[f"events.txt.{n}"].strip() for n in (1, 2)] == ["0 250 40", "250 250 41"]
        manager.journal.forget(job.taken.key)
        manager.advance()
        assert manager.grid_jobs() == []
    finally:
        site.close()


def test_a_ce_that_is_away_is_not_asked_in_vain(connected: Connected, arc_ce: ArcCe) -> None:
    system = connected()
    handle = submit(system, job())
    arc_ce.stop_door()
    try:
        with pytest.raises(BatchSystemAway, match="cannot be reached"):
            system.status([handle])
        with pytest.raises(BatchSystemAway, match="cannot be reached"):
            system.submit(job())
    finally:
        arc_ce.start_door()
    assert all_ended(system, [handle])[handle.stamp].state is State.DONE
    system.forget([handle])


def test_the_command_checks_a_ce_that_a_file_describes(
    arc_ce: ArcCe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ce.yaml"
    file.write_text(f"{{url: {arc_ce.url}, token_file: {arc_ce.token()}, authorities: {arc_ce.authorities}}}")
    only = [word for name in ("refusal", "capacity_is_told", "full_spool") for word in ("--only", name)]
    with pytest.raises(SystemExit) as ended:
        command.main(["arc", "--ce", str(file), "--queue", "fork", "--json", *only])
    outcomes = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0, outcomes


def test_a_renewed_token_is_taken_up(connected: Connected, arc_ce: ArcCe, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("expired")
    system = connected(token_file=file)
    with pytest.raises(BatchSystemAway, match="403"):
        system.find(["test-nobody"])
    file.write_bytes(arc_ce.token().read_bytes())
    assert system.find(["test-nobody"]) == {}


def test_a_ce_whose_authority_is_not_known_is_not_believed(connected: Connected, arc_ce: ArcCe) -> None:
    rest = ArcRest(arc_ce.url, Credentials(token_file=arc_ce.token()))
    with closing(rest), pytest.raises(BatchSystemAway, match="certificate verify failed"):
        Arc(rest=rest).find(["test-nobody"])


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"queue": "a&<b>"}, "a&<b>"),
        ({"flags": ("--constraint=x",)}, "no runtime environment"),
        ({"resources": JobResources(gpus=1)}, "requires 1 GPU;"),
    ],
)
def test_what_will_never_be_taken_is_refused(
    connected: Connected, asked: dict[str, object], words: str
) -> None:
    system, wrong = connected(), job(**asked)
    with pytest.raises(SubmissionRefused, match=words):
        system.submit(wrong)
    assert system.find([wrong.stamp]) == {}
