"""A director whose broker is a real Slurm: it picks the partition, and pilots find out where they are."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.servers.slurm import Slurm
from examples.servers.starting import wait_until
from tests.support.directors_on_slurm import Field
from tests.support.service import running_on_sqlite

pytestmark = pytest.mark.debian("slurm")

CONFIG = """
Resources:
  Sites:
    LCG.A.org:
      VO: [cms]
      CPUTime: 3600
      MaxRAM: 300
      CEs:
        slurm:
          Queues:
            short: {Colour: red, MaxTotalJobs: 30, MaxWaitingJobs: 30}
            long: {Colour: blue, MaxTotalJobs: 30, MaxWaitingJobs: 30}
            closed: {Colour: green}
Registry:
  VO: {cms: {}}
  Groups:
    cms_user: {VO: cms}
"""
QUEUES = {f"LCG.A.org/slurm/{name}": name for name in ("short", "long")}


@pytest.fixture
def field(sqlite_template: Path, slurm: Slurm, tmp_path: Path) -> Iterator[Field]:
    with running_on_sqlite(sqlite_template, tmp_path, CONFIG) as service:
        yield Field(service, slurm, tmp_path)
        slurm.end_jobs()


def ran_at(field: Field, job_id: int) -> tuple[str, str]:
    """The queue of the tree and the partition of Slurm where a job ran."""
    job = field.service.operator().get(f"/api/v1/jobs/{job_id}").json()
    stamp = job["attempt"]["pilot"]
    [partition] = [partition for _, name, partition in field.batch_jobs() if name == stamp]
    return job["attempt"]["queue"], partition


def test_jobs_run_where_they_may_by_pilots_whose_queue_slurm_picked(field: Field) -> None:
    field.tell_broker(QUEUES)
    anywhere = field.submit("cms", 4)
    blue = field.submit("cms", 3, Requirements={"Colour": "blue"})
    green = field.submit("cms", 1, Requirements={"Colour": "green"})
    with field.director() as director:
        field.wait_until_done(director, but_waiting=1)

    assert {ran_at(field, job_id) for job_id in blue} == {("long", "long")}
    assert {ran_at(field, job_id) for job_id in anywhere} <= {("long", "long"), ("short", "short")}
    assert field.service.operator().get(f"/api/v1/jobs/{green[0]}").json()["status"] == "Waiting"
    pilots = field.pilots()
    asked = {tuple(pilot["possible_queues"]) for pilot in pilots}
    assert asked <= {("LCG.A.org/slurm/long",), ("LCG.A.org/slurm/long", "LCG.A.org/slurm/short")}
    # Asked after the pilots: one that has told its queue has its partition, one that waits has all of them.
    partitions = {name: partition for _, name, partition in field.batch_jobs()}
    for pilot in pilots:
        if pilot["site"]:
            assert pilot["queue"] == partitions[pilot["stamp"]]


def test_a_pilot_that_slurm_sent_to_the_wrong_place_is_given_nothing_there(field: Field) -> None:
    """An entry that takes all pilots cannot be told what would do."""
    field.tell_broker(QUEUES, entry="short")
    [blue] = field.submit("cms", 1, Requirements={"Colour": "blue"})

    said = field.once()
    assert said["submitted"] == 1
    wait_until(lambda: field.pilots()[0]["status"] == "Done")
    [pilot] = field.pilots()
    assert (pilot["queue"], pilot["jobs"], pilot["empty_reason"]) == ("short", 0, "no_task_queue")
    assert field.service.operator().get(f"/api/v1/jobs/{blue}").json()["status"] == "Waiting"
