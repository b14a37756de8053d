"""What is asked of HTCondor, as its own library reads it."""

import subprocess
from pathlib import Path

import classad2
import htcondor2
import pytest

from matcher.class_flags import find_flags
from pilotage.fabric.batch import htcondor
from pilotage.fabric.batch.batch_system import BatchJob, JobResources, State
from requirements.nodes.site_mapping import parse_mapping
from requirements.requirement_class import RequirementClass

STAMP = "north-any-0123456789"
DIRECTORY = f"/var/spool/our pilots/{STAMP}"


def described(
    resources: JobResources | None = None, *lines: str, queue: str = "htcondor", is_remote: bool = False
) -> htcondor2.Submit:
    job = BatchJob(
        stamp=STAMP,
        script="#!/bin/sh\n",
        queue=queue,
        resources=resources or JobResources(wall_time=7200),
    )
    return htcondor2.Submit(htcondor.describe(job, DIRECTORY, lines, is_remote=is_remote))


def is_removed(**job: object) -> object:
    ad = classad2.ClassAd({"NumJobStarts": 0, **job})
    ad["Remove"] = classad2.ExprTree(described().expand("periodic_remove"))
    return ad.eval("Remove")


def test_it_is_one_job_whose_files_lie_in_its_directory() -> None:
    submit = described()

    assert submit.getQArgs() == "1"
    files = {name: submit.expand(name) for name in ("executable", "output", "error")}
    assert files == {
        name: f"{DIRECTORY}/{file}"
        for name, file in (("executable", "job"), ("output", "out"), ("error", "err"))
    }
    assert submit["My.PilotageStamp"] == f'"{STAMP}"'


def test_cores_memory_gpus_and_a_whole_machine_are_asked_for() -> None:
    submit = described(JobResources(cores=4, memory=8000, gpus=1, whole_node=True))

    asked = {name: submit[name] for name in submit if name.startswith("request_")}
    assert asked == {"request_cpus": "4", "request_memory": "8000", "request_gpus": "1"}
    assert submit["My.RequiresWholeMachine"] == "true"


def test_local_disk_and_a_kind_of_gpu_that_jobs_need_are_asked_for() -> None:
    attributes = {
        "MaxScratch": {"min": "RequestDisk", "unit": "MB"},
        "GPUArchitecture": {"equal": "GPUs_DeviceName", "values": {"sm_90": "NVIDIA H100"}},
    }
    mapping = parse_mapping({"Vocabulary": "HTCondor", "Attributes": attributes})
    asked = RequirementClass(vo="cms", cpu_time=1, gpus=1, gpu_architecture="sm_90", scratch_mb=50_000)
    of_system = ("-append", 'requirements = TARGET.OpSys == "LINUX"')
    lines = htcondor.read_lines((*of_system, *find_flags(asked, mapping)), is_ours=False)

    submit = described(JobResources(gpus=1), *htcondor.join_requirements(lines))

    assert (submit["request_disk"], submit["request_gpus"]) == ("51200000", "1")
    assert submit["requirements"] == (
        '(TARGET.OpSys == "LINUX") && (TARGET.GPUs_DeviceName == "NVIDIA H100")'
    )


def test_administrators_see_what_it_is_for() -> None:
    job = BatchJob(stamp=STAMP, script="", queue="htcondor", about={"VO": "cms", "Owner": 'a"\nqueue 9'})
    submit = htcondor2.Submit(htcondor.describe(job, DIRECTORY))
    assert (submit["My.PilotageVO"], submit["My.PilotageOwner"]) == ('"cms"', '"a__queue_9"')
    assert submit.getQArgs() == "1"


@pytest.mark.parametrize(
    ("job", "removed"),
    [
        ({"JobStatus": 1}, False),
        ({"JobStatus": 1, "NumJobStarts": 1}, True),  # it was evicted, and would start again
        ({"JobStatus": 2, "NumJobStarts": 1, "JobCurrentStartDate": 2**40}, False),
        ({"JobStatus": 2, "NumJobStarts": 1, "JobCurrentStartDate": 1_000_000}, True),  # over its wall time
        ({"JobStatus": 5, "HoldReasonCode": 12, "EnteredCurrentStatus": 1_000_000}, True),
        ({"JobStatus": 5, "HoldReasonCode": 12, "EnteredCurrentStatus": 2**40}, False),
        ({"JobStatus": 5, "HoldReasonCode": 1, "EnteredCurrentStatus": 1_000_000}, False),  # by somebody
    ],
)
def test_htcondor_removes_what_must_not_go_on(job: dict[str, object], removed: bool) -> None:
    assert is_removed(**job) is removed


def test_a_ce_gets_the_resources_and_the_queue_by_its_own_names() -> None:
    resources = JobResources(cores=8, memory=16_000, wall_time=90_000, whole_node=True)

    submit = described(resources, queue="osg", is_remote=True)

    names = ("xcount", "maxMemory", "maxWallTime", "WantWholeNode", "remote_queue", "queue")
    assert [submit[f"My.{name}"] for name in names] == ["8", "16000", "1500", "true", '"osg"', '"osg"']


def test_the_last_of_several_requirements_holds() -> None:
    assert described(None, "request_memory = 5", "request_memory = 7")["request_memory"] == "7"


def test_a_job_that_ended_stays_in_the_queue_for_some_days() -> None:
    submit = described()
    for status, since, stays in (
        (4, 2**40, True),
        (4, 1_000_000, False),
        (3, 2**40, False),
        (2, 2**40, False),
    ):
        ad = classad2.ClassAd({"JobStatus": status, "EnteredCurrentStatus": since})
        ad["Stays"] = classad2.ExprTree(submit.expand("leave_in_queue"))
        assert ad.eval("Stays") is stays


def test_requirements_that_would_end_the_parentheses_around_them_are_refused() -> None:
    ours = "requirements = TARGET.Site"
    with pytest.raises(ValueError, match="not closed"):
        htcondor.join_requirements([ours, "requirements = TARGET.A) || (TARGET.B"])
    text = 'TARGET.A == ")" && (TARGET.B)'
    assert htcondor.join_requirements([ours, f"requirements = {text}"]) == [
        f"requirements = (TARGET.Site) && ({text})"
    ]


def test_requirements_of_the_site_and_of_a_job_hold_together() -> None:
    ours, its = 'requirements = TARGET.Site == "a" || TARGET.Old', "Requirements=TARGET.OS == 9"
    lines = htcondor.join_requirements([ours, "rank = 1", its])
    assert lines == ["rank = 1", 'requirements = (TARGET.Site == "a" || TARGET.Old) && (TARGET.OS == 9)']
    submit = htcondor2.Submit("\n".join(["executable = /bin/true", *lines]))
    assert submit["requirements"] == '(TARGET.Site == "a" || TARGET.Old) && (TARGET.OS == 9)'
    assert htcondor.join_requirements([its, "rank = 1"]) == [its, "rank = 1"]


@pytest.mark.parametrize("status", [0, 5])
def test_the_first_python_with_the_bindings_makes_a_call_and_no_other_one_whatever_fails(
    tmp_path: Path, status: int
) -> None:
    fakes = {
        "old": "exit 2",  # does not know -I
        "broken": "kill -SEGV $$",
        "missing": "exit 127",
        "having": f'[ "$3" = "import htcondor2" ] && exit; echo call >>{tmp_path}/log; cat; exit {status}',
        "later": f"echo later >>{tmp_path}/log",
    }
    for name, lines in fakes.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    pythons = [str(tmp_path / name) for name in ("none", *fakes)]
    done = choose_python(pythons)
    assert (done.returncode, done.stdout) == (status, "request")
    assert (tmp_path / "log").read_text() == "call\n"


def test_a_host_without_the_bindings_is_named(tmp_path: Path) -> None:
    done = choose_python([str(tmp_path / "none"), "false"])
    assert (done.returncode, "no Python with the bindings of HTCondor" in done.stderr) == (127, True)


def choose_python(pythons: list[str]) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", htcondor._CHOOSE, htcondor._TRY, *pythons]
    assert not [word for word in command if "\n" in word], "csh would refuse it as the shell of a login"
    return subprocess.run(command, input="request", capture_output=True, text=True)


_EXPRESSION = (
    "The job attribute PeriodicRemove expression '(JobStatus == 1 && NumJobStarts > 0)' evaluated to TRUE"
)


@pytest.mark.parametrize(
    ("ad", "why"),
    [
        ({"RemoveReason": "via condor_rm (by user root)"}, "via condor_rm (by user root)"),
        ({"RemoveReason": _EXPRESSION, "LastJobStatus": 1}, "evicted, or its node was lost"),
        ({"RemoveReason": _EXPRESSION, "LastJobStatus": 2}, "removed by HTCondor at its time limit"),
        ({"RemoveReason": _EXPRESSION, "LastJobStatus": 5, "HoldReason": "no disk"}, "held: no disk"),
        ({"RemoveReason": _EXPRESSION}, _EXPRESSION),
    ],
)
def test_a_removal_by_its_own_expression_is_explained(ad: dict[str, object], why: str) -> None:
    of_queue = {"ClusterId": 7, "ProcId": 0, "PilotageStamp": STAMP, "JobStatus": 3}
    row = htcondor._ended({**of_queue, **ad})
    assert row.state is State.KILLED
    assert row.message.startswith(why)
