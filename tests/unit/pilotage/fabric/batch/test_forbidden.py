"""Flags with which a submission would not be one job that starts by itself and can be followed.

The cases are those of the manuals: sbatch(1), qsub(1) of Grid Engine, qsub(1B) of Torque and OpenPBS,
bsub(1), condor_submit(1).
"""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from pilotage.fabric.batch import htcondor
from pilotage.fabric.batch.batch_system import BatchJob, JobResources, SubmissionRefused
from pilotage.fabric.batch.dialect import dialect
from pilotage.fabric.batch.dialect.command import DialectSystem
from pilotage.fabric.batch.forbidden import WHY, ForbiddenFlags
from pilotage.fabric.batch.shell import LocalShell
from pilotage.fabric.batch.work_area import WorkAreas
from pilotage.fabric.director import configuration
from pilotage.fabric.director.configuration import InvalidDirector

TABLES: Mapping[str, Mapping[str, ForbiddenFlags]] = {
    **{
        name: {
            kind: each for kind, each in dialect.shipped_dialect(name).forbidden.items() if each is not None
        }
        for name in dialect.SHIPPED
    },
    "htcondor": htcondor.FORBIDDEN,
}
#: By batch system and kind; the words of a flag that are refused are those before a bar.
REFUSED: Mapping[str, Mapping[str, list[str]]] = {
    "slurm": {
        "elsewhere": ["-M | c2", "-Mc2", "--clusters=c2", "--clu | c2", "--cluster-constraint=x", "-HM | c2"],
        "several_jobs": ["--array=1-9", "--array | 0-3", "-a | 1-9", "-a1-9", "--arr=1", "-Oa1", ":"],
        "blocking": ["--wait", "-W", "-sW"],
        "held": [
            *("--hold", "-H", "--hol", "-OH", "--dependency=afterok:17", "-d | 17", "--dep=singleton"),
            *("--begin=now+1hour", "--begin | 16:00", "--be=16:00", "-b | 16:00", "-Ob16:00"),
            *("--priority=0", "--prio 0"),
        ],
        "renamed": ["--job-name=x", "-J | x", "-Jx", "--job=x"],
        "unread": ["--quiet", "-Q", "--version", "-V", "--usage", "-u", "--help", "-h", "--test-only"],
    },
    "gridengine": {
        "several_jobs": ["-t | 1-10"],
        "blocking": ["-sync y", "-sync yes"],
        "held": ["-h", "-h | u", "-hold_jid | 17", "-hold_jid_ad | 17", "-a | 202701011200"],
        "renamed": ["-N | x", "-clear"],
        "unread": ["-verify", "-help", "-w v", "-w p"],
    },
    "pbs": {
        "elsewhere": ["-q q@server", "-q @server", "-qq@server"],
        "several_jobs": ["-t | 0-9", "-t0-9", "-J | 0-9", "-J0-9", "-Vt | 1"],
        "blocking": ["-W block=true", "-Wblock=true", "-W umask=22,block=true", "-I", "-W interactive=true"],
        "held": [
            *("-h", "-Vh", "-W depend=afterok:17", "-W umask=22,depend=on:1"),
            *("-a | 1200", "-a1200", "-Va | 1200", "-W Execution_Time=1200", "-W umask=22,Hold_Types=u"),
        ],
        "renamed": ["-N | x", "-Nx"],
        "unread": ["-z", "-Vz", "--version", "--help"],
    },
    "lsf": {
        "several_jobs": ["-J name[1-9]", "-pack | file"],
        "blocking": ["-K", "-I", "-Ip", "-Is", "-IS", "-ISp", "-ISs", "-IX"],
        "held": ["-H", "-w | done(17)", "-b | 20:00"],
        "renamed": ["-J | name"],
        "unread": ["-h", "-V"],
    },
    "htcondor": {
        "several_jobs": ["queue 5", "queue", "Queue in (a b)"],
        "held": [
            *("hold = true", "Hold=True", "noop_job = true", "+JobStatus = 5", "My.JobStatus = 5"),
            *("deferral_time = 1893456000", "+DeferralTime = 1", "cron_hour = 1", "CronMinute = 0"),
            *("My.CronDayOfWeek = 1", "Deferral_Time=(time() + 60)"),
        ],
        "renamed": ['+PilotageStamp = "x"', 'my.pilotagestamp = "x"'],
    },
}
#: That look like them.
ALLOWED: Mapping[str, list[str]] = {
    "slurm": [
        *("-A hep", "--account=hep", "--wait-all-nodes=1", "--time=5", "--hint=nomultithread", "-t 5"),
        *("-C a", "--mem=8G", "--exclude=wn1", "--deadline=x", "--use-min-nodes", "--verbose", "-v"),
        *("--qos=wait", "-s", "--bb=x", "--batch=knl", "--priority=100", "--prefer=a"),
    ],
    "gridengine": [
        *("-P hep", "-l h_rt=60", "-sync n", "-hard", "-w e", "-tc 5", "-q all.q@wn1", "-now n"),
        *("-notify", "-ac x=1", "-dl 202701011200", "-ar 5"),
    ],
    "pbs": [
        *("-A hep", "-l nodes=1:ppn=2", "-W group_list=hep", "-W block=false", "-j oe", "-q long"),
        *("-V", "-n", "-c s", "-W stagein=a@b:c"),
    ],
    "lsf": [
        *("-P hep", "-Jd text", "-jsdl f", "-i f", "-is f", "-wa URG", "-wt 5", "-We 5", "-m h@c2"),
        *("-k d", "-hl", "-t 12:31:23:59", "-ti"),
    ],
    "htcondor": [
        *("hold = false", "noop_job = false", '+ProjectName = "queue"', "request_disk = 5"),
        *("+JobStatusOfMe = 1", "+DeferralTimeOfMe = 1"),
    ],
}
INSIDE = [
    (name, kind, flag) for name, kinds in REFUSED.items() for kind, each in kinds.items() for flag in each
]

ONE_EACH = [(name, kind, REFUSED[name][kind][0]) for name in dialect.SHIPPED for kind in REFUSED[name]]


def split(name: str, flag: str) -> tuple[str, ...]:
    """The words of a flag."""
    return ("-append", flag) if name == "htcondor" else tuple(flag.replace(" | ", " ").split(" "))


def read(name: str, *, system: Mapping[str, Any] | None = None, **queue: Any) -> configuration.DirectorFile:
    """A configuration with one queue of a batch system."""
    content = {
        "url": "https://pilotage.example.org",
        "name": "north",
        "vos": {"cms": {"token_file": "/etc/cms.token"}},
        "systems": {"farm": {"kind": name, "directory": "/shared", **(system or {})}},
        "queues": [{"queue": "LCG.A.org/ce1/long", "system": "farm", **queue}],
    }
    return configuration.read_file(content, "d.yaml")


def test_every_row_of_every_table_is_tried() -> None:
    assert {name: list(kinds) for name, kinds in REFUSED.items()} == {
        name: list(table) for name, table in TABLES.items()
    }
    assert ALLOWED.keys() == TABLES.keys()
    assert {kind for table in TABLES.values() for kind in table} == WHY.keys()


@pytest.mark.parametrize(("name", "kind", "flag"), INSIDE)
def test_a_flag_with_which_a_pilot_would_not_be_one_job_is_refused_at_the_start(
    name: str, kind: str, flag: str
) -> None:
    words = split(name, flag)
    message = f"{flag.partition(' | ')[0]}: {WHY[kind]}: {TABLES[name][kind].instead}"  # type: ignore[index]

    with pytest.raises(InvalidDirector) as of_system:
        read(name, system={"flags": words})
    with pytest.raises(InvalidDirector) as of_queue:
        read(name, flags=words)

    assert f"systems/farm: {message}" in str(of_system.value)
    assert f"queues/0/flags: {message}" in str(of_queue.value)


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        (name, variable)
        for name, table in TABLES.items()
        for each in table.values()
        for variable in each.variables
    ],
)
def test_a_variable_that_does_the_same_is_refused(name: str, variable: str) -> None:
    with pytest.raises(InvalidDirector, match=f"systems/farm: {variable}: "):
        read(name, system={"environment": {variable: "1"}})


@pytest.mark.parametrize(
    ("name", "flag"), [(name, flag) for name, flags in ALLOWED.items() for flag in flags]
)
def test_a_flag_that_looks_like_one_of_them_is_taken(name: str, flag: str) -> None:
    words = split(name, flag)
    assert read(name, system={"flags": words}).queues


@pytest.mark.parametrize(("name", "kind", "flag"), ONE_EACH)
def test_a_submission_and_a_dry_run_refuse_them_before_anything_is_done(
    name: str, kind: str, flag: str
) -> None:
    areas = WorkAreas(directory="/nosuch", shell=LocalShell())
    system = DialectSystem(areas=areas, dialect=dialect.shipped_dialect(name))
    job = BatchJob(
        stamp="stamp.17", script="", queue="long", resources=JobResources(), flags=split(name, flag)
    )

    for do in (system.submit, system.dry_run):
        with pytest.raises(SubmissionRefused) as refused:
            do(job)
        assert WHY[kind] in str(refused.value)  # type: ignore[index]


def test_a_queue_of_pbs_on_another_server_is_refused() -> None:
    with pytest.raises(
        InvalidDirector, match="queues/0/batch_queue: long@other: only the submission would go"
    ):
        read("pbs", batch_queue="long@other")

    assert read("gridengine", batch_queue="all.q@wn1").queues  # a part of a queue


@pytest.mark.parametrize("more", [{"batch_queue": "long@pbs01"}, {"flags": ["-q", "long@pbs01"]}])
def test_the_message_says_what_to_do_with_the_name_of_the_default_server(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidDirector) as refused:
        read("pbs", **more)
    advice = "if it is the server of this one, leave it out, or state dialect: {forbidden: {elsewhere: null}}"
    assert advice in str(refused.value)


@pytest.mark.parametrize("kind", sorted(WHY))
@pytest.mark.parametrize("stated", [None, {"flags": "^-q"}])
def test_a_kind_that_does_not_stand_below_forbidden_is_refused_with_where_it_does(
    kind: str, stated: object
) -> None:
    place = f"stands in forbidden: {{{kind}: …}}"
    with pytest.raises(InvalidDirector, match=re.escape(place)):
        read("slurm", system={"dialect": {kind: stated}})


def test_a_site_switches_one_kind_off() -> None:
    one_off = {"dialect": {"forbidden": {"elsewhere": None}}}

    assert read("pbs", system=one_off, batch_queue="long@other").queues
    with pytest.raises(InvalidDirector, match="-h: the job would not start by itself"):
        read("pbs", system=one_off, flags=["-h"])
