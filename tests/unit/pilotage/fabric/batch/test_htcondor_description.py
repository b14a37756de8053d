"""What is asked of HTCondor, as its own library reads it."""

import classad2
import htcondor2
import pytest

from pilotage.fabric.batch import htcondor
from pilotage.fabric.batch.batch_system import BatchJob, JobResources

STAMP = "north-any-0123456789"
DIRECTORY = f"/var/spool/our pilots/{STAMP}"


def described(resources: JobResources | None = None) -> htcondor2.Submit:
    job = BatchJob(
        stamp=STAMP,
        script="#!/bin/sh\n",
        queue="htcondor",
        resources=resources or JobResources(wall_time=7200),
    )
    return htcondor2.Submit(htcondor.describe(job, DIRECTORY))


def is_removed(**job: object) -> object:
    ad = classad2.ClassAd({"NumJobStarts": 0, **job})
    ad["Remove"] = classad2.ExprTree(described().expand("periodic_remove"))
    return ad.eval("Remove")


def test_it_is_one_job_whose_files_lie_in_its_directory() -> None:
    submit = described()

    assert submit.getQArgs() == "1"
    files = {name: submit.expand(name) for name in ("executable", "output", "error", "log")}
    assert files == {
        name: f"{DIRECTORY}/{file}"
        for name, file in (("executable", "job"), ("output", "out"), ("error", "err"), ("log", "events"))
    }
    assert submit["My.PilotageStamp"] == f'"{STAMP}"'


def test_cores_memory_gpus_and_a_whole_machine_are_asked_for() -> None:
    submit = described(JobResources(cores=4, memory=8000, gpus=1, whole_node=True))

    asked = {name: submit[name] for name in submit if name.startswith("request_")}
    assert asked == {"request_cpus": "4", "request_memory": "8000", "request_gpus": "1"}
    assert submit["My.RequiresWholeMachine"] == "true"


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
