"""What a job asks of its node, from submission to a real Slurm whose nodes differ, and to the node itself."""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from examples.servers.slurm import Slurm
from pilotage.fabric.director.recorded_pilots import ACTIVE
from pilotage.service.services import utc_now
from tests.support.directors_on_slurm import Field
from tests.support.gateway import Ground
from tests.support.service import running_on_sqlite

pytestmark = pytest.mark.debian("slurm")

#: Minutes of CPU time: too few for either arm of the job's `?:`, enough for one, enough for both.
CONFIG = """
Resources:
  Sites:
    LCG.A.org:
      CEs:
        slurm:
          MaxTotalJobs: 30
          MaxWaitingJobs: 30
          NodeAttributes: {GlueHostBenchmarkSI00: [400, 900], OS: [el8, el9], Scratch: unknown}
          Forwarding:
            Vocabulary: Slurm
            Attributes:
              GlueHostBenchmarkSI00: {features: {400: si00_400, 900: si00_900}}
              OS: {features: {el8: el8, el9: el9}}
          Queues:
            brief: {CPUTime: 54000}
            medium: {CPUTime: 90000}
            lasting: {CPUTime: 150000}
Registry:
  VO: {cms: {}}
  Groups: {cms_user: {VO: cms}}
"""
BRIEF, MEDIUM, LASTING = (f"LCG.A.org/slurm/{name}" for name in ("brief", "medium", "lasting"))
#: The partition with both nodes, and what is known there of each.
PARTITION = "short"
FACTS = {
    "n1": {"GlueHostBenchmarkSI00": 400, "OS": "el8", "Scratch": 50},
    "n2": {"GlueHostBenchmarkSI00": 900, "OS": "el9", "Scratch": 500},
}
#: Source: HEPiX, "How can individual WNs be selected?": the example that is called not trivial.
FAST_OR_LONG = (
    "other.GlueHostBenchmarkSI00 > 500 ?"
    " other.GlueCEPolicyMaxCPUTime > 1000 : other.GlueCEPolicyMaxCPUTime > 2000"
)


@pytest.fixture
def field(sqlite_template: Path, slurm: Slurm, tmp_path: Path) -> Iterator[Field]:
    for node, facts in FACTS.items():
        (tmp_path / f"{node}.json").write_text(json.dumps(facts))
    with running_on_sqlite(sqlite_template, tmp_path, CONFIG) as service:
        yield Field(service, slurm, tmp_path)
        slurm.end_jobs()


def send_to(field: Field, *queues: str, words: Sequence[str] = (), **resources: int) -> int:
    """One cycle of a director that has these queues; how many pilots it sent."""
    facts = f"--facts={field.directory}/$SLURMD_NODENAME.json"
    field.tell(dict.fromkeys(queues, PARTITION), facts, *words, **resources)
    said = field.once()
    assert said["wanted"] == said["submitted"], said
    submitted: int = said["submitted"]
    return submitted


def wait_until_done(field: Field) -> None:
    """Until the jobs are, and the pilots, too: one that still asks would take what is submitted next."""
    deadline = time.monotonic() + 300
    while field.open_jobs() or any(pilot["status"] in ACTIVE for pilot in field.pilots()):
        assert time.monotonic() < deadline, (field.open_jobs(), field.pilots())
        time.sleep(0.1)


def nodes_by_stamp(field: Field) -> dict[str, str]:
    listed = field.slurm.ask("squeue", "--noheader", "--me", "--states=all", "--format=%j|%N")
    rows = (line.split("|") for line in listed.splitlines())
    return {stamp: node for stamp, node in rows if stamp.startswith(f"{field.name}.")}


def nodes_by_flags(field: Field) -> dict[str, set[str]]:
    """Where pilots came to run, by the word for their flags."""
    found: dict[str, set[str]] = {}
    for stamp, node in nodes_by_stamp(field).items():
        if node:
            found.setdefault(stamp.split(".")[1], set()).add(node)
    return found


def nodes_of(field: Field, jobs: Iterable[int]) -> set[str]:
    nodes, user = nodes_by_stamp(field), field.service.user()
    return {nodes[user.get(f"/api/v1/jobs/{job}").json()["attempt"]["pilot"]] for job in jobs}


def test_a_job_that_requires_a_feature_reaches_a_pilot_on_such_a_node_and_no_other(field: Field) -> None:
    old = field.submit("cms", 2, Requirements='other.OS == "el8"')
    new = field.submit("cms", 2, Requirements='other.OS == "el9"')

    assert send_to(field, LASTING) == 4
    wait_until_done(field)

    assert nodes_of(field, old) == {"n1"}
    assert nodes_of(field, new) == {"n2"}
    assert sorted(nodes_by_flags(field).values(), key=min) == [{"n1"}, {"n2"}], "no pilot went astray"


def test_a_conditional_requirement_reaches_only_nodes_and_queues_that_fulfil_it(field: Field) -> None:
    jobs = field.submit("cms", 2, Requirements=FAST_OR_LONG)

    assert send_to(field, BRIEF) == 0, "900 minutes are not enough at any node"
    assert send_to(field, BRIEF, MEDIUM) == 2
    wait_until_done(field)

    assert nodes_of(field, jobs) == {"n2"}, "1,500 minutes are enough where the node is fast"
    assert list(nodes_by_flags(field).values()) == [{"n2"}], "no pilot went astray"
    assert {pilot["queue"] for pilot in field.pilots()} == {"medium"}
    more = field.submit("cms", 2, Requirements=FAST_OR_LONG)
    assert send_to(field, LASTING) == 2
    wait_until_done(field)
    assert nodes_of(field, more) <= {"n1", "n2"}
    assert "any" in nodes_by_flags(field), "2,500 minutes are enough everywhere: nothing is said"


def test_local_jobs_of_a_grid_job_get_the_node_and_the_slot_that_it_requires(
    request: pytest.FixtureRequest,
    sqlite_template: Path,
    slurm: Slurm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request.addfinalizer(slurm.end_jobs)
    farm = {"kind": "slurm", "directory": str(tmp_path / "shared"), "environment": slurm.environment}
    stated = {"queue": LASTING, "system": "farm", "batch_queue": PARTITION, "cores": 2, "memory": 600}
    with running_on_sqlite(sqlite_template, tmp_path, CONFIG) as service:
        ground = Ground(service, tmp_path / "gateway", monkeypatch)
        [small] = ground.submit(
            Requirements='other.OS == "el9"', MinRAM=200, CPUTime=200, JobType="generic", LocalJobs=2
        )
        [astray] = ground.submit(Requirements="other.Scratch > 100")  # no flag says that
        [large] = ground.submit(Requirements='other.OS == "el8"', NumberOfProcessors=2, CPUTime=300)
        queues = [{**stated, "wall_time": 600, "wall_time_per_cpu": 1.5}]
        with ground.gateway(systems={"farm": farm}, queues=queues, job_polling_time=0.1) as gateway:
            deadline = time.monotonic() + 300
            while ground.statuses() != {"Done": 2, "Waiting": 1}:
                jobs = [ground.job(each) for each in (small, large)]
                assert time.monotonic() < deadline, (ground.statuses(), gateway.manager.grid_jobs())
                failed = [(each["minor_status"], each["application_status"]) for each in jobs]
                assert all(each["status"] != "Failed" for each in jobs), failed
                gateway.talk(utc_now())
                gateway.manager.advance()
                gateway.leases.deliver()
                time.sleep(0.2)
        assert ground.job(astray)["status"] == "Waiting"

        def shown(job_id: int) -> list[str]:
            rows = service.user().get(f"/api/v1/jobs/{job_id}/local-jobs").json()["local_jobs"]
            return [slurm.ask("scontrol", "show", "job", each["reference"]) for each in rows]

        for job, node, words in (
            (small, "n2", ("NumCPUs=1 ", "MinMemoryNode=200M", "Features=el9", "TimeLimit=00:05:00")),
            (large, "n1", ("NumCPUs=2 ", "MinMemoryNode=600M", "Features=el8", "TimeLimit=00:08:00")),
        ):
            for text in shown(job):
                assert f"NodeList={node}" in text
                assert all(word in text for word in words), text
