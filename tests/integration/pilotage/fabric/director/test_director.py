"""A director's cycles: a real service, this host as batch system, and what may go wrong between them."""

import os
import random
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import pytest

from examples.servers.starting import wait_until
from pilotage.client.api import ApiError, Json, ServiceAway, ServiceClient
from pilotage.fabric.batch.batch_system import (
    ENDED,
    BatchJob,
    Capacity,
    Evidence,
    Handle,
    JobReport,
    JobResources,
    Output,
    ReliableSystem,
    State,
    SubmissionRefused,
    Survey,
)
from pilotage.fabric.batch.local_host import LocalHost
from pilotage.fabric.cycle_summaries import DirectorSummary
from pilotage.fabric.director.director import Director
from pilotage.fabric.director.targets import (
    Broker,
    DirectorOptions,
    DirectorTargets,
    QueueTarget,
    new_stamp,
)
from pilotage.fabric.node_script import PilotScript
from pilotage.plugins.batch_check.fault_injection import Fault, FaultySystem
from pilotage.service.auth.callers import grant
from pilotage.service.services import utc_now
from tests.support.service import Service

CONFIG = """
Resources:
  Sites:
    LCG.A.org:
      VO: [cms, dune]
      CEs:
        ce1:
          CPUTime: 100000
          Queues:
            long: {MaxTotalJobs: 6, MaxWaitingJobs: 6, Rank: 2, MaxRAM: 4000}
            short: {MaxTotalJobs: 3, MaxWaitingJobs: 3, MaxRAM: 2000}
            flagged:
              MaxRAM: 4000
              NodeAttributes: {CPUModel: [intel, amd]}
              Forwarding: {Vocabulary: Slurm, Attributes: {CPUModel: {features: {intel: intel, amd: amd}}}}
            mixed:
              maxWallClockTime: 100000
              MaxRAM: 4000
              GPUs: 2
              NodeAttributes: {CPUModel: [intel, amd]}
              Forwarding:
                Vocabulary: Slurm
                Attributes:
                  CPUModel: {features: {intel: intel, amd: amd}}
                  MaxScratch: {min: tmp, unit: MB}
                  GPUArchitecture: {kinds: {sm_70: v100, sm_80: a100, sm_89: l40s}}
Registry:
  VO: {cms: {}, dune: {}}
  Groups:
    cms_user: {VO: cms}
    dune_user: {VO: dune}
"""
pytestmark = pytest.mark.config(CONFIG)
LONG, SHORT = "LCG.A.org/ce1/long", "LCG.A.org/ce1/short"
SLEEPS = "#!/bin/sh\nexec sleep 600\n"


@dataclass
class Mortal:
    """A batch system whose caller dies at a submission: before it, or when it was taken."""

    system: Any
    dies: str = ""
    submitted: Counter[str] = field(default_factory=Counter)
    jobs: list[BatchJob] = field(default_factory=list)

    def submit(self, job: BatchJob) -> str:
        if self.dies == "before":
            raise KeyboardInterrupt
        self.submitted[job.stamp] += 1
        self.jobs.append(job)
        # This host has no GPUs.
        reference = self.system.submit(replace(job, resources=replace(job.resources, gpus=0)))
        if self.dies == "after":
            raise KeyboardInterrupt
        return reference

    def __getattr__(self, name: str) -> Any:
        return getattr(self.system, name)


class Ground:
    """A service, a batch system, and directors that come and go."""

    def __init__(self, service: Service, directory: Path) -> None:
        self.service = service
        self.host = LocalHost(directory=str(directory / "jobs"), cores=2, memory=100_000)
        self.faults = FaultySystem(system=self.host)
        self.system = Mortal(system=self.faults)
        self.script = SLEEPS
        self.ahead = timedelta(0)  #: of the real time
        self.ticks = 0.0
        self.clients: list[ServiceClient] = []
        self.intents: list[PilotScript] = []

    def director(
        self,
        *queues: str,
        vos: Sequence[str] = ("cms",),
        resources: JobResources = JobResources(),  # noqa: B008 - frozen
        stated: frozenset[str] = frozenset(each.name for each in fields(JobResources)),
        brokers: Mapping[str, Broker] = MappingProxyType({}),
        **options: Any,
    ) -> Director:
        clients = {
            vo: ServiceClient(self.service.url, self.service.token("director", vo=vo, user="dora"))
            for vo in vos
        }
        self.clients += clients.values()
        system = ReliableSystem(
            system=self.system,
            evidence=Evidence(listings=3, seconds=100),
            clock=lambda: self.ticks,
        )
        targets = {
            queue: QueueTarget(
                queue=queue, system="host", batch_queue="local", resources=resources, stated=stated
            )
            for queue in (() if brokers else queues or (LONG, SHORT))
        }
        sites = DirectorTargets(
            queues=targets,
            brokers=brokers,
            systems={"host": system},
            options=DirectorOptions(**{"name": "north", "system_timeout": 3600, **options}),
            script=self._script,
        )
        return Director(
            sites=sites,
            clients=clients,
            chance=random.Random(1),
            clock=lambda: self.ticks,
            patience=300,  # however slow the host is, a cycle sees what it does
        )

    def _script(self, intent: PilotScript) -> str:
        assert intent.secret
        self.intents.append(intent)
        return self.script

    def submit(self, number: int, *, vo: str = "cms", **more: object) -> None:
        job = {"Executable": "/bin/true", **more}
        answer = self.service.user(vo=vo).post("/api/v1/jobs", json={"jobs": [job] * number})
        assert answer.status_code == 201, answer.text

    def cycle(self, director: Director) -> DirectorSummary:
        self.ticks += 60
        return director.cycle(self.now)

    @property
    def now(self) -> datetime:
        return utc_now() + self.ahead

    def pilots(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.service.operator().get("/api/v1/pilots").json()["pilots"]
        return found

    def statuses(self) -> Counter[str]:
        return Counter(pilot["status"] for pilot in self.pilots())

    def batch_jobs(self) -> Counter[str]:
        """How many batch jobs there are, by stamp."""
        return Counter(path.parent.name for path in Path(self.host.directory).glob("*/entry.json"))

    def wait_until_ended(self) -> None:
        wait_until(lambda: not ((here := self.host.capacity()["local"]).waiting + here.running))

    def close(self) -> None:
        self.host.kill([Handle(stamp=stamp) for stamp in self.batch_jobs()])
        for client in self.clients:
            client.close()


@pytest.fixture
def ground(service: Service, tmp_path: Path) -> Iterator[Ground]:
    ground = Ground(service, tmp_path)
    yield ground
    ground.close()


def test_pilots_are_sent_for_the_work_that_there_is_and_no_more(ground: Ground) -> None:
    ground.submit(4)
    director = ground.director()

    first = ground.cycle(director)
    second = ground.cycle(director)

    assert (first.jobs, first.submitted) == (4, 4)
    assert second.submitted == 0, "those that wait are counted against the work"
    assert {pilot["queue"] for pilot in ground.pilots()} == {"long"}, "the better rank"
    assert all(pilot["reference"] for pilot in ground.pilots())
    assert ground.batch_jobs() == Counter({pilot["stamp"]: 1 for pilot in ground.pilots()})


@pytest.mark.parametrize(("rank", "queue"), [("other.MaxRAM", "long"), ("-other.MaxRAM", "short")])
def test_pilots_go_where_the_rank_of_the_jobs_is_highest(ground: Ground, rank: str, queue: str) -> None:
    ground.submit(2, Rank=rank)

    assert ground.cycle(ground.director()).submitted == 2
    assert {pilot["queue"] for pilot in ground.pilots()} == {queue}


@pytest.mark.parametrize(("group", "queue"), [("a", "long"), ("b", "short")])
def test_an_expression_of_a_queue_ranks_it_for_each_job(ground: Ground, group: str, queue: str) -> None:
    own = """{Rank: 'TARGET.JobGroup == "a" ? 5 : -5', """
    config = CONFIG.replace("Rank: 2, ", "").replace("long: {", f"long: {own}")
    ground.service.configure(config.replace("short: {", "short: {Rank: MaxRAM - 2000, "))
    ground.submit(1, JobGroup=group)
    ground.cycle(ground.director())
    assert [pilot["queue"] for pilot in ground.pilots()] == [queue]


def test_no_queue_gets_more_pilots_than_its_limits_for_all_vos_together(ground: Ground) -> None:
    ground.submit(20)
    ground.submit(20, vo="dune")
    director = ground.director(vos=("cms", "dune"))

    sent = [ground.cycle(director).submitted for _ in range(3)]

    assert sent == [9, 0, 0]
    assert Counter(pilot["queue"] for pilot in ground.pilots()) == {"long": 6, "short": 3}


def test_a_vo_that_may_have_no_pilots_at_a_queue_closes_it_for_no_other(ground: Ground) -> None:
    ground.submit(3)
    ground.submit(3, vo="dune")
    queues = [f"Resources/Sites/{queue.replace('/ce1/', '/CEs/ce1/Queues/')}" for queue in (LONG, SHORT)]
    change = {"set": {f"{queue}/VOs/dune/MaxTotalJobs": 0 for queue in queues}}
    answer = ground.service.operator().patch("/api/v1/config", json=change, headers={"If-Match": '"1"'})
    assert answer.status_code == 200, answer.text

    ground.cycle(ground.director(vos=("cms", "dune")))

    assert Counter(pilot["vo"] for pilot in ground.pilots()) == {"cms": 3}


@pytest.mark.parametrize("why", ["its role", "its age"])
def test_a_vo_that_the_service_refuses_ends_the_cycle_for_no_other(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    renewed: list[ServiceClient] = []

    def renew(client: ServiceClient) -> None:
        renewed.append(client)
        if client is refused:
            raise ApiError("not this one", status=401, code="not_authenticated", details={})

    monkeypatch.setattr(ServiceClient, "renew_token", renew)
    ground.submit(3)
    ground.submit(3, vo="dune")
    director = ground.director(vos=("cms", "dune"))
    about = grant(role="user" if why == "its role" else "director", vo="cms", user="ann")
    minted = utc_now() - timedelta(days=2 * 365 if why == "its age" else 0)
    refused = ServiceClient(ground.service.url, ground.service.parts.tokens.mint(about, now=minted)[0])
    ground.clients.append(refused)
    director.clients = {"cms": refused, "dune": director.clients["dune"]}
    director.__post_init__()

    summary = ground.cycle(director)

    assert Counter(pilot["vo"] for pilot in ground.pilots()) == {"dune": 3}
    [problem] = summary.list_problems()  # one line for one cause
    assert problem.startswith("nothing more is done for the VO cms in this cycle: ")
    assert renewed == [refused, director.clients["dune"]], "the token would expire while reports are refused"


def test_a_director_whose_every_vo_is_refused_says_so(ground: Ground) -> None:
    director = ground.director()
    refused = ServiceClient(ground.service.url, ground.service.token("user", vo="cms", user="ann"))
    ground.clients.append(refused)
    director.clients = {"cms": refused}
    director.__post_init__()

    with pytest.raises(ApiError):
        ground.cycle(director)


def test_a_second_process_of_a_director_sends_nothing_while_the_first_one_works(ground: Ground) -> None:
    ground.submit(3)
    first, second = ground.director(), ground.director()
    second.holder = "elsewhere:1:2"
    ground.cycle(first)
    ground.submit(3)

    with pytest.raises(ApiError, match="a process of the director north is at work"):
        ground.cycle(second)
    assert len(ground.pilots()) == 3

    first.end()
    assert ground.cycle(second).submitted == 3


def test_a_director_replaces_a_process_of_its_host_that_has_ended(ground: Ground) -> None:
    ground.submit(3)
    killed, director = ground.director(), ground.director()
    killed.holder = f"{socket.gethostname()}:{os.getpid()}:1"  # another one has its number now
    ground.cycle(killed)

    assert ground.cycle(director).polled == 1


def test_no_pilot_is_sent_where_nothing_waits_or_the_site_is_banned(ground: Ground) -> None:
    director = ground.director()
    assert ground.cycle(director).submitted == 0

    ground.submit(3)
    ground.service.operator().post("/api/v1/sites/LCG.A.org/ban", json={"reason": "power cut"})

    assert ground.cycle(director).submitted == 0
    assert not ground.pilots()


def test_pilots_for_jobs_that_need_a_node_are_sent_with_its_flags_and_never_mixed(ground: Ground) -> None:
    ground.submit(2, Requirements={"CPUModel": "amd"})
    ground.submit(3)
    director = ground.director("LCG.A.org/ce1/flagged")

    summary = ground.cycle(director)

    kinds = Counter(pilot["stamp"].split(".")[1] for pilot in ground.pilots())
    assert summary.submitted == 5
    assert sorted(kinds.values()) == [2, 3]
    assert kinds["any"] == 3
    plain = [stamp.split(".")[1] == "any" for stamp in ground.system.submitted]
    assert plain == [False, False, True, True, True], "who takes any node comes last"


#: What every job that follows the specification states.
LENGTH = {"Architecture": "x86_64", "CPULevel": "x86-64-v2", "WallTime": 3600}
GPU = {**LENGTH, "GPUs": 1, "MaxGPUs": 2, "GPUVendor": "nvidia"}
MIXED = "LCG.A.org/ce1/mixed"


def flags_of(ground: Ground) -> dict[str, tuple[str, ...]]:
    """The flags of each batch job that was submitted."""
    return {job.stamp: job.flags for job in ground.system.jobs}


def test_each_pilot_is_sent_with_what_the_jobs_need_for_which_it_is_sent(ground: Ground) -> None:
    ground.submit(2, **GPU, GPUArchitecture="sm_89")
    ground.submit(1, **GPU, GPUArchitecture="sm_89", MinScratch=30_000)
    ground.submit(1, **GPU, GPUArchitecture="sm_70")
    director = ground.director(MIXED, resources=JobResources(gpus=1))

    assert ground.cycle(director).submitted == 4

    assert sorted(flags_of(ground).values()) == [
        (),  # three kinds will do, of which Slurm cannot be asked for any
        ("--gres=gpu:l40s:1",),
        ("--gres=gpu:l40s:1",),
        ("--tmp=30000M", "--gres=gpu:l40s:1"),
    ]
    assert ground.cycle(director).submitted == 0, "those that wait are recognised by their stamps"
    assert ground.cycle(director).surplus == []


def test_flags_of_requirements_and_of_keywords_are_asked_together_and_serve_the_same_pools(
    ground: Ground,
) -> None:
    ground.submit(1, **GPU, GPUArchitecture="sm_89", Requirements={"CPUModel": "amd"})
    ground.submit(1, **GPU, GPUArchitecture="sm_70", Requirements={"CPUModel": "amd"})

    ground.cycle(ground.director(MIXED, resources=JobResources(gpus=1)))

    flags, pools = flags_of(ground), {each.stamp: each.pools for each in ground.intents}
    assert sorted(flags.values()) == [("--constraint=amd",), ("--constraint=amd", "--gres=gpu:l40s:1")]
    assert len(pools) == 2
    assert len(set(pools.values())) == 1


def test_a_service_that_answers_no_flags_gets_pilots_for_any_node(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.submit(2, **GPU, GPUArchitecture="sm_89")
    ask = ServiceClient.demand

    def answer_as_1_0(client: ServiceClient, resources: Sequence[Mapping[str, object]]) -> Json:
        answer = ask(client, resources)
        return {name: answer[name] for name in ("task_queues", "resources", "ranks")}

    monkeypatch.setattr(ServiceClient, "demand", answer_as_1_0)

    assert ground.cycle(ground.director(MIXED, resources=JobResources(gpus=1))).submitted == 2
    assert set(flags_of(ground).values()) == {()}


def test_a_check_lets_the_batch_system_tell_of_flags_of_waiting_jobs(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.submit(1, **GPU, GPUArchitecture="sm_89")
    asked = []

    def refuse(job: BatchJob) -> None:
        asked.append(job.flags)
        if job.flags:
            raise SubmissionRefused(f"{job.stamp}: no such GPUs")

    monkeypatch.setattr(Mortal, "dry_run", lambda _, job: refuse(job), raising=False)
    director = ground.director(MIXED, resources=JobResources(gpus=1))

    assert director.check_systems() == {
        "host": f"{MIXED}: a job with --gres=gpu:l40s:1 would be refused: no such GPUs"
    }
    assert asked == [(), ("--gres=gpu:l40s:1",)]


def test_flags_that_are_in_no_language_of_batch_systems_are_refused(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.submit(2, Requirements={"CPUModel": "amd"})
    ask = ServiceClient.pilot_groups

    def forge(client: ServiceClient, queues: Sequence[str]) -> Json:
        answer = ask(client, queues)
        for group in [each for groups in answer["flags"].values() for each in groups if each["flags"]]:
            group["flags"] = ["--output=/home/director/.profile"]
        return answer

    monkeypatch.setattr(ServiceClient, "pilot_groups", forge)
    summary = ground.cycle(ground.director("LCG.A.org/ce1/flagged"))

    assert not ground.system.submitted
    [problem] = summary.list_problems("cms")
    assert "'--output=/home/director/.profile' of the service are refused" in problem
    assert summary.list_problems("dune") == []


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_director_that_died_in_a_submission_loses_and_doubles_no_pilot(ground: Ground, dies: str) -> None:
    ground.submit(3)
    ground.system.dies = dies
    with suppress(KeyboardInterrupt):
        ground.cycle(ground.director())
    intents = {pilot["stamp"]: pilot["reference"] for pilot in ground.pilots()}
    assert list(intents.values()) == [None] * 3
    ground.system.dies = ""

    again = ground.director()
    summaries = [ground.cycle(again) for _ in range(5)]

    of_intents = [pilot for pilot in ground.pilots() if pilot["stamp"] in intents]
    adopted = [pilot for pilot in of_intents if pilot["reference"] is not None]
    assert ground.batch_jobs().total() == 3
    assert max(ground.system.submitted.values()) == 1
    assert len(adopted) == sum(summary.adopted for summary in summaries) == (dies == "after")
    given_up = [pilot["status"] for pilot in of_intents if pilot["reference"] is None]
    assert set(given_up) == {"Deleted"}, "and others were sent in their place"


def test_a_submission_without_an_answer_is_found_by_its_stamp(ground: Ground) -> None:
    ground.submit(2)
    director = ground.director()
    ground.faults.fault = Fault.LATE
    ground.system.system = _OnlySubmissions(ground.host, ground.faults)

    first = ground.cycle(director)
    ground.system.system = ground.host
    second, third = ground.cycle(director), ground.cycle(director)

    assert (first.submitted, first.uncertain, first.unsubmitted) == (0, 1, 1)
    assert (second.polled, second.skipped) == (0, ["host"]), "after a failure"
    assert (third.adopted, third.submitted) == (1, 1)
    assert ground.batch_jobs().total() == 2


class _OnlySubmissions:
    """Faults of submissions alone."""

    def __init__(self, host: LocalHost, faults: FaultySystem) -> None:
        self._host = host
        self.submit = faults.submit

    def __getattr__(self, name: str) -> object:
        return getattr(self._host, name)


@pytest.mark.parametrize("fault", [Fault.TIMEOUT, Fault.PARTIAL, Fault.LATE])
def test_what_is_unknown_or_missing_for_a_while_is_not_gone(ground: Ground, fault: Fault) -> None:
    ground.submit(3)
    director = ground.director()
    ground.cycle(director)
    before = ground.pilots()
    rounds = 2 if fault is Fault.PARTIAL else 6

    ground.faults.fault = fault
    summaries = [ground.cycle(director) for _ in range(rounds)]
    ground.faults.fault = None

    assert not any(summary.submitted or summary.ended or summary.killed for summary in summaries)
    assert {pilot["stamp"] for pilot in before} == {pilot["stamp"] for pilot in ground.pilots()}
    assert ground.statuses().keys() <= {"Waiting", "Running"}
    assert ground.batch_jobs().total() == 3


def test_pilots_that_break_say_why_and_make_their_queue_pause(ground: Ground) -> None:
    ground.submit(2)
    ground.script = "#!/bin/sh\necho no such library >&2\nexit 3\n"
    director = ground.director(LONG)
    ground.cycle(director)
    ground.wait_until_ended()

    summary = ground.cycle(director)

    assert summary.ended == {"Aborted": 2}
    assert (summary.submitted, summary.paused) == (0, [LONG])
    # The line after the empty one is shown to users.
    reasons = {pilot["status_reason"] for pilot in ground.pilots()}
    assert reasons == {"\nfailed, exit status 3\nno such library"}

    ground.ahead = timedelta(minutes=3)
    assert ground.cycle(director).submitted == 2, "two to see whether it is better"
    ground.wait_until_ended()
    ground.ahead = timedelta(0)
    assert ground.cycle(ground.director(LONG)).submitted == 0, "one that was started again knows it, too"


def test_a_queue_whose_pilots_find_nothing_to_do_pauses_as_well(ground: Ground) -> None:
    ground.submit(1)
    ground.script = "#!/bin/sh\nexit 0\n"
    director = ground.director(LONG)
    ground.cycle(director)
    ground.wait_until_ended()

    summary = ground.cycle(director)

    assert (summary.ended, summary.submitted) == ({"Done": 1}, 0)
    assert summary.paused == [LONG]


def ask_and_end(ground: Ground, intent: PilotScript, *tags: str) -> str | None:
    """Ask for a job at the long queue once, as a pilot whose node has these tags; the reason for none."""
    pilot = landed(ground, intent, LONG)
    slot = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100_000, "MaxRAM": 4000}
    answer = pilot.post("/api/v1/matcher/requestJob", json=slot | {"Tag": list(tags)}).json()
    reason: str | None = answer.get("reason")
    body = {"status": "Done", "reason": "no work"} | ({"empty_reason": reason} if reason else {})
    assert pilot.post(f"/api/v1/pilots/{intent.stamp}/status", json=body).is_success
    ground.service.parts.hardware.store()
    return reason


def test_jobs_that_no_node_of_a_queue_can_run_get_no_further_pilots_and_pause_nothing(ground: Ground) -> None:
    ground.script = "#!/bin/sh\nexit 0\n"
    ground.submit(6, Image="own.sif")
    director = ground.director(LONG)
    assert ground.cycle(director).submitted == 6, "its nodes may have apptainer"
    ground.wait_until_ended()
    assert {ask_and_end(ground, each, "cvmfs:cms") for each in ground.intents} == {"node_features"}

    idle = ground.cycle(director)
    assert (idle.paused, idle.submitted, idle.jobs) == ([], 0, 0), "six pilots showed that they have none"
    ground.submit(2)
    busy = ground.cycle(director)
    assert (busy.paused, busy.submitted, busy.jobs) == ([], 2, 2), "other jobs of the VO go on at once"

    lack = "no pilot of the only eligible queue had Image (needs apptainer: hostfeat:apptainer) lately"
    elsewhere = f"no pilot of 1 of the 4 eligible queues{lack[len('no pilot of the only eligible queue') :]}"
    [said] = [each for each in explain(ground, 1) if each.startswith((lack, elsewhere))]
    assert f"{LONG}: 6 pilots since " in said
    assert "the next is sent for it after " in said

    ground.wait_until_ended()
    assert ask_and_end(ground, ground.intents[-1], "hostfeat:apptainer") is None, "it is installed now"
    assert ground.cycle(director).jobs >= 5, "so all of them want pilots from there again"


def test_a_batch_job_whose_pilot_has_ended_is_killed_and_its_files_go(ground: Ground) -> None:
    ground.submit(1)
    director = ground.director(LONG, pause=600)
    ground.cycle(director)
    [pilot] = ground.pilots()
    told = {"status": "Done", "reason": "no work"}
    ground.service.operator().post(f"/api/v1/pilots/{pilot['stamp']}/status", json=told)
    assert ground.cycle(director).killed == 0, "it may still be on its way out"

    ground.ahead = timedelta(minutes=3)
    orphans = ground.cycle(director).killed
    ground.wait_until_ended()
    ground.cycle(director)

    assert orphans == 1
    assert not ground.host.find([pilot["stamp"]])


def test_what_the_batch_system_refuses_is_told_and_not_tried_again_at_once(ground: Ground) -> None:
    ground.submit(5)
    director = ground.director(LONG, resources=JobResources(cores=64))

    first, second = ground.cycle(director), ground.cycle(director)

    assert (first.refused, first.submitted) == (1, 0)
    assert second.refused == 0
    assert "64 cores" in ground.pilots()[0]["status_reason"]


def test_another_directors_pilots_are_left_alone(ground: Ground) -> None:
    ground.submit(1)
    ground.cycle(ground.director())
    [pilot] = ground.pilots()

    ground.submit(1)
    summary = ground.cycle(ground.director(name="south"))

    assert summary.waiting == summary.running == 0
    assert pilot in ground.pilots()


def set_parameters(ground: Ground, queue: str, **parameters: object) -> None:
    place = f"Resources/Sites/{queue.replace('/ce1/', '/CEs/ce1/Queues/')}"
    change = {"set": {f"{place}/{name}": value for name, value in parameters.items()}}
    answer = ground.service.operator().patch("/api/v1/config", json=change, headers={"If-Match": '"1"'})
    assert answer.status_code == 200, answer.text


def test_a_slot_has_what_its_queue_states_and_small_jobs_share_it(ground: Ground) -> None:
    set_parameters(ground, LONG, NumberOfProcessors=2, maxWallClockTime=7200)
    ground.submit(4, CPUTime=3600)
    director = ground.director(LONG, stated=frozenset())

    summary = ground.cycle(director)

    assert (summary.jobs, summary.submitted) == (4, 2), "two jobs in each"
    words = {"--processors=2", "--max-ram=4000", "--lifetime=7200", "--gpus=0"}
    assert all(set(intent.words) == words for intent in ground.intents)


def test_a_slot_larger_than_its_queue_is_a_contradiction_and_gets_no_pilots(ground: Ground) -> None:
    set_parameters(ground, LONG, NumberOfProcessors=2)
    ground.submit(2)
    director = ground.director(
        LONG, resources=JobResources(cores=4, memory=5000), stated=frozenset({"cores", "memory"})
    )

    summary = ground.cycle(director)

    cores = "cores: 4, but the queue has 2 (NumberOfProcessors)"
    assert director.check_slots() == [f"{LONG}: {cores}; memory: 5000, but the queue has 4000 (MaxRAM)"]
    assert summary.submitted == 0
    [problem] = summary.list_problems("cms")
    assert "no pilots are sent" in problem
    assert summary.list_problems("dune") == []


def test_jobs_that_the_queue_allows_and_no_slot_has_room_for_are_shown(ground: Ground) -> None:
    ground.submit(3, MinRAM=3000)
    small = ground.director(LONG, resources=JobResources(memory=1000), stated=frozenset({"memory"}))

    summary = ground.cycle(small)

    assert (summary.jobs, summary.submitted) == (0, 0)
    assert summary.unserved == {f"{LONG}: memory 1000 of 4000": 3}
    assert "slots too small: 3 jobs fit" in str(summary)
    ground.cycle(small)  # which reports it
    [process] = ground.service.operator().get("/api/v1/site-processes").json()["processes"]
    assert (process["kind"], process["name"], process["is_overdue"]) == ("director", "north", False)
    [slot] = process["too_small"]
    assert (slot["queue"], slot["slot"], slot["jobs"]) == (LONG, "memory 1000 of 4000", 3)
    explained = ground.service.user().get("/api/v1/jobs/1/explain").json()["now"]
    assert any(f"sends to {LONG} are too small for it" in text for text in explained)
    metrics = ground.service.as_role("monitor").get("/metrics").text
    assert 'pilotage_site_process_overdue{kind="director",name="north",vo="cms"} 0.0' in metrics


def explain(ground: Ground, job_id: int) -> list[str]:
    told: list[str] = ground.service.user().get(f"/api/v1/jobs/{job_id}/explain").json()["now"]
    return told


def test_a_pause_is_explained_to_users_and_admins(ground: Ground) -> None:
    ground.submit(2)
    ground.script = "#!/bin/sh\necho no such library >&2\nexit 3\n"
    director = ground.director(LONG)
    ground.cycle(director)
    ground.wait_until_ended()
    ground.cycle(director)

    ground.cycle(director)  # reports what the one before decided

    [process] = ground.service.operator().get("/api/v1/site-processes").json()["processes"]
    [queue] = process["queues"]
    assert (queue["queue"], queue["waiting"], queue["running"], queue["room"]) == (LONG, 0, 0, 6)
    assert queue["reason"] == "failed, exit status 3"
    assert queue["paused_until"] > utc_now().isoformat()
    pause = f"the director north sends no pilots to {LONG} until "
    [said] = [each for each in explain(ground, 1) if each.startswith(pause)]
    assert said.endswith(": most of its last pilots failed there, or got no job")
    of_queue = ground.service.operator().get(f"/api/v1/resources/queues/{LONG}/explain").json()["now"]
    assert [each for each in of_queue if each.startswith(pause)]
    metrics = ground.service.as_role("monitor").get("/metrics").text
    assert f'pilotage_queue_paused{{name="north",queue="{LONG}",vo="cms"}} 1.0' in metrics


def test_a_queue_whose_places_are_used_up_is_explained(ground: Ground) -> None:
    ground.submit(20)
    director = ground.director(SHORT)
    for _ in range(3):
        ground.cycle(director)

    full = [each for each in explain(ground, 1) if "as many pilots at" in each]

    said = f"the director north has as many pilots at {SHORT} as may be there: of cms"
    # Two run on two cores, unless the host has not started them yet.
    assert full in [[f"{said} {3 - runs} wait and {runs} run"] for runs in range(3)]


class OneBadNode:
    """Two nodes of this host; on `n1`, where jobs go unless they avoid it, the batch system starts none."""

    def __init__(self, host: LocalHost) -> None:
        self._host = host
        self.bad: dict[str, BatchJob] = {}
        self.refuses_to_avoid = False

    def submit(self, job: BatchJob) -> str:
        if "n1" not in job.avoided_nodes:
            self.bad[job.stamp] = job
            return f"bad-{len(self.bad)}"
        if self.refuses_to_avoid:
            raise SubmissionRefused("there are no other nodes")
        return self._host.submit(job)

    def survey(self, handles: Sequence[Handle], prefix: str) -> Survey:
        found = self._host.survey(handles, prefix)
        broken = JobReport(state=State.FAILED, message="NODE_FAIL", host="n1.a.org", node="n1")
        return replace(found, reports={**found.reports, **dict.fromkeys(self.bad, broken)})

    def output(self, handle: Handle) -> Output:
        return Output(stdout=b"", stderr=b"") if handle.stamp in self.bad else self._host.output(handle)

    def __getattr__(self, name: str) -> object:
        return getattr(self._host, name)


def test_after_a_bad_node_pilots_go_to_others_and_it_counts_for_the_node(ground: Ground) -> None:
    batch_system = OneBadNode(ground.host)
    ground.system.system = batch_system
    ground.submit(3)
    director = ground.director(LONG)
    ground.cycle(director)
    ground.cycle(director)
    assert ground.statuses() == {"Aborted": 3}
    assert {(each["node"], each["host_trouble"]) for each in ground.pilots()} == {("n1.a.org", True)}

    ground.ahead = timedelta(minutes=3)
    assert [ground.cycle(director).submitted for _ in range(2)] == [2, 0]

    assert ground.batch_jobs().total() == 2, "both trials avoid the node"
    [process] = ground.service.operator().get("/api/v1/site-processes").json()["processes"]
    assert process["queues"][0]["bad_nodes"] == ["n1"]
    [excluded] = ground.service.operator().get("/api/v1/sites/LCG.A.org/nodes").json()["nodes"]
    assert excluded["node"] == "n1.a.org"
    assert [each for each in explain(ground, 1) if each.startswith("the node n1.a.org of LCG.A.org takes no")]


def test_a_queue_that_has_only_the_bad_node_gets_pilots_there(ground: Ground) -> None:
    batch_system = OneBadNode(ground.host)
    batch_system.refuses_to_avoid = True
    ground.system.system = batch_system
    ground.submit(1)
    director = ground.director(LONG)
    ground.cycle(director)
    ground.ahead = timedelta(minutes=3)
    summaries = [ground.cycle(director) for _ in range(2)]

    assert [(each.refused, each.submitted) for each in summaries] == [(1, 0), (0, 1)]
    assert [each.list_problems() for each in summaries] == [[], []]
    assert ground.statuses()["Deleted"] == 1, "that says nothing about the queue"


class FullButForOne(OneBadNode):
    """Pilots that avoid `n1` wait for good; once it is repaired the others start there."""

    def __init__(self, host: LocalHost) -> None:
        super().__init__(host)
        self.held: dict[str, BatchJob] = {}
        self.is_repaired = False

    def submit(self, job: BatchJob) -> str:
        if job.avoided_nodes:
            self.held[job.stamp] = job
            return f"held-{len(self.held)}"
        return self._host.submit(job) if self.is_repaired else super().submit(job)

    def survey(self, handles: Sequence[Handle], prefix: str) -> Survey:
        found = super().survey(handles, prefix)
        waits = dict.fromkeys(self.held, JobReport(state=State.WAITING))
        return replace(found, reports={**found.reports, **waits}, stamps=found.stamps | self.held.keys())

    def kill(self, handles: Sequence[Handle]) -> None:
        for each in handles:
            self.held.pop(each.stamp, None)
        self._host.kill(handles)


def test_a_node_that_may_be_tried_again_gets_a_pilot_where_all_that_wait_avoid_it(ground: Ground) -> None:
    ground.service.configure(CONFIG.replace("MaxTotalJobs: 3, MaxWaitingJobs: 3", "MaxWaitingJobs: 2"))
    batch_system = FullButForOne(ground.host)
    ground.system.system = batch_system
    ground.submit(9)
    director = ground.director(SHORT)
    ground.cycle(director)
    ground.cycle(director)
    ground.ahead = timedelta(minutes=3)
    ground.cycle(director)
    assert len(batch_system.held) == 2
    summaries = [ground.cycle(director) for _ in range(4)]
    assert [each.withdrawn for each in summaries] == [0] * 4, "new ones would avoid the node as well"

    batch_system.is_repaired = True
    ground.ahead = timedelta(minutes=6)
    summaries = [ground.cycle(director) for _ in range(5)]

    said = f"1 waiting pilot of {SHORT} avoids a node that may be tried again"
    assert said in str(summaries[0].surplus)
    assert sum(each.withdrawn for each in summaries) == 1
    ground.ahead = timedelta(minutes=15)  # the queue is on trial: two pilots at a time
    assert ground.cycle(director).submitted == 1
    assert len(batch_system.held) == 1
    assert ground.batch_jobs().total() == 1, "the new one runs at the node"


def test_a_job_that_no_director_serves_is_explained(ground: Ground) -> None:
    ground.submit(1, Requirements={"CPUModel": "amd"})
    director = ground.director(SHORT)
    for _ in range(2):
        ground.cycle(director)
    nobody = "no director of cms at work (north) sends pilots to an eligible queue"
    assert nobody in explain(ground, 1)

    other = ground.director(FLAGGED, name="south")
    for _ in range(2):
        ground.cycle(other)
    assert nobody.replace("north", "north, south") not in explain(ground, 1)
    assert not [each for each in explain(ground, 1) if "no director" in each]


def test_a_director_works_beside_a_service_that_takes_no_states_of_queues(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of 1.0 refuses reports with unknown fields."""
    report = ServiceClient.report_process

    def refuse(client: ServiceClient, body: Mapping[str, object]) -> None:
        if "queues" in body:
            raise ApiError("queues: is not known", status=400, code="invalid_request", details={})
        report(client, body)

    monkeypatch.setattr(ServiceClient, "report_process", refuse)
    ground.submit(2)
    director = ground.director(LONG)

    assert [ground.cycle(director).submitted for _ in range(2)] == [2, 0]
    [process] = ground.service.operator().get("/api/v1/site-processes").json()["processes"]
    assert process["queues"] is None


def test_a_pilot_that_waits_too_long_is_removed(ground: Ground) -> None:
    ground.submit(3)
    director = ground.director(LONG, longest_wait=3600)
    ground.cycle(director)
    wait_until(lambda: ground.host.capacity()["local"].running == 2)
    ground.ahead = timedelta(hours=2)

    first, second = ground.cycle(director), ground.cycle(director)

    assert first.removed == 1, "two run on two cores"
    assert second.ended["Deleted"] == 1


class FullOfOthers:
    """A host where no pilot with a condition on its node starts; the others start at once."""

    def __init__(self, host: LocalHost) -> None:
        self._host = host
        self.held: dict[str, BatchJob] = {}

    def submit(self, job: BatchJob) -> str:
        if not job.flags:
            return self._host.submit(job)
        self.held[job.stamp] = job
        return f"held-{len(self.held)}"

    def survey(self, handles: Sequence[Handle], prefix: str) -> Survey:
        found = self._host.survey(handles, prefix)
        reports = {
            each.stamp: JobReport(state=State.WAITING if each.stamp in self.held else State.KILLED)
            for each in handles
            if (each.reference or "").startswith("held-")
        }
        return Survey(reports={**found.reports, **reports}, stamps=found.stamps | self.held.keys())

    def kill(self, handles: Sequence[Handle]) -> None:
        for each in handles:
            self.held.pop(each.stamp, None)
        self._host.kill(handles)

    def __getattr__(self, name: str) -> object:
        return getattr(self._host, name)


FLAGGED = "LCG.A.org/ce1/flagged"


def test_waiting_pilots_whose_jobs_are_gone_are_withdrawn_and_leave_their_places(ground: Ground) -> None:
    ground.service.configure(CONFIG.replace("flagged:\n", "flagged:\n              MaxWaitingJobs: 4\n"))
    batch_system = FullOfOthers(ground.host)
    ground.system.system = batch_system
    ground.submit(8, Requirements={"CPUModel": "amd"}, JobGroup="el9")
    director = ground.director(FLAGGED)
    assert ground.cycle(director).submitted == 4
    user = ground.service.user()
    user.post("/api/v1/jobs/kill", json={"job_group": "el9"}).raise_for_status()
    ground.submit(20)

    summaries = [ground.cycle(director) for _ in range(4)]

    assert [each.withdrawn for each in summaries] == [0, 0, 4, 0]
    assert f"surplus: 4 waiting pilots of {FLAGGED} (--constraint=amd) serve no job" in str(summaries[0])
    assert [each.submitted for each in summaries] == [0, 0, 0, 4]
    withdrawn = [each for each in ground.pilots() if each["status"] == "Deleted"]
    assert len(withdrawn) == 4
    reason = f"\nwithdrawn: a waiting pilot of {FLAGGED} (--constraint=amd) that serves no job"
    assert {each["status_reason"] for each in withdrawn} == {reason}
    assert not batch_system.held


def test_pilots_that_cannot_start_never_hold_the_last_place_of_a_queue(ground: Ground) -> None:
    ground.service.configure(CONFIG.replace("flagged:\n", "flagged:\n              MaxWaitingJobs: 4\n"))
    batch_system = FullOfOthers(ground.host)
    ground.system.system = batch_system
    ground.submit(8, Requirements={"CPUModel": "amd"})
    director = ground.director(FLAGGED)
    ground.cycle(director)
    ground.submit(1)
    assert len(batch_system.held) == 4

    ground.ahead = timedelta(minutes=3)
    summaries = [ground.cycle(director) for _ in range(4)]

    assert sum(each.withdrawn for each in summaries) == 1
    assert f"1 waiting pilot of {FLAGGED} (--constraint=amd) makes room for jobs of others" in str(
        summaries[0]
    )
    kinds = Counter(each["stamp"].split(".")[1] == "any" for each in ground.pilots())
    assert kinds == {False: 4, True: 1}, "the place went to the job that any node runs"
    assert len(batch_system.held) == 3


def test_a_pilot_whose_queue_left_the_file_is_followed_where_it_is_listed_and_else_given_up(
    ground: Ground,
) -> None:
    ground.submit(1)
    ground.cycle(ground.director(LONG))
    [pilot] = ground.pilots()
    other = ground.director(SHORT, longest_wait=3600)
    ground.cycle(other)
    ground.host.kill([Handle(stamp=pilot["stamp"])])
    wait_until_over(ground, [pilot["stamp"]])
    ground.ahead = timedelta(hours=2)

    summaries = [ground.cycle(other) for _ in range(2)]

    assert sum((each.ended for each in summaries), Counter()) == {"Deleted": 1}


def test_pilots_of_a_queue_that_no_system_has_any_more_are_aborted(ground: Ground) -> None:
    ground.submit(1)
    ground.cycle(ground.director(LONG))
    [pilot] = ground.pilots()
    ground.host.kill([Handle(stamp=pilot["stamp"])])
    ground.wait_until_ended()
    ground.host.forget([Handle(stamp=pilot["stamp"])])
    director = ground.director(SHORT, longest_wait=3600)

    early = ground.cycle(director)
    ground.ahead = timedelta(hours=2)
    late = ground.cycle(director)

    assert (early.ended, late.ended) == ({}, {"Aborted": 1})
    [pilot] = [each for each in ground.pilots() if each["queue"] == "long"]
    assert pilot["status_reason"] == f"\n{LONG} is not in the file of the director any more"


def test_what_could_not_be_written_was_not_submitted_and_leaves_no_pilots_that_wait(ground: Ground) -> None:
    ground.submit(3)
    director = ground.director(LONG)
    ground.faults.fault = Fault.FULL

    summary = ground.cycle(director)

    assert (summary.unsubmitted, summary.uncertain) == (3, 0)
    assert ground.statuses() == {"Deleted": 3}
    assert all("the spool is full" in pilot["status_reason"] for pilot in ground.pilots())


def test_the_problem_of_a_batch_system_is_shown_also_while_it_is_skipped(ground: Ground) -> None:
    ground.submit(1)
    director = ground.director(LONG)
    ground.faults.fault = Fault.FULL
    ground.cycle(director)
    assert ground.cycle(director).skipped == ["host"]

    ground.cycle(director)  # which reports the one that skipped it

    [process] = ground.service.operator().get("/api/v1/site-processes").json()["processes"]
    [problem] = process["problems"]
    assert "the spool is full" in problem
    explained = ground.service.user().get("/api/v1/jobs/1/explain").json()["now"]
    site = LONG.partition("/")[0]
    assert f"the director north, which sends pilots to {site}, reports problems" in " ".join(explained)
    assert "spool" not in " ".join(explained), "it names files of a host, and is for admins"


def test_a_queue_that_is_down_in_its_batch_system_is_reported(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.submit(1)
    director = ground.director(LONG)
    down = {"local": Capacity(cores=0, free_cores=0, waiting=0, running=0)}
    monkeypatch.setattr(LocalHost, "capacity", lambda _: down)
    assert ground.cycle(director).closed == [LONG]

    ground.cycle(director)

    [process] = ground.service.operator().get("/api/v1/site-processes").json()["processes"]
    assert process["problems"] == [f"down in their batch systems: {LONG}"]


def test_what_became_of_submissions_is_reported_once_the_service_is_there_again(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.submit(3)
    director = ground.director(LONG)
    ground.faults.fault = Fault.FULL

    def go_away(*_: object) -> frozenset[str]:
        raise ServiceAway("on purpose")

    with monkeypatch.context() as away:
        away.setattr(ServiceClient, "set_pilot_statuses", go_away)
        with pytest.raises(ServiceAway):
            ground.cycle(director)
    assert ground.statuses() == {"Submitted": 3}

    ground.cycle(director)

    assert ground.statuses() == {"Deleted": 3}


def test_pilots_whose_intents_are_stored_are_submitted_though_the_service_goes_away_then(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    for vo in ("cms", "dune"):
        ground.submit(1, vo=vo)
    director = ground.director(LONG, vos=("cms", "dune"))
    register, calls = ServiceClient.register_pilots, []

    def go_away(client: ServiceClient, *words: Any, **more: Any) -> Any:
        calls.append(more)
        if len(calls) > 1:
            raise ServiceAway("on purpose")
        return register(client, *words, **more)

    with monkeypatch.context() as away:
        away.setattr(ServiceClient, "register_pilots", go_away)
        summary = ground.cycle(director)

    assert (summary.submitted, ground.batch_jobs().total()) == (1, 1)
    assert "on purpose" in summary.problems
    assert ground.statuses().keys() <= {"Waiting", "Running"}


ROUTER = Broker(
    system="host",
    queues={LONG: "long", SHORT: "short"},
    entry="local",  # this host cannot be told which of several queues
)


def test_a_brokers_pilots_belong_to_no_queue_and_are_counted_once_for_all_that_it_may_pick(
    ground: Ground,
) -> None:
    ground.submit(4)
    director = ground.director(brokers={"wms": ROUTER})

    first, second = ground.cycle(director), ground.cycle(director)

    assert (first.jobs, first.submitted, second.submitted) == (4, 4, 0)
    assert second.waiting + second.running == 4
    for pilot in ground.pilots():
        assert (pilot["site"], pilot["possible_queues"]) == ("", [LONG, SHORT])
        assert pilot["stamp"].startswith("north.wms.any.")
    assert all(intent.possible_queues == {"long": LONG, "short": SHORT} for intent in ground.intents)
    assert not any(intent.pools for intent in ground.intents), "they ask where they land"


def test_a_broker_gets_no_more_pilots_than_its_queues_take_together(ground: Ground) -> None:
    ground.submit(20)
    director = ground.director(brokers={"wms": ROUTER})

    assert [ground.cycle(director).submitted for _ in range(3)] == [9, 0, 0]


def test_a_brokers_pilot_that_has_landed_is_counted_where_it_is(ground: Ground) -> None:
    ground.submit(20)
    director = ground.director(brokers={"wms": ROUTER})
    ground.cycle(director)
    landed(ground, ground.intents[0], LONG)

    ground.cycle(director)

    assert Counter(pilot["queue"] for pilot in ground.pilots()) == {"": 8, "long": 1}
    assert ground.statuses()["Running"] >= 1


def landed(ground: Ground, intent: PilotScript, queue: str) -> httpx.Client:
    """Speak for a pilot as it does where it lands."""
    exchange = {"request_id": "12345678-1234-5678-1234-567812345678"}
    path = f"/api/v1/pilots/{intent.stamp}/token"
    token = ground.service.client(intent.secret).post(path, json=exchange).json()["token"]
    pilot = ground.service.client(token)
    asked = pilot.post("/api/v1/matcher/getSubmitPoolsForQueue", json={"queues": [queue]})
    assert asked.status_code == 200, asked.text
    return pilot


def test_jobs_that_one_queue_alone_can_run_are_not_sent_to_a_broker_as_if_any_would_do(
    ground: Ground,
) -> None:
    ground.submit(2, MinRAM=3000)
    ground.submit(1)
    lists = ROUTER.model_copy(update={"entry": None})
    director = ground.director(brokers={"wms": lists})

    summary = ground.cycle(director)

    assert summary.wanted == 3
    asked = Counter(tuple(pilot["possible_queues"]) for pilot in ground.pilots())
    assert asked[(LONG,)], "the first of these is refused by this host, and known"
    assert summary.refused == len(asked)
    assert "no queue long" in " ".join(pilot["status_reason"] for pilot in ground.pilots())


def test_a_director_that_died_with_a_brokers_pilot_under_way_adopts_it(ground: Ground) -> None:
    ground.submit(2)
    ground.system.dies = "after"
    with suppress(KeyboardInterrupt):
        ground.cycle(ground.director(brokers={"wms": ROUTER}))
    ground.system.dies = ""

    again = ground.director(brokers={"wms": ROUTER})
    summaries = [ground.cycle(again) for _ in range(3)]

    assert sum(summary.adopted for summary in summaries) == 1
    assert ground.batch_jobs().total() == 2
    assert max(ground.system.submitted.values()) == 1


ORPHANS = {"orphans": Evidence(listings=3, seconds=100)}


def test_a_batch_job_that_nobody_knows_is_ended_after_looks_that_agree(ground: Ground) -> None:
    strange = new_stamp("north", ())
    others = [f"{name}.any.0123456789abcdef01234567" for name in ("south", "north-2")]
    others.append("north.12.1.3.1.0123456789")  # of a job manager that is called as we are
    others.append(new_stamp("north", (), service="https://other.example.org"))
    for stamp in (strange, *others):
        ground.host.submit(BatchJob(stamp=stamp, script=SLEEPS, queue="local"))
    director = ground.director(**ORPHANS)

    summaries = [ground.cycle(director) for _ in range(3)]
    wait_until(lambda: strange not in ground.host.survey((), strange).stamps)
    ground.cycle(director)

    assert [summary.killed for summary in summaries] == [0, 0, 1]
    assert any(strange in problem for problem in summaries[-1].problems)
    assert ground.host.survey((), "").stamps == set(others)
    assert strange not in ground.batch_jobs(), "nothing of it is left"


def test_what_could_not_be_listed_or_asked_for_in_between_proves_nothing(ground: Ground) -> None:
    strange = new_stamp("north", ())
    ground.host.submit(BatchJob(stamp=strange, script=SLEEPS, queue="local"))
    director = ground.director(**ORPHANS)
    for _ in range(5):
        ground.faults.fault = Fault.TIMEOUT
        assert ground.cycle(director).killed == 0
    ground.faults.fault = None

    assert [ground.cycle(director).killed for _ in range(3)] == [0, 0, 1]


def test_pilots_of_a_vo_that_was_taken_from_the_director_are_nobodys_orphans(ground: Ground) -> None:
    ground.submit(2, vo="dune")
    ground.cycle(ground.director(vos=("cms", "dune")))
    alone = ground.director(**ORPHANS)

    assert [ground.cycle(alone).killed for _ in range(5)] == [0] * 5
    assert len(ground.host.survey((), "north.").stamps) == 2


def test_a_batch_job_whose_pilot_ended_long_ago_is_ended(ground: Ground) -> None:
    ground.submit(1)
    ground.cycle(ground.director(LONG))
    [pilot] = ground.pilots()
    told = {"status": "Done", "reason": "no work"}
    ground.service.operator().post(f"/api/v1/pilots/{pilot['stamp']}/status", json=told)
    ground.ahead = timedelta(days=2)
    director = ground.director(LONG, **ORPHANS)

    assert [ground.cycle(director).killed for _ in range(3)] == [0, 0, 1]


def test_what_a_failed_pilot_wrote_is_kept_by_the_service(ground: Ground) -> None:
    ground.submit(1)
    ground.script = "#!/bin/sh\necho looking; echo 'no such library' >&2\nexit 3\n"
    director = ground.director(LONG)
    ground.cycle(director)
    ground.wait_until_ended()
    ground.cycle(director)
    ground.cycle(director)

    [pilot] = [pilot for pilot in ground.pilots() if pilot["status"] == "Aborted"]
    kept = ground.service.operator().get(f"/api/v1/pilots/{pilot['stamp']}/output").json()
    assert (kept["stdout"], kept["stderr"]) == ("looking", "no such library")


@dataclass
class BlackHole:
    """A host that takes lists of queues, and prefers the one on whose nodes every job ends at once."""

    host: LocalHost

    def submit(self, job: BatchJob) -> str:
        breaks = "short" in job.queue.split(",")
        script = "#!/bin/sh\nexit 3\n" if breaks else job.script
        return self.host.submit(replace(job, queue="local", script=script))

    def __getattr__(self, name: str) -> object:
        return getattr(self.host, name)


def test_a_queue_that_swallows_a_brokers_pilots_does_not_keep_the_jobs_from_another(ground: Ground) -> None:
    ground.submit(2)
    ground.system.system = BlackHole(ground.host)
    director = ground.director(brokers={"wms": ROUTER.model_copy(update={"entry": None})})

    for _ in range(12):
        ground.cycle(director)
        swallowed = [pilot["stamp"] for pilot in ground.pilots() if pilot["possible_queues"] != [LONG]]
        wait_until_over(ground, swallowed)
        ground.ahead += timedelta(minutes=5)
    ground.cycle(director)

    sound = [pilot for pilot in ground.pilots() if pilot["status"] in ("Waiting", "Running")]
    assert sound
    assert all(pilot["possible_queues"] == [LONG] for pilot in sound)


def wait_until_over(ground: Ground, stamps: Sequence[str]) -> None:
    handles, over = [Handle(stamp=stamp) for stamp in stamps], ENDED | {State.MISSING}
    wait_until(lambda: {report.state for report in ground.host.status(handles).values()} <= over)
