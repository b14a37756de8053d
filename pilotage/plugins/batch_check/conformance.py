"""Checks that every batch system has to pass, and the bench for submission, waiting and cleanup.

`pilotage-batch-check` runs them against a real system. Each check submits jobs of its own; the caller cleans
up with `Bench.close`.
"""

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pilotage.fabric.batch.batch_system import (
    ENDED,
    BatchJob,
    BatchSystem,
    BatchSystemAway,
    Evidence,
    Handle,
    JobReport,
    JobResources,
    ReliableSystem,
    State,
    SubmissionRefused,
    SubmissionUncertain,
)
from pilotage.plugins.batch_check.fault_injection import Fault, FaultyHttp, FaultyShell, FaultySystem


class Violated(Exception):
    """A batch system violates a requirement."""


@dataclass(slots=True, kw_only=True)
class Bench:
    """A batch system under test."""

    system: BatchSystem
    queue: str
    faults: FaultyShell | FaultyHttp | None = None  #: behind the system; None: at its interface
    resources: JobResources = field(default_factory=JobResources)
    poll: float = 0.2  #: seconds between two looks at a job
    knows_queues: bool = True  #: it refuses unknown queues, and reports the capacity of its own
    gentle: bool = True  #: a kill leaves a job the time to end by itself
    many: int = 1000  #: jobs of one query
    patience: float = 120.0  #: seconds until a small job has ended
    _open: list[Handle] = field(default_factory=list)

    def job(self, script: str) -> BatchJob:
        """A job under a new stamp, which will be ended and removed if it is submitted."""
        stamp = self.stamp()
        self._open.append(Handle(stamp=stamp))
        return BatchJob(stamp=stamp, script=script, queue=self.queue, resources=self.resources)

    def submit(self, script: str) -> Handle:
        """Submit a script under a new stamp."""
        job = self.job(script)
        return Handle(stamp=job.stamp, reference=self.system.submit(job))

    def start(self, script: str) -> Handle:
        """Submit a script that writes `up` first, and wait until it has.

        A batch system may report a job as running before its first process does anything, and a kill at that
        moment leaves nothing of it.
        """
        handle = self.submit(script)
        self.until(handle, State.RUNNING)
        if self.gentle:  # elsewhere the output comes with the end
            self.wait_for_output(handle, b"up\n")
        return handle

    def stamp(self) -> str:
        """A stamp that nobody has."""
        return f"check-{uuid.uuid4()}"

    def report(self, handle: Handle) -> JobReport:
        """The state of a job."""
        return self.system.status([handle])[handle.stamp]

    def until(self, handle: Handle, *states: State) -> JobReport:
        """Wait until a job is in one of the states."""
        deadline = time.monotonic() + self.patience
        while (report := self.report(handle)).state not in states:
            if time.monotonic() > deadline:
                raise Violated(f"after {self.patience:.0f} s a job is {report}, expected {', '.join(states)}")
            if report.state in ENDED:
                raise Violated(f"a job ended as {report}, expected {', '.join(states)}")
            time.sleep(self.poll)
        return report

    def wait_for_output(self, handle: Handle, beginning: bytes) -> bytes:
        """The standard output of a job as soon as it begins so, else what there is in the end."""
        deadline = time.monotonic() + self.patience
        while not (output := self.system.output(handle).stdout).startswith(beginning):
            if time.monotonic() > deadline:
                break
            time.sleep(self.poll)
        return output

    @contextmanager
    def with_fault(self, fault: Fault) -> Iterator[BatchSystem]:
        """The batch system while something goes wrong: with its commands, or at the seam if it has none."""
        faults = self.faults or FaultySystem(system=self.system)
        faults.fault = fault
        try:
            yield faults if isinstance(faults, FaultySystem) else self.system
        finally:
            faults.fault = None

    def close(self) -> None:
        """End and remove all that was submitted."""
        handles, self._open = self._open, []
        self.system.kill(handles)
        deadline = time.monotonic() + self.patience
        while time.monotonic() < deadline:
            states = {report.state for report in self.system.status(handles).values()}
            if states <= ENDED | {State.MISSING}:
                break
            time.sleep(self.poll)
        self.system.forget(handles)


_SLEEPS = "#!/bin/sh\nexec sleep 600\n"


def _require(holds: object, message: str) -> None:
    if not holds:
        raise Violated(message)


def round_trip(bench: Bench) -> None:
    """A job runs, its output comes back, and its end with status 0 is seen."""
    handle = bench.submit("#!/bin/sh\necho out of $0\necho err >&2\n")
    _require(handle.reference, "a submission has to give a reference")
    report = bench.until(handle, State.DONE)
    _require(report.exit_code in (0, None), f"status 0 was reported as {report}")
    stdout = bench.wait_for_output(handle, b"out of")  # a shared directory shows files late
    _require(stdout.startswith(b"out of"), f"the standard output is {stdout[:100]!r}")
    stderr = bench.system.output(handle).stderr
    _require(stderr == b"err\n", f"the standard error is {stderr[:100]!r}")


def exit_status(bench: Bench) -> None:
    """A script's status other than 0 is a failure, and told."""
    report = bench.until(bench.submit("#!/bin/sh\nexit 7\n"), State.FAILED)
    _require(report.exit_code == 7, f"status 7 was reported as {report.exit_code}")


def script_as_written(bench: Bench) -> None:
    """Quotes, dollars, backslashes and letters beyond ASCII in a script arrive as they are."""
    text = "a 'b' \"c\" $HOME \\n `d` é %j %x"
    script = f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n"
    handle = bench.submit(script)
    bench.until(handle, State.DONE)
    said = bench.wait_for_output(handle, text.encode()).decode()
    _require(said == f"{text}\n", f"instead of {text!r} came {said!r}")


def kill_running(bench: Bench) -> None:
    """A running job is ended, with what it started, and can say goodbye where kills are gentle."""
    # TERM may reach what it started first, which ends the wait.
    wait = "while :; do wait; sleep 0.1; done"
    handle = bench.start(f"#!/bin/sh\ntrap 'echo bye; exit 9' TERM\necho up\nsleep 600 &\n{wait}\n")
    bench.system.kill([handle])
    bench.until(handle, State.KILLED)
    # Some systems send TERM to all processes; our wrapper passes it on besides. Some report the end of a job
    # whose processes are still ending.
    output = bench.wait_for_output(handle, b"up\nbye\n") if bench.gentle else b""
    is_gentle = output.startswith(b"up\nbye\n")
    _require(is_gentle or not bench.gentle, f"a killed job was not sent TERM first; it wrote {output!r}")


def kill_unknown(bench: Bench) -> None:
    """Killing what is not there, or has ended, is no error and hits nobody else."""
    other = bench.submit(_SLEEPS)
    done = bench.submit("#!/bin/sh\n:\n")
    bench.until(done, State.DONE)
    bench.system.kill([Handle(stamp=bench.stamp()), done])
    _require(bench.report(done).state is State.DONE, "a kill after the end changed how a job ended")
    _require(bench.report(other).state not in ENDED, "a kill reached another job")


def kill_by_stamp(bench: Bench) -> None:
    """A job whose reference was never received is ended by its stamp."""
    handle = bench.start("#!/bin/sh\necho up\nexec sleep 600\n")
    bench.system.kill([Handle(stamp=handle.stamp)])
    bench.until(handle, State.KILLED)


def found_by_stamp(bench: Bench) -> None:
    """A job is found by its stamp; one that was never submitted is not."""
    handle = bench.submit(_SLEEPS)
    nobody = bench.stamp()
    found = bench.system.find([handle.stamp, nobody])
    expected = {handle.stamp: (handle.reference,)}
    _require(found == expected, f"found {found}, expected {expected}")
    report = bench.report(Handle(stamp=nobody))
    _require(report.state is State.MISSING, f"a job that never was is {report}")


def listed_by_prefix(bench: Bench) -> None:
    """Our jobs that have not ended are listed by what their stamps begin with; no others are."""
    other = bench.submit(_SLEEPS)
    done = bench.submit("#!/bin/sh\n:\n")
    bench.until(done, State.DONE)
    handle = bench.submit(_SLEEPS)
    found = bench.system.survey((), handle.stamp[:-1]).stamps
    _require(handle.stamp in found, f"{handle.stamp} is not among {sorted(found)}")
    _require(other.stamp not in found, f"{other.stamp} does not begin with {handle.stamp[:-1]}")
    still = bench.system.survey((), done.stamp).stamps
    _require(done.stamp not in still, "a job that ended is listed as if it had not")


def wrong_reference(bench: Bench) -> None:
    """Numbers are given out again: a job is known by its stamp, not by a reference that another one has."""
    other = bench.submit(_SLEEPS)
    done = bench.submit("#!/bin/sh\n:\n")
    bench.until(done, State.DONE)
    report = bench.report(Handle(stamp=done.stamp, reference=other.reference))
    _require(report.state is State.DONE, f"with another's reference a finished job is {report}")
    bench.system.kill([Handle(stamp=done.stamp, reference=other.reference)])
    _require(bench.report(other).state not in ENDED, "a kill went by the reference and reached another job")


def many_in_one_query(bench: Bench) -> None:
    """Many jobs are asked for at once, and each has its answer."""
    handles = [bench.submit("#!/bin/sh\n:\n") for _ in range(5)]
    strangers = [Handle(stamp=bench.stamp()) for _ in range(bench.many - len(handles))]
    reports = bench.system.status([*strangers, *handles])
    _require(len(reports) == bench.many, f"{bench.many} asked, {len(reports)} answered")
    for handle in handles:
        bench.until(handle, State.DONE)


def refusal(bench: Bench) -> None:
    """What the batch system will never take is refused at once, and not kept."""
    if not bench.knows_queues:
        return
    job = replace(bench.job(_SLEEPS), queue="no-such-queue")
    with contextlib.suppress(SubmissionRefused):
        bench.system.submit(job)
        raise Violated("a queue that does not exist took a job")
    _require(not bench.system.find([job.stamp]), "a job that was refused is listed")


def capacity_is_told(bench: Bench) -> None:
    """The queue says how many cores it has."""
    capacity = bench.system.capacity().get(bench.queue)
    if not bench.knows_queues:
        return
    _require(capacity and capacity.cores >= capacity.free_cores >= 0, f"the queue's capacity is {capacity}")


def no_answer(bench: Bench) -> None:
    """While the batch system is away nothing is reported of a job; after, it is known again."""
    handle = bench.submit(_SLEEPS)
    with bench.with_fault(Fault.TIMEOUT) as system, contextlib.suppress(BatchSystemAway):
        ideal = ReliableSystem(system=system, evidence=Evidence(listings=1, seconds=0))
        raise Violated(f"without an answer a job is {ideal.status([handle])[handle.stamp].state}")
    bench.until(handle, State.RUNNING, State.WAITING)


def partial_listing(bench: Bench) -> None:
    """From half a listing nothing follows, but that a job is missing in it; or it is no answer."""
    handles = [bench.submit(_SLEEPS) for _ in range(4)]
    with bench.with_fault(Fault.PARTIAL) as system, contextlib.suppress(BatchSystemAway):
        ideal = ReliableSystem(system=system)
        states = {report.state for report in ideal.status(handles).values()}
        _require(not states & ENDED, f"from half a listing jobs are {states}")


def doubled_answers(bench: Bench) -> None:
    """What is said twice counts once, or is not understood."""
    handle = bench.submit(_SLEEPS)
    with bench.with_fault(Fault.DOUBLED) as system, contextlib.suppress(BatchSystemAway):
        found = system.find([handle.stamp])
        _require(set(found[handle.stamp]) == {handle.reference}, f"found {found}")
        _require(len(found[handle.stamp]) == 1, "one job said twice was taken for two")


def late_reference(bench: Bench) -> None:
    """A submission without an answer is found by its stamp, once."""
    job = bench.job(_SLEEPS)
    with bench.with_fault(Fault.LATE) as system:
        try:
            system.submit(job)
        except SubmissionUncertain:
            pass
        else:
            raise Violated("a submission without an answer was taken for one with an answer")
    _require(
        len(bench.system.find([job.stamp]).get(job.stamp, ())) == 1,
        "a job whose answer got lost is not found",
    )


def lost_submission(bench: Bench) -> None:
    """A submission that never reached the batch system is uncertain, not refused, and not found."""
    job = bench.job(_SLEEPS)
    with bench.with_fault(Fault.TIMEOUT) as system, contextlib.suppress(SubmissionUncertain, BatchSystemAway):
        system.submit(job)
        raise Violated("a submission that nobody answered was taken as done")
    _require(not bench.system.find([job.stamp]), "a job that was never submitted is found")


def full_spool(bench: Bench) -> None:
    """Where nothing can be written nothing is submitted."""
    job = bench.job(_SLEEPS)
    with bench.with_fault(Fault.FULL) as system, contextlib.suppress(BatchSystemAway):
        system.submit(job)
        raise Violated("a submission that could not be written was taken as done")
    _require(not bench.system.find([job.stamp]), "a job that could not be written is found")


def clock_jump(bench: Bench) -> None:
    """A clock that jumps by a day makes no job gone that is listed, nor one that was missed once."""
    handle = bench.submit(_SLEEPS)
    stranger = Handle(stamp=bench.stamp())
    times = iter((0.0, 0.0, 86_400.0, 86_400.0, 86_400.0, 86_400.0))
    ideal = ReliableSystem(system=bench.system, clock=lambda: next(times))
    for _ in range(2):
        reports = ideal.status([handle, stranger])
        _require(reports[handle.stamp].state not in ENDED, f"a listed job is {reports[handle.stamp]}")
        _require(reports[stranger.stamp].state is State.MISSING, "one more look made a job gone")


#: By what each is called.
CHECKS: Mapping[str, Callable[[Bench], None]] = {
    each.__name__: each
    for each in (
        round_trip,
        exit_status,
        script_as_written,
        kill_running,
        kill_unknown,
        kill_by_stamp,
        found_by_stamp,
        listed_by_prefix,
        wrong_reference,
        many_in_one_query,
        refusal,
        capacity_is_told,
        no_answer,
        partial_listing,
        doubled_answers,
        late_reference,
        lost_submission,
        full_spool,
        clock_jump,
    )
}
