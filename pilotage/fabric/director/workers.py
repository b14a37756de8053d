"""One worker per batch system: each uses its system in a thread of its own, so that none delays the others.

A worker does one task at a time, a poll or a set of actions, with one deadline. It talks to its batch system
only; the director talks to the service only, and decides from the last snapshots. A task that hangs, for
example in a frozen file system, costs its own system's pilots a delay and the director nothing: the threads
are daemons, and no process waits for them. After failures a system is skipped for 1, 2, 4 … cycles.
"""

import _thread
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from pilotage.fabric.batch.batch_system import (
    BatchJob,
    BatchSystemAway,
    Capacity,
    Handle,
    JobReport,
    KeepsWorkAreas,
    Output,
    ReliableSystem,
    State,
    SubmissionRefused,
    SubmissionUncertain,
    SubmissionUnread,
)
from pilotage.fabric.batch.shell import NoAnswer
from pilotage.fabric.cycle_summaries import DirectorSummary
from requirements.errors import format_count

log = logging.getLogger(__name__)

#: Cycles that a system is skipped at most after failures.
MOST_SKIPPED = 32
#: Seconds between two queries of the capacity: it costs some batch systems more than all else.
_CAPACITY_SECONDS = 600.0
#: Seconds between two listings of old work areas.
_AREAS_SECONDS = 3600.0
#: Part of a task's time that submissions may take, as far as their duration is known.
_SUBMITTING = 0.5
_FAILED = frozenset({State.FAILED, State.KILLED})
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class PollRequest:
    """Request of a poll: the jobs to report on."""

    handles: Sequence[Handle]
    prefix: str  #: of all our stamps
    outputs: frozenset[str] = frozenset()  #: stamps whose output is required once they have failed
    old_areas: float | None = None  #: seconds after which a work area is old; None: they are not listed


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSnapshot:
    """State of a batch system at its last poll."""

    reports: Mapping[str, JobReport]  #: by stamp
    stamps: frozenset[str]  #: of our jobs that are listed and have not ended
    outputs: Mapping[str, Output | str]  #: by stamp, of jobs that failed; or the error of fetching it
    capacity: Mapping[str, Capacity]  #: by batch queue
    problems: tuple[str, ...] = ()
    old_areas: frozenset[str] = frozenset()  #: stamps of work areas, listed once an hour

    def is_complete(self, stamp: str, request: PollRequest) -> bool:
        """Whether all that was requested of a job is here; the rest comes with a later poll."""
        is_required = stamp in request.outputs and self.reports[stamp].state in _FAILED
        return not is_required or stamp in self.outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemActions:
    """Actions in a batch system, done in this order."""

    kill: Sequence[Handle] = ()
    forget: Sequence[Handle] = ()
    submit: Sequence["PilotSubmission"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotSubmission:
    """A pilot to submit."""

    stamp: str
    target: str  #: after a refusal no other pilot is sent there in this cycle
    make_job: Callable[[], BatchJob]  #: its script is large


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionResults:
    """Results of actions; each stamp to be submitted is in one of the four."""

    submitted: dict[str, str] = field(default_factory=dict)  #: by stamp the reference
    refused: dict[str, str] = field(default_factory=dict)  #: by stamp the reason
    uncertain: dict[str, str] = field(default_factory=dict)  #: by stamp the error
    unsubmitted: dict[str, str] = field(default_factory=dict)  #: by stamp why it was certainly not submitted
    forgotten: frozenset[str] = frozenset()
    complaints: list[str] = field(default_factory=list)  #: of jobs that could not be ended, and of answers
    problems: list[str] = field(default_factory=list)  #: of the batch system itself


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task(Generic[_Result]):
    future: "Future[_Result]"
    began: float


@dataclass(slots=True, kw_only=True)
class SystemWorker:
    """Uses one batch system, one task at a time; its methods are for the director's thread."""

    name: str  #: of the batch system
    system: ReliableSystem
    seconds: float  #: of a task
    clock: Callable[[], float] = time.monotonic
    snapshot: SystemSnapshot | None = None  #: of the last poll that succeeded
    failures: int = 0  #: in a row
    skipped: int = 0  #: cycles that it is still skipped
    is_slow: bool = False  #: a task was not over when the director went on, and none has succeeded since
    trouble: str = ""  #: why it is skipped; empty once a poll has succeeded
    _polling: _Task[SystemSnapshot] | None = None
    _acting: _Task[ActionResults] | None = None
    _capacity: Mapping[str, Capacity] = field(default_factory=dict)
    _capacity_at: float | None = None
    _areas_listed_at: float | None = None
    _submission_seconds: float = 0.0  #: of one, on average

    @property
    def is_idle(self) -> bool:
        """Whether it has no task."""
        return self._polling is None and self._acting is None

    @property
    def has_polled(self) -> bool:
        """Whether a poll is over whose result was not taken yet."""
        return self._polling is not None and self._polling.future.done()

    @property
    def is_usable(self) -> bool:
        """Whether it may get actions: its last poll succeeded."""
        return self.is_idle and not self.failures and self.snapshot is not None

    @property
    def most_submissions(self) -> int:
        """Submissions that fit into one task."""
        if not self._submission_seconds:
            return 10_000
        return max(1, int(self.seconds * _SUBMITTING / self._submission_seconds))

    def begin_poll(self, request: PollRequest) -> None:
        """Begin a poll, unless the system is skipped in this cycle or still has a task."""
        if self.skipped:
            self.skipped -= 1
        elif self.is_idle:
            self._polling = self._begin(lambda deadline: self._poll(request, deadline))

    def begin_actions(self, actions: SystemActions) -> None:
        """Begin actions; the worker has to be usable."""
        self._acting = self._begin(lambda deadline: self._act(actions, deadline))

    def pending(self) -> Iterator["Future[Any]"]:
        """The future of the current task, if any."""
        for task in (self._polling, self._acting):
            if task is not None:
                yield task.future

    def take_snapshot(self, problems: list[str]) -> SystemSnapshot | None:
        """The result of a poll that is over; None: there is none, or it failed, which is counted."""
        if self._polling is None:
            return None
        if not self._polling.future.done():
            self._note_hanging(self._polling, problems)
            return None
        future, self._polling = self._polling.future, None
        try:
            self.snapshot = future.result()
        except BatchSystemAway as error:
            self._note_failure(str(error), problems)
            return None
        except Exception as error:  # of an adapter, which may be of any package: the others go on
            log.exception("%s: the poll failed", self.name)
            self._note_failure(self._describe_fault(error), problems)
            return None
        self.failures, self.is_slow, self.trouble = 0, False, ""
        problems += self.snapshot.problems
        return self.snapshot

    def take_results(self, problems: list[str]) -> ActionResults | None:
        """The results of actions that are over; None: there are none."""
        if self._acting is None:
            return None
        if not self._acting.future.done():
            self._note_hanging(self._acting, problems)
            return None
        future, self._acting = self._acting.future, None
        results = future.result()
        problems += results.complaints
        if results.problems:
            self._note_failure(results.problems[0], problems)
        return results

    def _begin(self, work: Callable[[float], _Result]) -> _Task[_Result]:
        future: Future[_Result] = Future()
        began = self.clock()

        def run() -> None:
            try:
                future.set_result(work(began + self.seconds))
            except BaseException as error:  # noqa: BLE001 - for the director's thread, which takes the result
                future.set_exception(error)

        # A daemon. Unlike `Thread.start` this does not wait until it runs: there are hundreds of them.
        _thread.start_new_thread(run, ())
        return _Task(future=future, began=began)

    def _note_failure(self, problem: str, problems: list[str]) -> None:
        self.failures += 1
        self.skipped = min(2 ** (self.failures - 1), MOST_SKIPPED)
        self.trouble = f"{problem}; skipped for {format_count(self.skipped, 'cycle')}"
        problems.append(self.trouble)

    def _note_hanging(
        self, task: "_Task[SystemSnapshot] | _Task[ActionResults]", problems: list[str]
    ) -> None:
        self.is_slow = True
        age = self.clock() - task.began
        if age > self.seconds:
            self.failures = max(1, self.failures)
            problem = f"{self.name}: a command or its file system hangs for "
            if not any(each.startswith(problem) for each in problems):  # a cycle looks several times
                self.trouble = f"{problem}{age:.0f} s"
                problems.append(self.trouble)

    def _poll(self, request: PollRequest, deadline: float) -> SystemSnapshot:
        survey = self.system.survey(request.handles, request.prefix)
        problems = self._update_capacity()
        outputs: dict[str, Output | str] = {}
        for handle in request.handles:
            report = survey.reports[handle.stamp]
            if handle.stamp not in request.outputs or report.state not in _FAILED:
                continue
            if self.clock() > deadline:
                break
            outputs[handle.stamp] = self._fetch_output(handle, report)
        return SystemSnapshot(
            reports=survey.reports,
            stamps=survey.stamps,
            outputs=outputs,
            capacity=self._capacity,
            problems=problems,
            old_areas=self._list_old_areas(request.old_areas),
        )

    def _list_old_areas(self, seconds: float | None) -> frozenset[str]:
        system, now = self.system.system, self.clock()
        is_due = self._areas_listed_at is None or now - self._areas_listed_at >= _AREAS_SECONDS
        if seconds is None or not is_due or not isinstance(system, KeepsWorkAreas):
            return frozenset()
        self._areas_listed_at = now
        try:
            return system.list_old_areas(seconds)
        except BatchSystemAway:
            return frozenset()

    def _update_capacity(self) -> tuple[str, ...]:
        """Query the capacity if the last one is old; a failure of that query alone stops nothing."""
        now = self.clock()
        if self._capacity_at is not None and now - self._capacity_at < _CAPACITY_SECONDS:
            return ()
        try:
            self._capacity, self._capacity_at = self.system.capacity(), now
        except BatchSystemAway as error:
            if self._capacity_at is None:
                raise  # whether its queues are up is not known
            return (str(error),)
        return ()

    def _fetch_output(self, handle: Handle, report: JobReport) -> Output | str:
        try:
            return self.system.output(Handle(stamp=handle.stamp, reference=report.reference))
        except BatchSystemAway as error:
            return str(error)

    def _act(self, actions: SystemActions, deadline: float) -> ActionResults:
        results = ActionResults()
        try:
            if actions.kill:
                self._kill(actions.kill, results)
            if actions.forget:
                self.system.forget(actions.forget)
        except BatchSystemAway as error:
            results.problems.append(str(error))
        except Exception as error:  # of an adapter: the others go on
            log.exception("%s: jobs are not ended or removed", self.name)
            results.problems.append(self._describe_fault(error))
        else:
            results = replace(results, forgotten=frozenset(each.stamp for each in actions.forget))
        self._submit_all(actions.submit, results, deadline)
        return results

    def _kill(self, handles: Sequence[Handle], results: ActionResults) -> None:
        """End jobs; one that cannot be ended, as on a dead node, keeps nothing else from its batch system."""
        try:
            self.system.kill(handles)
        except NoAnswer:
            raise
        except BatchSystemAway as error:
            results.complaints.append(str(error))

    def _submit_all(self, jobs: Sequence[PilotSubmission], results: ActionResults, deadline: float) -> None:
        """Submit until the system fails or the time is over; the rest was certainly not submitted."""
        stopped: dict[str, str] = {}
        began, done = self.clock(), 0
        late = f"{self.name}: not submitted, its {self.seconds:g} s of this cycle (system_timeout) were over"
        for each in jobs:
            if results.problems or self.clock() > deadline:
                why = results.problems[0] if results.problems else late
                results.unsubmitted[each.stamp] = why
            elif each.target in stopped:
                results.unsubmitted[each.stamp] = stopped[each.target]
            else:
                done += 1
                self._submit(each, results)
                if each.stamp in results.refused:
                    stopped[each.target] = f"one before it was refused: {results.refused[each.stamp]}"
        if done:
            self._submission_seconds = (self.clock() - began) / done

    def _submit(self, job: PilotSubmission, results: ActionResults) -> None:
        """Submit a pilot; with a problem, no other one should follow."""
        try:
            results.submitted[job.stamp] = self.system.submit(job.make_job())
        except SubmissionRefused as error:
            results.refused[job.stamp] = str(error)
        except SubmissionUnread as error:
            if not results.uncertain:  # of many one tells enough
                results.complaints.append(str(error))
            results.uncertain[job.stamp] = str(error)
        except SubmissionUncertain as error:
            # It may be there: the intent stays, and the next polls show it.
            results.uncertain[job.stamp] = str(error)
            results.problems.append(str(error))
        except BatchSystemAway as error:
            results.unsubmitted[job.stamp] = str(error)
            results.problems.append(str(error))
        except Exception as error:  # of an adapter: what it did is not known
            log.exception("%s: the submission failed", self.name)
            results.uncertain[job.stamp] = self._describe_fault(error)
            results.problems.append(results.uncertain[job.stamp])

    def _describe_fault(self, error: Exception) -> str:
        return f"{self.name}: a fault of its adapter: {error!r:.300}"


def poll_all(
    workers: Mapping[str, SystemWorker],
    requests: Mapping[str, PollRequest],
    seconds: float,
    summary: DirectorSummary,
) -> Mapping[str, SystemSnapshot]:
    """Poll all batch systems at the same time; the snapshots that are there after a while.

    A poll of the cycle before that was late counts for this one.
    """
    early = [each for each in workers.values() if each.has_polled]
    found = _take_snapshots(early, summary)
    rest = [each for each in workers.values() if each not in early]
    for each in rest:
        each.begin_poll(requests[each.name])
    wait_for(rest, seconds)
    found |= _take_snapshots(rest, summary)
    summary.polled = len(found)
    summary.skipped = sorted(each.name for each in workers.values() if each.name not in found)
    return found


def _take_snapshots(workers: Iterable[SystemWorker], summary: DirectorSummary) -> dict[str, SystemSnapshot]:
    found = {each.name: each.take_snapshot(summary.away) for each in workers}
    return {name: snapshot for name, snapshot in found.items() if snapshot is not None}


def wait_for(workers: Iterable[SystemWorker], seconds: float) -> None:
    """Wait for the tasks of workers that were in time before; those of the others are taken when they end."""
    tasks = {each.name: (each, list(each.pending())) for each in workers}
    waited = [future for each, pending in tasks.values() if not each.is_slow for future in pending]
    futures.wait(waited, timeout=seconds)
    for each, pending in tasks.values():
        if pending:
            each.is_slow = any(not future.done() for future in pending)
