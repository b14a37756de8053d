"""Dialects: what may stand in one, and what follows from what commands say."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from pilotage.fabric.batch.batch_system import (
    BatchJob,
    BatchSystemAway,
    Capacity,
    Handle,
    JobCounts,
    JobReport,
    JobResources,
    State,
    SubmissionRefused,
    SubmissionUncertain,
    SubmissionUnread,
)
from pilotage.fabric.batch.dialect import dialect
from pilotage.fabric.batch.dialect.command import DialectSystem
from pilotage.fabric.batch.dialect.dialect import Dialect, InvalidDialect, merge_dialect
from pilotage.fabric.batch.settings import SystemSettings
from pilotage.fabric.batch.shell import Completed, NoAnswer
from pilotage.fabric.batch.work_area import WorkAreas
from pilotage.fabric.director import configuration
from tests.conftest import ROOT

STAMP = "north-any-0123456789"


@dataclass(slots=True)
class Telling:
    """A shell whose commands say what they are told to, by their first word."""

    says: Mapping[str, Completed | Exception | Iterator[Completed | Exception]]
    ran: list[Sequence[str]] = field(default_factory=list)

    def run(self, command: Sequence[str], **_: object) -> Completed:
        self.ran.append(command)
        answer = self.says.get(command[0], Completed(status=1, stdout="", stderr=""))
        if isinstance(answer, Iterator):  # one for each time
            answer = next(answer)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def write(self, *_: object, **__: object) -> None: ...

    def read(self, *_: object, **__: object) -> bytes:
        return b""

    def read_small(self, *_: object, **__: object) -> dict[str, bytes]:
        return {}

    def remove(self, *_: object, **__: object) -> None: ...


def said(stdout: str = "", *, status: int = 0, stderr: str = "") -> Completed:
    return Completed(status=status, stdout=stdout, stderr=stderr)


def speaking(
    name: str, flags: tuple[str, ...] = (), **says: Completed | Exception | Iterator[Completed | Exception]
) -> tuple[DialectSystem, Telling]:
    shell = Telling(says)
    areas = WorkAreas(directory="/shared", shell=shell)
    return DialectSystem(areas=areas, flags=flags, dialect=dialect.shipped_dialect(name)), shell


def submit(name: str, done: Completed) -> str:
    """The reference of a job, or what is raised, where the command of a shipped dialect says this."""
    return speaking(name, qsub=done, bsub=done, sbatch=done)[0].submit(job())


def job(**asked: Any) -> BatchJob:
    return BatchJob(stamp=STAMP, script="#!/bin/sh\n", queue="long", **asked)


def read(**changes: Any) -> Dialect:
    content = merge_dialect(dialect.shipped_content("pbs"), changes)
    return configuration.validate_file(Dialect, content, "pbs.yaml", InvalidDialect)


BIG = JobResources(cores=4, memory=4001, wall_time=3601, gpus=2, whole_node=True)


@pytest.mark.parametrize(
    ("stated", "passed"),
    [("10:00:00", "10:00:00"), ("1:00:00", "3601"), ("90:00", "90:00"), ("7200", "7200")],
)
def test_of_two_times_of_pbs_and_grid_engine_the_longer_holds_whose_numbers_are_seconds(
    stated: str, passed: str
) -> None:
    for kind, name in (("pbs", "walltime"), ("gridengine", "h_rt")):
        system, shell = speaking(kind, qsub=said("17\n"))
        system.submit(job(resources=BIG, flags=("-l", f"{name}={stated}")))
        assert f"{name}={passed}" in ",".join(shell.ran[0]).split(",")


def test_pbs_is_asked_for_resources_in_one_option_and_flags_add_to_them() -> None:
    system, shell = speaking("pbs", flags=("-A", "grid"), qsub=said("17.head\n"))

    assert system.submit(job(resources=BIG, flags=("-l", "nodes=1:ssd,walltime=7200"))) == "17.head"

    assert shell.ran == [
        [
            *("qsub", "-N", f"p.{STAMP}", "-q", "long", "-r", "n", "-o", "/dev/null", "-e", "/dev/null"),
            *("-S", "/bin/sh", "-A", "grid", "-l"),
            "nodes=1:ppn=4:gpus=2:ssd,mem=4001mb,walltime=7200,naccesspolicy=singlejob",
            f"/shared/{STAMP}/wrapper",
        ]
    ]


@pytest.mark.parametrize(
    ("flags", "nodes"),
    [
        (("-l", "nodes=1:ppn=8"), "1:ppn=8:gpus=2"),
        (("-l", "nodes=1:ppn=2"), "1:ppn=4:gpus=2"),
        (("-l", "nodes=1:gpus=4:ppn=2:ssd"), "1:ppn=4:gpus=4:ssd"),
        (("-lnodes=1:ppn=6",), "1:ppn=6:gpus=2"),
        (("-l", "nodes=2:ppn=2"), "2:ppn=4:gpus=2"),
        (("-l", "nodes=n17:ppn=16"), "n17:ppn=16:gpus=2"),  # a node, or a property of one
        (("-l", "nodes=1:ppn=4+2:ppn=1:ssd"), "1:ppn=4+2:ppn=1:ssd"),  # two groups: as the site has it
        (("-l", "mem=1gb,nodes=n1+n2"), "n1+n2"),
        (("-l", "nodes=1:ppn=4+2:ppn=8", "-l", "nodes=1:ppn=2"), "1:ppn=4+2:ppn=8"),
    ],
)
def test_of_nodes_of_pbs_each_amount_is_the_larger_of_slot_and_flags(
    flags: tuple[str, ...], nodes: str
) -> None:
    for own in (flags, ()):
        system, shell = speaking("pbs", own, qsub=said("17.head\n"))
        system.submit(job(resources=BIG, flags=() if own else flags))
        [words] = shell.ran
        [resources] = [words[number + 1] for number, word in enumerate(words) if word == "-l"]
        assert [each for each in resources.split(",") if each.startswith("nodes=")] == [f"nodes={nodes}"]
        assert "mem=4001mb" in resources


@pytest.mark.parametrize(
    ("cores", "flags", "asked"),
    [
        (4, ("-pe", "smp", "8"), "smp 8"),
        (4, ("-pe", "smp", "2"), "smp 4"),
        (4, ("-pe", "mpi", "2"), "mpi 4"),
        (1, ("-pe", "mpi", "2"), "mpi 2"),
        (4, ("-pe", "smp", "2-8"), "smp 2-8"),  # as the site has it
        (4, ("-pe", "smp", "8", "-pe", "smp", "6"), "smp 8"),
        (4, (), "smp 4"),
    ],
)
def test_of_slots_of_grid_engine_the_larger_number_is_asked_in_the_environment_of_the_flags(
    cores: int, flags: tuple[str, ...], asked: str
) -> None:
    system, shell = speaking("gridengine", flags, qsub=said("17\n"))
    system.submit(job(resources=JobResources(cores=cores)))
    [words] = shell.ran
    assert [words[n + 1 : n + 3] for n, word in enumerate(words) if word == "-pe"] == [asked.split()]


def test_flags_for_a_job_never_take_from_the_slot() -> None:
    system, shell = speaking("pbs", qsub=said("17.head\n"))

    system.submit(job(resources=JobResources(memory=4000), flags=("-l", "mem=100mb,file=5mb")))

    [command] = shell.ran
    assert "mem=4000mb,file=5mb" in " ".join(command)


@pytest.mark.parametrize(
    ("flags", "absent"),
    [
        (("--mem-per-cpu=2000",), {"--mem="}),
        (("--mem-per-c", "2000"), {"--mem="}),
        (("--mem-per-gpu=8G",), {"--mem="}),
        (("--mem=8000", "--memory-bind=local"), set()),
        (("--gpus=2",), {"--gres="}),
        (("-G2",), {"--gres="}),
        (("--gpus-per-node", "a100:2"), {"--gres="}),
        (("--gpu-bind=none",), set()),
        (("--gpus=2", "--cpus-per-gpu=4", "--mem-per-gpu=8G"), {"--gres=", "--mem=", "--cpus-per-task="}),
    ],
)
@pytest.mark.parametrize("of_queue", [True, False])
def test_flags_in_other_words_for_the_same_take_its_place(
    flags: tuple[str, ...], absent: set[str], of_queue: bool
) -> None:
    system, shell = speaking("slurm", () if of_queue else flags, sbatch=said("17\n"))

    system.submit(job(resources=BIG, flags=flags if of_queue else ()))

    [words] = shell.ran
    asked = {"--mem=", "--gres=", "--cpus-per-task=", "--time="}
    assert {name for name in asked if not any(word.startswith(name) for word in words)} == absent
    assert {*flags} - {"--mem=8000"} <= {*words}


def test_pbs_is_asked_for_nothing_else_of_nodes_beside_a_select() -> None:
    system, shell = speaking("pbs", qsub=said("17.head\n"))

    system.submit(job(resources=BIG, flags=("-l", "place=excl,select=1:ncpus=4:mem=8gb", "-M", "a@b.org")))

    [words] = shell.ran
    assert [words[number + 1] for number, word in enumerate(words) if word == "-l"] == [
        "walltime=3601,place=excl,select=1:ncpus=4:mem=8gb"
    ]


@pytest.mark.parametrize("flag", ["ncpus=4", "file=5mb,ncpus=4", "procs=4"])
def test_processors_of_pbs_in_other_words_take_the_place_of_nodes(flag: str) -> None:
    system, shell = speaking("pbs", qsub=said("17.head\n"))
    cores = JobResources(cores=8, memory=4000)

    system.submit(job(resources=cores, flags=("-l", flag)))
    system.submit(job(resources=cores, flags=(f"-l{flag}",)))

    asked = [words[words.index("-l") + 1] for words in shell.ran]
    assert asked == [f"mem=4000mb,{flag}"] * 2


def test_a_flag_of_the_service_that_chooses_another_cluster_is_refused_before_anything_is_done() -> None:
    system, shell = speaking("slurm", sbatch=said("17;c2\n"))

    with pytest.raises(SubmissionRefused, match="--clusters=c2: only the submission would go there"):
        system.submit(job(flags=("--clusters=c2",)))

    assert shell.ran == []


def test_lsf_is_asked_for_resources_and_what_it_gives_to_a_shell_is_quoted() -> None:
    shell = Telling({"bsub": said("Job <17> is submitted to queue <long>.\n")})
    areas = WorkAreas(directory="/a shared", shell=shell)
    system = DialectSystem(areas=areas, dialect=dialect.shipped_dialect("lsf"))

    assert system.submit(job(resources=BIG, flags=("-R", "select[ssd]"))) == "17"

    [command] = shell.ran
    assert command[-1] == f"'/a shared/{STAMP}/wrapper'"
    asked = "-n 4 -R select[ssd] rusage[mem=4001MB] span[hosts=1] -M 4001MB -W 61 -gpu num=2 -x"
    assert asked in " ".join(command)


def test_only_what_is_asked_for_is_said() -> None:
    system, shell = speaking("lsf", bsub=said("Job <17> is submitted to default queue <long>.\n"))

    system.submit(job())

    assert not {"-W", "-M", "-gpu", "-x"} & set(shell.ran[0])


@pytest.mark.parametrize(
    ("name", "answer", "error"),
    [
        ("pbs", said(status=1, stderr="qsub: Unknown queue MSG=cannot locate queue"), SubmissionRefused),
        (
            "pbs",
            said(status=111, stderr="qsub: cannot connect to server head (errno=111)"),
            SubmissionUncertain,
        ),
        ("pbs", said("qsub: waiting for job to start\n"), SubmissionUncertain),
        ("lsf", said(status=255, stderr="nowhere: No such queue. Job not submitted."), SubmissionRefused),
        ("lsf", said(status=255, stderr="LSF is down. Please wait ..."), SubmissionUncertain),
        ("slurm", said(status=-9), SubmissionUncertain),
        ("slurm", said(status=1, stderr="sbatch: error: Unexpected message received"), SubmissionUncertain),
        ("slurm", said(status=1, stderr="sbatch: error: Socket timed out"), SubmissionUncertain),
        (
            "slurm",
            said(status=1, stderr="sbatch: error: invalid partition specified: nope"),
            SubmissionRefused,
        ),
        ("gridengine", said(status=1, stderr='Unable to run job: unknown queue "x"'), SubmissionRefused),
        ("gridengine", said(status=1, stderr="error: commlib error: got select error"), SubmissionUncertain),
    ],
)
def test_a_server_that_is_away_is_told_from_one_that_refuses(
    name: str, answer: Completed, error: type[Exception]
) -> None:
    with pytest.raises(error, match=STAMP):
        submit(name, answer)


#: What shipped dialects are answered to a submission, with the reference that it names.
ANSWERS = [
    ("slurm", "17", "17"),
    ("slurm", "17;c2", "17"),
    ("slurm", "Submitted batch job 17", "17"),
    ("slurm", "Submitted batch job 17 on cluster c2", "17"),
    ("gridengine", "17", "17"),
    ("gridengine", 'Your job 17 ("p.stamp (2).17") has been submitted', "17"),
    ("pbs", "17.head.example.org", "17.head.example.org"),
    ("pbs", "17", "17"),
    ("lsf", "Job <17> is submitted to queue <long>.", "17"),
    ("lsf", "Job <17> is submitted to default queue <long>.", "17"),
]
BEFORE, AFTER = (
    "--> Checking available allocation (long)...OK\n\n4\n",
    "job 3: see https://help.example.org\n\n",
)


def test_there_are_answers_of_all_dialects() -> None:
    assert {name for name, _, _ in ANSWERS} == {*dialect.SHIPPED}


@pytest.mark.parametrize(
    "form", ["{}", "{}\n", " {}\r\n", BEFORE + "{}\n", "{}\n" + AFTER, BEFORE + "{}\n" + AFTER]
)
@pytest.mark.parametrize(("name", "answer", "reference"), ANSWERS)
def test_a_reference_is_found_among_other_lines(name: str, answer: str, reference: str, form: str) -> None:
    if name == "lsf":
        form = form.strip(" ")
    assert submit(name, said(form.format(answer))) == reference


@pytest.mark.parametrize("name", dialect.SHIPPED)
@pytest.mark.parametrize("lines", ["", "Job 17 was looked at\n", "17 jobs are yours\nqueue 17;\n"])
def test_a_command_that_ended_well_and_names_no_job_is_uncertain(name: str, lines: str) -> None:
    with pytest.raises(SubmissionUnread, match="no reference"):
        submit(name, said(lines))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("slurm", "sbatch: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive."),
        ("slurm", "sbatch: error: Please state --account, or contact help@example.org"),
        ("slurm", "sbatch: error: Temporary disk specification can not be satisfied"),
        ("slurm", "sbatch: error: no project\nsbatch: error: Batch job submission failed: Unspecified error"),
        ("pbs", "qsub: a project has to be stated with -P"),
        ("lsf", "Project must be one of a, b. Request aborted by esub. Job not submitted."),
        ("gridengine", "Unable to run job: a project has to be stated with -P.\nExiting."),
    ],
)
def test_a_refusal_is_one_in_words_of_the_site(name: str, reason: str) -> None:
    with pytest.raises(SubmissionRefused, match=STAMP):
        submit(name, said(BEFORE.replace("4", "yours"), status=1, stderr=reason))


@pytest.mark.parametrize("name", dialect.SHIPPED)
@pytest.mark.parametrize(
    "done",
    [
        said(status=1),
        said(status=-15, stderr="a project has to be stated"),
        said(status=137, stderr="a project has to be stated"),
        said(status=127, stderr="sh: 1: qsub: not found"),
        said(status=1, stderr="submission failed: Connection reset by peer"),
        said(status=1, stderr="Unable to contact slurm controller (connect failure)"),
        said(status=1, stderr="Socket timed out on send/recv operation"),
        said(status=1, stderr="no more answers: Broken pipe; a project has to be stated"),
        said(status=1, stderr="Resource temporarily unavailable"),
        said(status=1, stderr="write: No space left on device"),
    ],
)
def test_a_submission_that_may_have_arrived_is_never_refused(name: str, done: Completed) -> None:
    with pytest.raises(SubmissionUncertain, match=STAMP):
        submit(name, done)


@pytest.mark.parametrize(("name", "answer", "_"), ANSWERS)
def test_a_failure_that_names_a_job_is_uncertain(name: str, answer: str, _: str) -> None:
    reason = "a plug-in: no such partition, denied, a project has to be stated"
    with pytest.raises(SubmissionUncertain, match=STAMP):
        submit(name, said(f"{answer}\n", status=1, stderr=reason))


def test_a_dialect_that_states_refusals_alone_knows_no_others() -> None:
    known = read(refused="no such queue", uncertain=None)
    for reason, error in (("no such queue", SubmissionRefused), ("not today", SubmissionUncertain)):
        areas = WorkAreas(directory="/shared", shell=Telling({"qsub": said(status=1, stderr=reason)}))
        with pytest.raises(error):
            DialectSystem(areas=areas, dialect=known).submit(job())


TORQUE = f"""\
Job Id: 17.head.example.org
    Job_Name = p.{STAMP}
    Job_Owner = pilots@head.example.org
    job_state = {{state}}
    queue = long
    exit_status = {{exit}}
    Variable_List = PBS_O_QUEUE=long,PBS_O_HOME=/home/pilots,
\tPBS_O_LOGNAME=pilots,PBS_O_PATH=/usr/bin

Job Id: 18.head.example.org
    Job_Name = somebody's own
    job_state = Q

"""


@pytest.mark.parametrize(
    ("state", "status", "expected", "exit_code"),
    [
        ("Q", "", State.WAITING, None),
        ("E", "", State.RUNNING, None),
        ("C", "0", State.DONE, 0),
        ("C", "7", State.FAILED, 7),
        ("C", "271", State.FAILED, 143),
        ("C", "-11", State.FAILED, None),  # ended by the server, here for its time; -1 to -3: never started
        ("C", "", State.MISSING, None),  # what it left may come later
        ("U", "", State.RUNNING, None),
        ("B", "", State.RUNNING, None),
        ("M", "", State.UNKNOWN, None),
        ("X", "0", State.DONE, 0),
        ("X", "-3", State.FAILED, None),
        ("Y", "", State.UNKNOWN, None),
    ],
)
def test_a_listing_of_torque_is_read(state: str, status: str, expected: State, exit_code: int | None) -> None:
    listing = TORQUE.format(state=state, exit=status)
    system, _ = speaking("pbs", sh=said(listing))

    report = system.status([Handle(stamp=STAMP)])[STAMP]

    assert (report.state, report.reference, report.exit_code) == (expected, "17.head.example.org", exit_code)


def test_a_name_that_is_folded_is_one() -> None:
    folded = TORQUE.format(state="R", exit="").replace("any-0123", "any\n\t-0123")
    system, _ = speaking("pbs", sh=said(folded))

    assert system.find([STAMP]) == {STAMP: ("17.head.example.org",)}


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("pbs", said(status=153)),
        ("lsf", said(status=255, stderr="No job found\n")),
        ("lsf", said(status=255, stderr="No unfinished job found\n")),
        ("lsf", said("No job found\n")),
    ],
)
def test_an_empty_listing_is_one(name: str, answer: Completed) -> None:
    system, _ = speaking(name, sh=answer, bjobs=answer)
    assert system.find([STAMP]) == {}


def test_headings_of_clusters_are_no_jobs_and_no_queues() -> None:
    """Slurm prints them where several clusters are asked, also above nothing."""
    ended = "north-any-9876543210"
    system, _ = speaking(
        "slurm",
        squeue=iter(
            [
                said(f"CLUSTER: c1\nCLUSTER: c2\n17|{STAMP}|RUNNING: None\n"),
                said("CLUSTER: c1\n\nCLUSTER: c2\nlong|PD\nlong|R\n"),
            ]
        ),
        sacct=said(f"CLUSTER: c2\n18|{ended}|TIMEOUT|None\n"),
        sinfo=said("CLUSTER: c1\nlong|2/6/1/9|up\n"),
    )

    reports = system.status([Handle(stamp=STAMP), Handle(stamp=ended)])

    assert [each.state for each in reports.values()] == [State.RUNNING, State.FAILED]
    assert system.count_jobs(["long"]) == JobCounts(waiting=1, running=1)
    assert system.capacity() == {"long": Capacity(cores=8, free_cores=6, waiting=0, running=0)}


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("pbs", said(status=-9)),
        ("pbs", said(status=153, stderr="pbs_iff: cannot read reply from pbs_server")),
        ("lsf", said(status=255, stderr="LSF is down. Please wait ...")),
    ],
)
def test_a_listing_that_fails_is_not_empty(name: str, answer: Completed) -> None:
    system, _ = speaking(name, sh=answer, bjobs=answer)
    with pytest.raises(BatchSystemAway):
        system.find([STAMP])


def test_a_listing_of_lsf_is_read() -> None:
    listing = f"17|RUN|-|{STAMP}\n18|EXIT|143|north-any-9876543210\n"
    system, _ = speaking("lsf", bjobs=said(listing))

    reports = system.status([Handle(stamp=STAMP), Handle(stamp="north-any-9876543210")])

    assert [(each.state, each.exit_code) for each in reports.values()] == [
        (State.RUNNING, None),
        (State.FAILED, 143),
    ]


def test_jobs_are_ended_together_and_those_that_have_ended_are_no_error() -> None:
    kill = said(status=255, stderr="Job <17>: Job has already finished\n")
    system, shell = speaking("lsf", bjobs=said(f"17|RUN|-|{STAMP}\n18|PEND|-|{STAMP}\n"), bkill=kill)

    system.kill([Handle(stamp=STAMP)])

    assert shell.ran[-1] == ["bkill", "17", "18"]


def test_a_kill_that_torque_is_still_working_on_is_no_error() -> None:
    again = said(status=15, stderr="qdel: Invalid request MSG=job cancel in progress 17.head.example.org\n")
    system, shell = speaking("pbs", sh=said(TORQUE.format(state="R", exit="")), qdel=again)

    system.kill([Handle(stamp=STAMP)])

    assert shell.ran[-1] == ["qdel", "17.head.example.org"]


QUEUES = """\
server: head

Queue            Memory CPU Time Walltime Node  Run Que Lm  State
---------------- ------ -------- -------- ----  --- --- --  -----
long               --      --    48:00:00   --    3   5 --   E R
night              --      --       --      --    0   2 --   D S
                                               ----- -----
                                                   3     7
"""
NODES = """\
n1
     state = free
     np = 8
     jobs = 0/17.head, 1/18.head

n2
     state = job-exclusive
     np = 4

n3
     state = down,offline
     np = 16

"""


OPENPBS_NODES = """\
n1
     Mom = n1.example.org
     ntype = PBS
     state = free
     pcpus = 16
     resources_available.arch = linux
     resources_available.ncpus = 8
     resources_assigned.mem = 0kb
     resources_assigned.ncpus = 3

n2
     Mom = n2.example.org
     state = job-busy
     resources_available.ncpus = 4
     resources_assigned.ncpus = 4

n3
     state = resv-exclusive,job-exclusive
     resources_available.ncpus = 4
     resources_assigned.ncpus = 1

n4
     state = state-unknown,down
     resources_assigned.ncpus = 0

n5
     state = maintenance
     resources_available.ncpus = 16
     resources_assigned.ncpus = 0

"""


@pytest.mark.parametrize(
    ("nodes", "of_long"),
    [
        (NODES, Capacity(cores=12, free_cores=8, waiting=5, running=3)),  # those that are up
        (
            # nothing is free where it is busy beside its job
            NODES.replace("job-exclusive", "job-exclusive,busy"),
            Capacity(cores=12, free_cores=8, waiting=5, running=3),
        ),
        (OPENPBS_NODES, Capacity(cores=16, free_cores=5, waiting=5, running=3)),
    ],
)
def test_queues_of_pbs_share_the_nodes_that_are_up(nodes: str, of_long: Capacity) -> None:
    system, _ = speaking("pbs", qstat=said(QUEUES), pbsnodes=said(nodes))

    assert system.capacity() == {
        "long": of_long,
        "night": Capacity(cores=0, free_cores=0, waiting=2, running=0),
    }


@pytest.mark.parametrize(
    ("row", "state", "message"),
    [
        ("PENDING: Resources", State.WAITING, "PENDING: Resources"),
        ("COMPLETING: None", State.RUNNING, "COMPLETING"),
        ("NODE_FAIL: None", State.FAILED, "NODE_FAIL"),
        ("REVOKED: None", State.UNKNOWN, "REVOKED"),  # another cluster of the federation started it
    ],
)
def test_a_listing_of_slurm_is_read(row: str, state: State, message: str) -> None:
    listing = f"16|a job: of | somebody|PENDING: None\n17|{STAMP}|{row}\n"
    system, _ = speaking("slurm", squeue=said(listing), sacct=said(status=1))

    report = system.status([Handle(stamp=STAMP)])[STAMP]

    assert (report.state, report.reference, report.message) == (state, "17", message)


@pytest.mark.parametrize(
    ("row", "message", "node"),
    [
        ("PENDING: Priority|", "PENDING: Priority", ""),
        ("RUNNING: None|n1", "RUNNING", "n1"),
        ("FAILED: NonZeroExitCode|wn-7.a.org", "FAILED: NonZeroExitCode", "wn-7.a.org"),
        ("RUNNING: None|n[1-3]", "RUNNING", ""),
        ("RUNNING: None", "RUNNING", ""),
    ],
)
def test_a_listing_of_slurm_names_the_node_if_its_format_has_it(row: str, message: str, node: str) -> None:
    """A site may have changed the command of the dialect of 1.0, which did not list nodes."""
    for stamp in (STAMP, STAMP.upper()):
        system, _ = speaking("slurm", squeue=said(f"17|{stamp}|{row}\n"), sacct=said(status=1))

        report = system.status([Handle(stamp=stamp)])[stamp]

        assert (report.message, report.node) == (message, node)


def test_slurm_is_told_which_nodes_to_avoid() -> None:
    system, shell = speaking("slurm", sbatch=said("17\n"))

    system.submit(job(avoided_nodes=("n1", "n2")))

    [command] = shell.ran
    assert "--exclude=n1,n2" in command


def test_a_batch_system_without_a_way_to_avoid_nodes_takes_the_job_all_the_same() -> None:
    system, shell = speaking("pbs", qsub=said("17.head\n"))

    assert system.submit(job(avoided_nodes=("n1",))) == "17.head"
    assert "n1" not in " ".join(shell.ran[0])


def test_jobs_and_cores_of_a_hidden_partition_of_slurm_are_seen() -> None:
    class Hiding(Telling):
        """The only partition is hidden. Source: squeue(1) and sinfo(1), --all."""

        def run(self, command: Sequence[str], **more: object) -> Completed:
            return Telling.run(self, command, **more) if "--all" in command else said()

    shell = Hiding({"squeue": said(f"17|{STAMP}|RUNNING: None\n"), "sinfo": said("grid|2/6/1/9|up\n")})
    areas = WorkAreas(directory="/shared", shell=shell)
    system = DialectSystem(areas=areas, dialect=dialect.shipped_dialect("slurm"))

    assert system.find([STAMP]) == {STAMP: ("17",)}
    assert system.capacity().keys() == {"grid"}


def test_what_the_listing_of_slurm_does_not_have_is_looked_for_in_the_accounting() -> None:
    system, shell = speaking("slurm", squeue=said(), sacct=said(f"17|{STAMP}|CANCELLED by 0|None\n"))

    report = system.status([Handle(stamp=STAMP)])[STAMP]

    assert (report.state, report.message) == (State.KILLED, "CANCELLED by 0")
    assert f"--name={STAMP}" in shell.ran[-1]


def test_of_many_lost_jobs_the_accounting_is_queried_in_parts_and_seldom_again() -> None:
    handles = [Handle(stamp=f"north.any.{number:024x}") for number in range(1200)]
    known = f"17|{handles[3].stamp}|COMPLETED|None\n"
    system, shell = speaking("slurm", squeue=said(), sacct=said(known))
    now = [0.0]
    system.accounting.clock = lambda: now[0]

    first = system.status(handles)
    again = system.status(handles)
    queries = [command for command in shell.ran if command[0] == "sacct"]
    now[0] = 600.0
    system.status(handles)

    assert first[handles[3].stamp].state is again[handles[3].stamp].state is State.DONE
    assert len(queries) == 3
    assert max(len(word) for command in queries for word in command) < 20_000
    assert sum(handles[3].stamp in word for command in shell.ran for word in command) == 1


@pytest.mark.parametrize(
    ("before", "end", "state"),
    [("", "CANCELLED by 0", State.KILLED), (f"17|{STAMP}|RUNNING|None\n", "NODE_FAIL", State.FAILED)],
    ids=["late", "behind"],
)
def test_an_end_that_comes_late_into_the_accounting_is_found_soon(
    before: str, end: str, state: State
) -> None:
    answers = iter([said(before), said(f"17|{STAMP}|{end}|None\n")])
    system, _ = speaking("slurm", squeue=said(), sacct=answers)
    now = [0.0]
    system.accounting.clock = lambda: now[0]
    first = system.status([Handle(stamp=STAMP)])[STAMP]

    now[0] = 5.0
    second = system.status([Handle(stamp=STAMP)])[STAMP]

    assert (first.state, second.state) == (State.MISSING, state)


def test_the_accounting_is_queried_ever_more_seldom_for_a_job_that_it_does_not_have() -> None:
    system, shell = speaking("slurm", squeue=said(), sacct=said())
    now = [0.0]
    system.accounting.clock = lambda: now[0]

    for _ in range(1000):
        system.status([Handle(stamp=STAMP)])
        now[0] += 1.0

    # After 0, 3, 9, 21, 45, 93, 189 seconds, then every 120.
    assert sum(command[0] == "sacct" for command in shell.ran) == 13


def test_parts_of_the_accounting_that_were_answered_are_kept_when_a_later_one_is_not() -> None:
    handles = [Handle(stamp=f"north.any.{number:024x}") for number in range(1200)]
    known = said(f"17|{handles[3].stamp}|COMPLETED|None\n")
    answers = iter([known, NoAnswer("sacct gave no answer in 30 s")])
    system, _ = speaking("slurm", squeue=said(), sacct=answers)

    found = system.status(handles)

    assert (found[handles[3].stamp].state, found[handles[1100].stamp].state) == (State.DONE, State.MISSING)
    assert next(answers, None) is None


def test_a_job_that_is_listed_is_reported_though_the_accounting_does_not_answer() -> None:
    other = "north.any.0123456789abcdef01234568"
    system, _ = speaking(
        "slurm", squeue=said(f"17|{STAMP}|RUNNING: None\n"), sacct=NoAnswer("sacct gave no answer in 30 s")
    )

    found = system.status([Handle(stamp=STAMP), Handle(stamp=other)])

    assert (found[STAMP].state, found[other].state) == (State.RUNNING, State.MISSING)


def test_partitions_of_slurm_have_their_cores_and_nobodys_jobs_are_listed_for_them() -> None:
    partitions = "long|2/6/1/9|up\nshort|0/4/0/4|down\n"
    system, _ = speaking("slurm", sinfo=said(partitions))

    assert system.capacity() == {
        "long": Capacity(cores=8, free_cores=6, waiting=0, running=0),
        "short": Capacity(cores=0, free_cores=0, waiting=0, running=0),
    }


GRID_ENGINE = """\
<?xml version='1.0'?>
<job_info  xmlns:xsd="http://arc.liv.ac.uk/repos/darcs/sge/source/dist/util/resources/schemas/qstat/qstat.xsd">
  <queue_info>
  </queue_info>
  <job_info>
    <job_list state="pending">
      <JB_job_number>17</JB_job_number>
      <JB_name>p.{stamp}</JB_name>
      <state>{state}</state>
      <queue_name></queue_name>
      <hard_req_queue>short</hard_req_queue>
    </job_list>
  </job_info>
</job_info>
"""


@pytest.mark.parametrize(
    ("letters", "state"), [("hqw", State.WAITING), ("Eqw", State.FAILED), ("dr", State.RUNNING)]
)
def test_a_listing_of_grid_engine_is_read_and_all_that_is_listed_can_be_ended(
    letters: str, state: State
) -> None:
    system, shell = speaking(
        "gridengine", qstat=said(GRID_ENGINE.format(stamp=STAMP, state=letters)), qdel=said(), qacct=said()
    )

    report = system.status([Handle(stamp=STAMP)])[STAMP]
    system.kill([Handle(stamp=STAMP)])

    assert (report.state, report.reference, report.message) == (state, "17", letters)
    assert shell.ran[-1] == ["qdel", "17"]


OF_GRID_ENGINE = GRID_ENGINE.format(stamp=STAMP, state="r")


@pytest.mark.parametrize(
    ("name", "listing"),
    [
        ("pbs", TORQUE[: TORQUE.index("job_state")]),
        *[("slurm", f"16|{STAMP}|{end}") for end in ("PEND", "", "17|north")],
        *[("gridengine", OF_GRID_ENGINE[: int(len(OF_GRID_ENGINE) * part)]) for part in (0.5, 0.95)],
    ],
)
def test_a_listing_that_breaks_off_says_nothing(name: str, listing: str) -> None:
    done = said(listing)
    system, _ = speaking(name, sh=done, squeue=done, qstat=done)
    with pytest.raises(BatchSystemAway, match="breaks off"):
        system.status([Handle(stamp=STAMP)])


ACCOUNTING = """\
==============================================================
qname        short
jobname      p.{stamp}
jobnumber    17
start_time   Thu Nov 26 10:15:00 2026
failed       {failed}
exit_status  {status}
ru_wallclock 3s
==============================================================
jobname      somebody's own
jobnumber    18
failed       0
exit_status  0
"""


def report_of_accounting(told: str) -> JobReport:
    """Of a job of Grid Engine that the listing has no more."""
    empty = re.sub(r"    <job_list.*</job_list>\n", "", GRID_ENGINE, flags=re.DOTALL)
    system, _ = speaking("gridengine", qstat=said(empty), qacct=said(told))
    return system.status([Handle(stamp=STAMP)])[STAMP]


@pytest.mark.parametrize(
    ("failed", "status", "state"),
    [
        ("0    ", "0", State.DONE),
        ("0    ", "3", State.FAILED),
        ("100 : assumedly after job", "137", State.FAILED),
        ("26  : opening input/output file", "0", State.FAILED),
    ],
)
def test_the_accounting_of_grid_engine_is_read(failed: str, status: str, state: State) -> None:
    told = ACCOUNTING.format(stamp=STAMP, failed=failed, status=status)
    report = report_of_accounting(told)

    assert (report.state, report.reference) == (state, "17")
    assert report.message == f"failed {failed.strip()} exit_status {status}".replace("  ", " ")


@pytest.mark.parametrize("time", ["-/-", "Thu Jan  1 01:00:00 1970", "01/01/1970 00:00:00.000"])
def test_a_job_of_grid_engine_that_never_began_is_not_done(time: str) -> None:
    told = ACCOUNTING.format(stamp=STAMP, failed="0", status="0")
    told = told.replace("Thu Nov 26 10:15:00 2026", time)
    report = report_of_accounting(told)

    assert (report.state, report.message) == (State.FAILED, re.sub(" +", " ", f"start_time {time}"))


@pytest.mark.parametrize(
    ("letters", "waiting"), [("PD", 1), ("RD", 1), ("RH", 1), ("SE", 1), ("R", 0), ("CG", 0), ("S", 0)]
)
def test_a_held_job_of_slurm_waits(letters: str, waiting: int) -> None:
    system, _ = speaking("slurm", squeue=said(f"long|{letters}\n"))
    assert system.count_jobs(["long"]) == JobCounts(waiting=waiting, running=1 - waiting)


def test_fields_between_those_of_grid_engine_are_passed_over() -> None:
    told = ACCOUNTING.format(stamp=STAMP, failed="37 : qmaster enforced h_rt limit", status="137")
    told = told.replace("exit_status  137", "deleted_by   NONE\nexit_status  137")
    report = report_of_accounting(told)

    assert (report.state, report.reference, report.exit_code) == (State.FAILED, "17", 137)


def test_grid_engine_is_asked_for_resources_in_one_option_unless_some_are_soft() -> None:
    system, shell = speaking("gridengine", qsub=said("17\n"))

    system.submit(job(resources=BIG, flags=("-l", "h_rt=100,ssd=1")))
    system.submit(job(resources=JobResources(memory=300), flags=("-soft", "-l", "ssd=1")))

    end = ["-l", "h_vmem=1001M,h_rt=3601,gpu=2,exclusive=true,ssd=1", f"/shared/{STAMP}/wrapper"]
    assert shell.ran[0][-6:] == ["-pe", "smp", "4", *end]
    assert shell.ran[1][-7:-1] == ["e", "-l", "h_vmem=300M", "-soft", "-l", "ssd=1"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "pilot"}, "name: a job's name has to hold {stamp}, once"),
        (
            {"submit": {"command": ["qsub", "{qeue}"]}},
            "submit/command: '{qeue}': {qeue} is not known, allowed are cores",
        ),
        ({"submit": {"command": "qsub -N x"}}, "submit/command"),
        (
            {"submit": {"memory": ["{wall_time}"]}},
            "{wall_time} is not known, allowed are cores, directory, memory",
        ),
        ({"submit": {"command": ["{stamp.__class__}"]}}, "only plain names may stand in braces"),
        ({"submit": {"command": ["qsub", "{"]}}, "a brace that is meant is written twice"),
        ({"submit": {"reference": r"(\d+)"}}, "submit/reference: it has to have a group (?P<reference>…)"),
        ({"submit": {"reference": r"(?P<reference>(?!x))"}}, "submit/reference: the pattern is refused"),
        (
            {"listing": {"patterns": [r"(?P<name>\S+)"]}},
            "listing/patterns: the groups are name; there have to be",
        ),
        (
            {"listing": {"states": {"Q": "queued"}}},
            "listing/states/Q: 'queued' is not allowed, allowed is 'waiting', 'running'",
        ),
        ({"kill": {"command": ["qdel"]}}, "kill/command: one word has to be {references}"),
        (
            {"capacity": [{"command": ["x"], "patterns": ["(?P<slots>x)"]}]},
            "capacity/0/patterns: the groups are slots",
        ),
        ({"listing": {"recrod": "x"}}, "listing/recrod: unknown setting, did you mean record?"),
    ],
)
def test_what_is_wrong_with_a_dialect_is_told_with_its_place(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidDialect) as refused:
        read(**changes)

    assert message in str(refused.value)
    assert "pbs.yaml" in str(refused.value)


def test_the_example_of_the_documentation_is_right() -> None:
    page = (ROOT / "docs" / "site-admin" / "batch-systems.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```yaml\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)

    [farm] = yaml.safe_load(next(each for each in examples if "dialect:" in each))["systems"].values()

    assert (
        configuration.validate_file(SystemSettings, farm, "batch-systems.md", InvalidDialect).dialect
        is not None
    )
