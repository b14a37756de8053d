"""One system that hangs, fails or lies costs the others nothing."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from pilotage.fabric.batch.batch_system import (
    BatchJob,
    BatchSystemAway,
    Capacity,
    Handle,
    JobReport,
    Output,
    ReliableSystem,
    State,
    SubmissionRefused,
    SubmissionUncertain,
    SubmissionUnread,
    Survey,
)
from pilotage.fabric.batch.shell import NoAnswer
from pilotage.fabric.cycle_summaries import DirectorSummary
from pilotage.fabric.director import workers
from pilotage.fabric.director.recorded_pilots import DirectorPilot, Status
from pilotage.fabric.director.targets import DirectorOptions, DirectorTargets, new_stamp
from pilotage.fabric.director.tracking import OrphanTracking, PilotTracking
from pilotage.fabric.director.workers import (
    ActionResults,
    PilotSubmission,
    PollRequest,
    SystemActions,
    SystemWorker,
)

HANDLES = [Handle(stamp=f"north.any.{number:024x}") for number in range(3)]
REQUEST = PollRequest(handles=HANDLES, prefix="north.", outputs=frozenset({HANDLES[0].stamp}))


@dataclass
class Scripted:
    """A batch system whose verbs do what a test wants."""

    surveying: Callable[[], State] = lambda: State.RUNNING
    submitting: Callable[[str], str] = lambda stamp: f"ref-{stamp}"
    measuring: Callable[[], Mapping[str, Capacity]] = dict
    old: frozenset[str] = frozenset()
    surveys: int = 0
    submitted: list[str] = field(default_factory=list)
    killing: Callable[..., None] = lambda _: None

    def survey(self, handles: Sequence[Handle], prefix: str) -> Survey:
        self.surveys += 1
        state = self.surveying()
        return Survey(
            reports={each.stamp: JobReport(state=state) for each in handles},
            stamps=frozenset(each.stamp for each in handles if each.stamp.startswith(prefix)),
        )

    def capacity(self) -> Mapping[str, Capacity]:
        return self.measuring()

    def list_old_areas(self, seconds: float) -> frozenset[str]:
        assert seconds == 7 * 86_400
        return self.old

    def output(self, handle: Handle) -> Output:
        raise BatchSystemAway(f"no output of {handle.stamp}")

    def kill(self, handles: Sequence[Handle]) -> None:
        self.killing(handles)

    def forget(self, handles: Sequence[Handle]) -> None:
        pass

    def submit(self, job: BatchJob) -> str:
        self.submitted.append(job.stamp)
        return self.submitting(job.stamp)


def worker(system: Any, name: str = "farm", **more: Any) -> SystemWorker:
    return SystemWorker(name=name, system=ReliableSystem(name=name, system=system), seconds=60, **more)


def poll(*those: SystemWorker, seconds: float = 300) -> tuple[set[str], DirectorSummary]:
    summary = DirectorSummary(at=datetime.now(UTC))
    requests = {each.name: REQUEST for each in those}
    found = workers.poll_all({each.name: each for each in those}, requests, seconds, summary)
    return set(found), summary


def raiser(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (BatchSystemAway("squeue: connection refused"), "bad: squeue: connection refused"),
        (IndexError("list index out of range"), "bad: a fault of its adapter: IndexError"),
    ],
)
def test_a_system_that_fails_is_named_and_skipped_and_the_others_go_on(
    error: Exception, message: str
) -> None:
    system = Scripted(surveying=raiser(error))
    bad, good = worker(system, "bad"), worker(Scripted(), "good")

    polls = [poll(bad, good) for _ in range(12)]

    assert [found for found, _ in polls] == [{"good"}] * 12
    assert system.surveys == 4, "in the cycles 1, 3, 6 and 11"
    [first, *_] = polls[0][1].away
    assert first.startswith(message)
    assert polls[1][1].away == []
    assert polls[1][1].skipped == ["bad"]
    assert first.endswith("; skipped for 1 cycle")
    assert bad.trouble.startswith(message), "also in the cycles that skip it"


def test_a_system_that_works_again_is_polled_in_every_cycle() -> None:
    answers = iter([raiser(BatchSystemAway("x")), lambda: State.RUNNING, lambda: State.RUNNING])
    flaky = worker(Scripted(surveying=lambda: next(answers)()))

    assert [poll(flaky)[0] for _ in range(4)] == [set(), set(), {"farm"}, {"farm"}]
    assert flaky.trouble == ""


def test_a_system_that_hangs_is_waited_for_once_and_its_late_answer_counts() -> None:
    opened = threading.Event()

    def hang() -> State:
        opened.wait()
        return State.RUNNING

    slow, good = worker(Scripted(surveying=hang), "slow"), worker(Scripted(), "good")
    first, _ = poll(slow, seconds=0.05)
    second, _ = poll(slow, good, seconds=3600)

    assert (first, second) == (set(), {"good"})
    assert not slow.is_usable
    opened.set()
    [future] = slow.pending()
    future.result()
    assert poll(slow, good)[0] == {"slow", "good"}
    assert slow.is_usable


def poll_frozen(seconds: float) -> tuple[SystemWorker, DirectorSummary]:
    """A worker whose task has no end, and its second poll so long after the first."""
    now = [0.0]
    frozen = worker(Scripted(surveying=threading.Event().wait), clock=lambda: now[0])  # type: ignore[arg-type]
    poll(frozen, seconds=0.01)
    now[0] = seconds
    return frozen, poll(frozen)[1]


def test_a_task_without_an_end_is_reported_with_the_name_of_its_system() -> None:
    frozen, summary = poll_frozen(300.0)

    assert summary.away == [frozen.trouble] == ["farm: a command or its file system hangs for 300 s"]
    assert not frozen.is_usable


def test_a_task_that_is_late_is_no_failure_yet() -> None:
    late, summary = poll_frozen(20.0)

    assert (summary.away, summary.skipped) == ([], ["farm"])
    assert late.trouble == "", "it may answer in its time"


def test_a_failing_capacity_leaves_what_was_known() -> None:
    known = {"long": Capacity(cores=8, free_cores=8, waiting=0, running=0)}
    answers = iter([lambda: known, raiser(BatchSystemAway("sinfo: busy"))])
    now = [0.0]
    farm = worker(Scripted(measuring=lambda: next(answers)()), clock=lambda: now[0])
    poll(farm)
    now[0] = 1000.0

    found, summary = poll(farm)

    assert (found, summary.away) == ({"farm"}, ["farm: sinfo: busy"])
    assert farm.snapshot is not None
    assert farm.snapshot.capacity == known


def test_an_output_that_cannot_be_fetched_is_reported_as_that() -> None:
    farm = worker(Scripted(surveying=lambda: State.FAILED))
    poll(farm)
    assert farm.snapshot is not None
    assert farm.snapshot.outputs == {HANDLES[0].stamp: f"farm: no output of {HANDLES[0].stamp}"}


def act(
    system: Scripted,
    *targets: str,
    kill: Sequence[Handle] = (),
    problems: list[str] | None = None,
    **more: Any,
) -> tuple[ActionResults, SystemWorker]:
    farm = worker(system, **more)
    jobs = [
        PilotSubmission(
            stamp=str(number),
            target=target,
            make_job=lambda number=number: BatchJob(stamp=str(number), script="", queue="x"),
        )
        for number, target in enumerate(targets)
    ]
    farm.begin_actions(SystemActions(kill=kill, submit=jobs))
    workers.wait_for([farm], 300)
    results = farm.take_results([] if problems is None else problems)
    assert results is not None
    return results, farm


def test_after_a_refusal_no_other_pilot_is_sent_to_its_target() -> None:
    system = Scripted(submitting=lambda stamp: stamp if stamp == "2" else raiser(SubmissionRefused("no"))())

    results, farm = act(system, "long", "long", "short")

    assert (results.refused.keys(), results.submitted) == ({"0"}, {"2": "2"})
    assert results.unsubmitted == {"1": "one before it was refused: farm: no"}
    assert farm.failures == 0, "a refusal is an answer"


def test_after_an_answer_without_a_reference_the_others_are_submitted() -> None:
    system = Scripted(submitting=raiser(SubmissionUnread("a banner")))
    problems: list[str] = []

    results, farm = act(system, "long", "short", "long", problems=problems)

    assert (results.uncertain.keys(), results.unsubmitted) == ({"0", "1", "2"}, {})
    assert problems == ["farm: a banner"], "one tells enough"
    assert farm.failures == 0, "the system answers"


@pytest.mark.parametrize(
    ("error", "uncertain", "unsubmitted"),
    [
        (SubmissionUncertain("no answer"), {"0"}, {"1", "2"}),
        (BatchSystemAway("no space left"), set(), {"0", "1", "2"}),
        (ValueError("a bug"), {"0"}, {"1", "2"}),
    ],
)
def test_after_a_failure_nothing_else_is_submitted_and_what_was_not_is_certain(
    error: Exception, uncertain: set[str], unsubmitted: set[str]
) -> None:
    system = Scripted(submitting=raiser(error))

    results, farm = act(system, "long", "short", "long")

    assert (results.uncertain.keys(), results.unsubmitted.keys()) == (uncertain, unsubmitted)
    assert system.submitted == ["0"]
    assert farm.failures == 1


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (NoAnswer("qdel gave no answer in 30 s"), "farm: qdel gave no answer in 30 s"),
        (KeyError("17"), "farm: a fault of its adapter: KeyError('17')"),
    ],
)
def test_a_kill_that_hangs_or_breaks_concerns_its_own_system_only(error: Exception, why: str) -> None:
    results, farm = act(Scripted(killing=raiser(error)), "long", kill=HANDLES)

    assert (results.problems, results.unsubmitted) == ([why], {"0": why})
    assert farm.failures == 1


def test_a_job_that_cannot_be_ended_keeps_no_pilot_from_its_batch_system() -> None:
    killing = raiser(BatchSystemAway("qdel: Server could not connect to MOM 17.head"))
    problems: list[str] = []

    results, farm = act(Scripted(killing=killing), "long", kill=HANDLES, problems=problems)

    assert results.submitted == {"0": "ref-0"}
    assert (problems, farm.failures) == (["farm: qdel: Server could not connect to MOM 17.head"], 0)


def test_what_no_time_is_left_for_is_not_submitted_and_says_why() -> None:
    now = [0.0]

    def submit_slowly(stamp: str) -> str:
        now[0] += 61
        return stamp

    results, _ = act(Scripted(submitting=submit_slowly), "long", "long", clock=lambda: now[0])

    assert results.submitted == {"0": "0"}
    why = "farm: not submitted, its 60 s of this cycle (system_timeout) were over"
    assert results.unsubmitted == {"1": why}


def test_old_work_areas_of_pilots_that_nobody_follows_are_removed() -> None:
    names = ("followed", "living", "ended", "lost")
    stamps = {name: new_stamp("north", ()) for name in names}
    foreign = new_stamp("north", (), service="https://other.example.org")
    others = {new_stamp("south", ()), foreign, "north.12.1.3.1.0123456789"}
    scripted = Scripted(old=frozenset({*stamps.values(), *others}))
    sites = DirectorTargets(queues={}, systems={}, options=DirectorOptions(name="north"), script=lambda _: "")
    tracking = PilotTracking(sites=sites, pilots={})
    worker = SystemWorker(name="ce", system=ReliableSystem(system=scripted), seconds=60)  # type: ignore[arg-type]
    snapshot = worker._poll(tracking._build_request(()), deadline=worker.clock() + 60)
    assert snapshot.old_areas == scripted.old
    assert worker._poll(tracking._build_request(()), deadline=worker.clock() + 60).old_areas == frozenset()

    class Client:
        def pilot_standings(self, asked: Sequence[str]) -> Mapping[str, str]:
            known = {stamps["living"]: "active", stamps["ended"]: "ended"}
            return {stamp: known.get(stamp, "unknown") for stamp in asked}

    summary = DirectorSummary(at=datetime.now(UTC))
    orphans = OrphanTracking(sites=sites)
    found = orphans.find({"ce": snapshot}, {stamps["followed"]}, Client(), summary)  # type: ignore[arg-type]
    assert {each.stamp for each in found["ce"].forget} == {stamps["ended"], stamps["lost"]}
    assert not found["ce"].kill


def test_pilots_that_were_cleared_up_are_remembered_as_long_as_the_service_reports_them() -> None:
    sites = DirectorTargets(queues={}, systems={}, options=DirectorOptions(name="north"), script=lambda _: "")
    tracking = PilotTracking(sites=sites, pilots={})
    stamps = [new_stamp("north", ()) for _ in range(2)]
    tracking.mark_cleared(stamps)
    long_ago = datetime(2026, 1, 1, tzinfo=UTC)
    pilot = DirectorPilot(
        stamp=stamps[0],
        vo="cms",
        queue="LCG.A.org/ce1/long",
        status=Status.DONE,
        reference="17",
        jobs=1,
        created_at=long_ago,
        updated_at=long_ago,
        last_seen_at=long_ago,
    )

    tracking.build_requests([pilot], {})

    assert tracking._cleared == {stamps[0]}
