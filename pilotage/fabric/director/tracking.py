"""Tracking of pilots: polls their batch systems, reports to the service, and ends orphaned batch jobs.

*Unknown* and *missing* change nothing. A pilot without a reference is an intent whose submission was
interrupted: its stamp is searched in the listing and among the marks of jobs. If found, the job is adopted;
if not, on agreeing evidence, the intent is given up and made harmless: its work area is removed, without
which its script does not start, and its stamp is searched and killed as long as it is remembered.

An orphan is a batch job named after the director that the service does not know, for this or any other VO, or
knows to have ended longer ago than its director looks back. An intent is stored before its batch job exists,
so every listed job is known unless something was lost. One poll proves nothing: an orphan is killed only
after several consecutive polls agreed over some time.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pilotage.fabric.batch.batch_system import ENDED, BatchSystemAway, Handle, JobReport, State
from pilotage.fabric.batch.reliable import Agreement, ReliableSystem
from pilotage.fabric.client import Client
from pilotage.fabric.cycle_summaries import DirectorSummary
from pilotage.fabric.director.pilots import ACTIVE, DirectorPilot, Pilots, Status
from pilotage.fabric.director.targets import DirectorTargets, parse_stamp, stamp_prefix

_REASON = 2000  #: characters that the service takes
_TAIL = 1500  #: bytes of a pilot's output that are reported as the reason of its end
_KEPT = 16_000  #: bytes of its standard output, and of its standard error, that are kept
_BROKEN = frozenset({Status.FAILED, Status.ABORTED})
#: A pilot that contacted the service so lately is not gone, whatever a batch system says.
_LATELY = timedelta(minutes=5)
#: That a batch job may go on after its pilot said that it ends.
_GRACE = timedelta(minutes=2)
#: So long after an intent was given up its batch job may still appear.
_LATE = timedelta(hours=1)


@dataclass(slots=True, kw_only=True)
class PilotTracking:
    """Tracks the pilots of a director."""

    sites: DirectorTargets
    pilots: Mapping[str, Pilots]  #: by VO
    _cleared: set[str] = field(default_factory=set)

    def follow(self, own: Iterable[DirectorPilot], summary: DirectorSummary) -> None:
        """Poll all pilots with one query per batch system, report to the service, and clear up."""
        by_system: dict[str, list[DirectorPilot]] = defaultdict(list)
        for pilot in own:
            given_to = self.sites.system_of(pilot.stamp, pilot.queue)
            if pilot.stamp not in self._cleared and given_to is not None:
                by_system[given_to].append(pilot)
        for name, pilots in sorted(by_system.items()):
            system = self.sites.systems[name]
            reports = system.status([each.handle for each in pilots])
            found = [(each, reports[each.stamp]) for each in pilots]
            summary.away += [each.message for _, each in found if each.state is State.UNKNOWN][:1]
            for pilot, report in found:
                if pilot.status in ACTIVE:
                    with summary.noting_refusals(pilot.vo):
                        self._update(system, pilot, report, summary)
            try:
                self._clear(system, [each for each in found if each[0].status not in ACTIVE], summary)
            except BatchSystemAway as error:
                summary.away.append(str(error))

    def _update(
        self, system: ReliableSystem, pilot: DirectorPilot, report: JobReport, summary: DirectorSummary
    ) -> None:
        status = _status(pilot, report, summary.at)
        if status is None or (status, report.reference) == (pilot.status, pilot.reference):
            return
        reason = _last_words(system, pilot, report) if status not in ACTIVE else ""
        if not self.pilots[pilot.vo].tell(pilot.stamp, status, reference=report.reference, reason=reason):
            return
        if pilot.reference is None and report.reference is not None:
            summary.adopted += 1
        if status not in ACTIVE:
            summary.ended[status] += 1
        if report.state is State.GONE:
            _disarm(system, pilot, summary)

    def _clear(
        self,
        system: ReliableSystem,
        over: Sequence[tuple[DirectorPilot, JobReport]],
        summary: DirectorSummary,
    ) -> None:
        """End batch jobs whose pilots have ended, and remove what ended ones leave."""
        orphans = [
            Handle(stamp=pilot.stamp, reference=report.reference)
            for pilot, report in over
            if report.state in (State.WAITING, State.RUNNING) and summary.at - pilot.updated_at > _GRACE
        ]
        if orphans:
            system.kill(orphans)
            summary.killed += len(orphans)
        for pilot, report in over:
            if report.state in ENDED and pilot.status in _BROKEN and not pilot.has_output:
                with summary.noting_refusals(pilot.vo):
                    self._keep_output(system, pilot, report)
        gone = [pilot for pilot, report in over if self._is_done_with(pilot, report, summary.at)]
        if gone:
            system.forget([Handle(stamp=pilot.stamp) for pilot in gone])
            self._cleared.update(pilot.stamp for pilot in gone)

    def _keep_output(self, system: ReliableSystem, pilot: DirectorPilot, report: JobReport) -> None:
        """Store the end of the output of a broken pilot at the service, which shows it."""
        output = system.output(Handle(stamp=pilot.stamp, reference=report.reference))
        stdout, stderr = (_end(text, _KEPT) for text in (output.stdout, output.stderr))
        self.pilots[pilot.vo].keep_output(pilot.stamp, stdout=stdout, stderr=stderr)

    def _is_done_with(self, pilot: DirectorPilot, report: JobReport, now: datetime) -> bool:
        ago = now - pilot.updated_at
        if report.state is State.GONE and pilot.reference is None:
            return ago > _LATE
        keep = 0 if pilot.status is Status.DONE else self.sites.habits.keep_output
        return report.state in ENDED and ago >= timedelta(seconds=keep)


def _last_words(system: ReliableSystem, pilot: DirectorPilot, report: JobReport) -> str:
    """Why a pilot ended, and the end of its output: nothing else reports it."""
    if report.state in (State.DONE, State.GONE):
        return report.message[:_REASON]
    try:
        output = system.output(Handle(stamp=pilot.stamp, reference=report.reference))
    except BatchSystemAway as error:
        said = f"its output could not be fetched: {error}"
    else:
        said = _end(output.stderr or output.stdout, _TAIL)
    status = "" if report.exit_code is None else f", exit status {report.exit_code}"
    return f"{report.message or report.state}{status}: {said}"[:_REASON]


def _end(text: bytes, most: int) -> str:
    return text[-most:].decode(errors="replace").replace("\0", "").strip()


def _disarm(system: ReliableSystem, pilot: DirectorPilot, summary: DirectorSummary) -> None:
    """Make sure that a submission which is still on its way comes to nothing."""
    try:
        system.kill([pilot.handle])
        system.forget([pilot.handle])
    except BatchSystemAway as error:
        summary.away.append(str(error))


def _status(pilot: DirectorPilot, report: JobReport, now: datetime) -> Status | None:
    """The status to report to the service; None: no change."""
    match report.state:
        case State.UNKNOWN | State.MISSING:
            return None
        case State.WAITING:
            return None if pilot.status is Status.RUNNING else Status.WAITING
        case State.RUNNING:
            return Status.RUNNING
        case State.DONE:
            return Status.DONE
        case State.KILLED:
            return Status.DELETED
        case State.FAILED:
            return Status.ABORTED if pilot.last_seen_at is None else Status.FAILED
        case State.GONE:
            return _status_of_gone(pilot, now)


def _status_of_gone(pilot: DirectorPilot, now: datetime) -> Status | None:
    if pilot.last_seen_at is None:
        return Status.DELETED if pilot.reference is None else Status.ABORTED
    return None if now - pilot.last_seen_at < _LATELY else Status.FAILED


_AT_ONCE = 1000  #: stamps in one query
_ACTIVE = "active"


@dataclass(slots=True, kw_only=True)
class OrphanTracking:
    """Finds and ends orphaned batch jobs of a director."""

    sites: DirectorTargets
    clock: Callable[[], float] = time.monotonic  #: seconds
    _agreement: Agreement = field(default_factory=Agreement)
    _ended: dict[str, set[str]] = field(default_factory=dict)  #: by batch system what we ended

    def end(self, followed: Collection[str], client: Client, summary: DirectorSummary) -> None:
        """Poll all batch systems, and end what was found to be an orphan often enough.

        `followed` are the stamps of pilots that are tracked anyhow; the client may be of any VO: the service
        reports of all stamps whether they are known.
        """
        found: set[str] = set()
        for name, system in sorted(self.sites.systems.items()):
            try:
                found |= self._end_at(name, system, followed, client, summary)
            except BatchSystemAway as error:
                summary.away.append(str(error))
                return  # what was not seen now may be there: it is counted on later
        self._agreement.keep_only(frozenset(found))

    def _end_at(
        self,
        name: str,
        system: ReliableSystem,
        followed: Collection[str],
        client: Client,
        summary: DirectorSummary,
    ) -> frozenset[str]:
        """The suspects of a batch system; those that are proven are ended."""
        listed = system.stamps(stamp_prefix(self.sites.habits.name))
        suspects = frozenset(self._suspects(listed.difference(followed), client))
        looks = {stamp: self._agreement.once_more(stamp, self.clock()) for stamp in sorted(suspects)}
        proven = [stamp for stamp, polls in looks.items() if polls.convince(self.sites.habits.orphans)]
        if proven:
            system.kill([Handle(stamp=stamp) for stamp in proven])
            summary.killed += len(proven)
            summary.problems += [f"{stamp}: nobody knew of this batch job, it is ended" for stamp in proven]
        over = self._ended.get(name, set()) - listed
        if over:
            system.forget([Handle(stamp=stamp) for stamp in sorted(over)])
        self._ended[name] = (self._ended.get(name, set()) | set(proven)) - over
        return suspects

    def _suspects(self, stamps: Collection[str], client: Client) -> Iterator[str]:
        """Stamps of no living pilot; the query comes after the listing, so what is new is known."""
        ours = sorted(stamp for stamp in stamps if parse_stamp(stamp, self.sites.habits.name))
        for begin in range(0, len(ours), _AT_ONCE):
            some = ours[begin : begin + _AT_ONCE]
            standings = client.pilot_standings(some)
            yield from (stamp for stamp in some if standings[stamp] != _ACTIVE)
