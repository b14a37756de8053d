"""A real HTCondor, entered by token as a CE is, beyond the checks that every batch system passes."""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from examples.servers.starting import wait_until
from pilotage.fabric.batch import htcondor
from pilotage.fabric.batch.batch_system import (
    BatchSystemAway,
    Handle,
    JobReport,
    State,
    SubmissionRefused,
    SubmissionUncertain,
)
from pilotage.fabric.batch.htcondor import HTCondor, RemoteSchedd
from pilotage.fabric.batch.shell import Completed, LocalShell
from pilotage.fabric.batch.work_area import WorkAreas
from pilotage.plugins.batch_check.conformance import Bench
from tests.support.servers.htcondor import HTCondorPool

pool_test = pytest.mark.debian("htcondor")


def opened(schedd: RemoteSchedd, directory: Path) -> HTCondor:
    shell = LocalShell(environment=htcondor.login_variables(schedd))
    return HTCondor(areas=WorkAreas(directory=str(directory), shell=shell), schedd=schedd)


@pytest.fixture
def bench(htcondor_pool: HTCondorPool, tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(system=opened(htcondor_pool.schedd, tmp_path), queue="short", patience=300)) as bench:
        yield bench


@pool_test
@pytest.mark.parametrize(
    ("script", "state", "exit_code"),
    [
        ("echo out; echo err >&2", State.DONE, 0),
        ("exit 3", State.FAILED, 3),
        ("kill -KILL $$", State.FAILED, 137),
    ],
)
def test_how_a_job_ended_is_known_in_the_queue_and_after_it(
    bench: Bench, script: str, state: State, exit_code: int
) -> None:
    handle = bench.submit(f"#!/bin/sh\n{script}\n")

    assert bench.until(handle, state).exit_code == exit_code
    output = bench.system.output(handle)
    assert (output.stdout, output.stderr) == ((b"out\n", b"err\n") if state is State.DONE else (b"", b""))

    bench.system.forget([handle])
    wait_until(lambda: not bench.system.find([handle.stamp]))
    assert bench.until(handle, state).exit_code == exit_code


@pool_test
def test_of_an_evicted_job_the_cause_is_reported_not_the_expression_that_removed_it(
    bench: Bench, htcondor_pool: HTCondorPool
) -> None:
    handle = bench.submit("#!/bin/sh\nsleep 300\n")
    reference = bench.until(handle, State.RUNNING).reference
    assert reference is not None
    assert htcondor_pool.shell.run(["condor_vacate_job", "-fast", reference]).status == 0
    assert bench.until(handle, State.KILLED).message.startswith("evicted, or its node was lost")


@pool_test
def test_a_flag_reaches_the_job(bench: Bench, htcondor_pool: HTCondorPool, tmp_path: Path) -> None:
    job = replace(bench.job("#!/bin/sh\n"), flags=("-append", 'environment = "COLOUR=red"'))
    job = replace(job, script="#!/bin/sh\necho $COLOUR\n")
    handle = Handle(stamp=job.stamp, reference=bench.system.submit(job))
    bench.until(handle, State.DONE)

    assert bench.system.output(handle).stdout == b"red\n"


@pool_test
def test_a_description_that_htcondor_cannot_read_is_refused(bench: Bench) -> None:
    job = replace(bench.job("#!/bin/sh\n"), flags=("-append", "requirements = ((("))
    with pytest.raises(SubmissionRefused, match="Parse error"):
        bench.system.submit(job)


@pool_test
@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"exp": 1_700_000_000}, "the token in .* expired at 2023-11-14 22:13 UTC: put a new one there"),
        ({"aud": "x"}, ""),
    ],
)
def test_a_token_that_does_not_open_costs_a_cycle_and_is_named(
    htcondor_pool: HTCondorPool, tmp_path: Path, claims: Mapping[str, object], message: str
) -> None:
    schedd = htcondor_pool.schedd.model_copy(update={"token_file": htcondor_pool.token(**claims)})
    bench = Bench(system=opened(schedd, tmp_path), queue="short")

    with pytest.raises(BatchSystemAway, match=f"Failed to authenticate.*{message}"):
        bench.submit("#!/bin/sh\n")


def test_a_ce_that_is_away_gets_nothing(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("x.y.z")
    schedd = RemoteSchedd(name="ce01", collector="127.0.0.1:9", token_file=token)
    system = opened(schedd, tmp_path)
    job = Bench(system=system, queue="short").job("#!/bin/sh\n")

    with pytest.raises(BatchSystemAway, match=r"collector 127\.0\.0\.1:9"):
        system.submit(job)
    with pytest.raises(BatchSystemAway, match=r"collector 127\.0\.0\.1:9"):
        system.capacity()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering(LocalShell):
    """A shell on which each command has one answer."""

    answer: str

    def run(self, *_: object, **__: object) -> Completed:
        return Completed(status=0, stdout=self.answer, stderr="")


def answering(tmp_path: Path, answer: str) -> HTCondor:
    return HTCondor(areas=WorkAreas(directory=str(tmp_path), shell=Answering(answer=answer)))


@pytest.mark.parametrize(
    ("ad", "state", "message"),
    [
        ('"JobStatus": 1', State.WAITING, ""),
        ('"JobStatus": 5, "HoldReason": "no such directory"', State.WAITING, "no such directory"),
        ('"JobStatus": 3, "RemoveReason": "by admin"', State.RUNNING, "by admin"),
        ('"JobStatus": 7', State.RUNNING, ""),
        ('"JobStatus": 9', State.UNKNOWN, ""),
    ],
)
def test_the_queue_says_how_a_job_stands(tmp_path: Path, ad: str, state: State, message: str) -> None:
    stamp = f"test-{uuid.uuid4()}"
    listed = f'{{"answer": [{{"ClusterId": 7, "ProcId": 0, "PilotageStamp": "{stamp}", {ad}}}]}}\n'

    report = answering(tmp_path, listed).status([Handle(stamp=stamp)])[stamp]

    assert report == JobReport(state=state, reference="7.0", message=message)


@pytest.mark.parametrize("answer", ["", "{", "[]\n", '{"answer": [{"ClusterId": 7}]}\n', "x\ny\n"])
def test_from_an_answer_that_is_none_nothing_follows(tmp_path: Path, answer: str) -> None:
    with pytest.raises(BatchSystemAway, match="HTCondor"):
        answering(tmp_path, answer).status([Handle(stamp=f"test-{uuid.uuid4()}")])


@pytest.mark.parametrize(
    ("kind", "error"),
    [("away", BatchSystemAway), ("refused", SubmissionRefused), ("uncertain", SubmissionUncertain)],
)
def test_what_became_of_a_submission_is_told_apart(tmp_path: Path, kind: str, error: type[Exception]) -> None:
    system = answering(tmp_path, f'{{"error": "why", "kind": "{kind}"}}\n')
    job = Bench(system=system, queue="htcondor").job("#!/bin/sh\n")
    with pytest.raises(error, match=f"{job.stamp}: why"):
        system.submit(job)


@pytest.mark.parametrize("flags", [("-append",), ("-name", "ce01"), ("x = 1",)])
def test_other_flags_are_refused_with_those_that_are_right(tmp_path: Path, flags: tuple[str, ...]) -> None:
    system = answering(tmp_path, "")
    job = replace(Bench(system=system, queue="htcondor").job("#!/bin/sh\n"), flags=flags)
    with pytest.raises(SubmissionRefused, match="pairs of -append and a line of a submit description"):
        system.submit(job)


@pytest.mark.parametrize(
    "line",
    [
        "include command : touch x",
        "rank = 1\ninclude command : touch x",
        "rank = 1\\",
        "queue 5",
        "transfer_input_files = /etc/pilotage/cms.token",
        '+TransferInput = "/etc/pilotage/cms.token"',
        'MY.Iwd = "/etc"',
        'environment = "A=$ENV(HOME)"',
    ],
)
def test_flags_of_a_queue_reach_nothing_of_the_host_of_the_director(tmp_path: Path, line: str) -> None:
    """The resource tree, which others write, may state them."""
    job = Bench(system=answering(tmp_path, ""), queue="htcondor").job("#!/bin/sh\n")
    with pytest.raises(SubmissionRefused, match=r": (flags|queue 5): "):
        answering(tmp_path, "").submit(replace(job, flags=("-append", line)))


def test_flags_of_a_system_may_set_any_command(tmp_path: Path) -> None:
    system = replace(
        answering(tmp_path, '{"answer": "7.0"}\n'), flags=("-append", "transfer_input_files = /etc/hostname")
    )
    job = Bench(system=system, queue="htcondor").job("#!/bin/sh\n")
    flags = ("-append", "request_disk = 5", "-append", '+ProjectName = "P"')
    assert system.submit(replace(job, flags=flags)) == "7.0"


def test_a_queue_of_the_tree_is_no_line_of_a_description(tmp_path: Path) -> None:
    system = answering(tmp_path, '{"answer": "7.0"}\n')
    remote = replace(system, schedd=RemoteSchedd(name="ce01", token_file=tmp_path / "token"))
    job = Bench(system=remote, queue='long"\ninclude command : touch x').job("#!/bin/sh\n")
    with pytest.raises(SubmissionRefused, match="is not a valid name of a queue"):
        remote.submit(job)
