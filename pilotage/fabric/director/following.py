"""What became of pilots: asked from their batch systems, told to the service.

*Unknown* and *missing* change nothing. A pilot without a reference is an intent whose submission was cut off:
its stamp is looked for in the listing and among the marks that jobs leave; found, it is adopted; not found on
agreeing evidence, it is given up, and whatever may still come of it is disarmed: its work area is removed,
without which its script does not start, and its stamp is looked for and killed as long as it is remembered.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pilotage.fabric.batch.batch_system import ENDED, Handle, Report, State
from pilotage.fabric.batch.errors import BatchSystemAway
from pilotage.fabric.batch.idealizer import Idealized
from pilotage.fabric.director.outlets import Sites
from pilotage.fabric.director.pilots import ACTIVE, Pilot, Pilots, Status
from pilotage.fabric.director.summary import Summary

_REASON = 2000  #: characters that the service takes
_TAIL = 1500  #: bytes of a pilot's words that are told as the reason of its end
_KEPT = 16_000  #: bytes of its standard output, and of its standard error, that are kept
_BROKEN = frozenset({Status.FAILED, Status.ABORTED})
#: A pilot that spoke to the service so lately is not gone, whatever a batch system says.
_LATELY = timedelta(minutes=5)
#: So long after an intent was given up its batch job may still appear.
_LATE = timedelta(hours=1)


@dataclass(slots=True, kw_only=True)
class Following:
    """The director's eye on its pilots."""

    sites: Sites
    pilots: Mapping[str, Pilots]  #: by VO
    _cleared: set[str] = field(default_factory=set)

    def follow(self, own: Iterable[Pilot], now: datetime, summary: Summary) -> None:
        """Ask for all pilots with one query per batch system, tell the service, and clear up."""
        by_system: dict[str, list[Pilot]] = defaultdict(list)
        for pilot in own:
            given_to = self.sites.system_of(pilot.stamp, pilot.queue)
            if pilot.stamp not in self._cleared and given_to is not None:
                by_system[given_to].append(pilot)
        for name, pilots in sorted(by_system.items()):
            system = self.sites.systems[name]
            reports = system.status([Handle(stamp=each.stamp, reference=each.reference) for each in pilots])
            self._take_up(system, [(each, reports[each.stamp]) for each in pilots], now, summary)

    def _take_up(
        self,
        system: Idealized,
        found: Sequence[tuple[Pilot, Report]],
        now: datetime,
        summary: Summary,
    ) -> None:
        unknown = [report.message for _, report in found if report.state is State.UNKNOWN]
        if unknown:
            summary.away.append(unknown[0])
        for pilot, report in found:
            if pilot.status in ACTIVE:
                with summary.noting_refusals(pilot.vo):
                    self._update(system, pilot, report, now, summary)
        over = [(pilot, report) for pilot, report in found if pilot.status not in ACTIVE]
        try:
            self._clear(system, over, now, summary)
        except BatchSystemAway as error:
            summary.away.append(str(error))

    def _update(
        self, system: Idealized, pilot: Pilot, report: Report, now: datetime, summary: Summary
    ) -> None:
        status = _status(pilot, report, now)
        if status is None or (status, report.reference) == (pilot.status, pilot.reference):
            return
        reason = self._last_words(system, pilot, report) if status not in ACTIVE else ""
        if not self.pilots[pilot.vo].tell(pilot.stamp, status, reference=report.reference, reason=reason):
            return
        if pilot.reference is None and report.reference is not None:
            summary.adopted += 1
        if status not in ACTIVE:
            summary.ended[status] += 1
        if report.state is State.GONE:
            _disarm(system, pilot, summary)

    def _last_words(self, system: Idealized, pilot: Pilot, report: Report) -> str:
        """Why it ended, and the end of what it wrote: nobody else will say it."""
        if report.state in (State.DONE, State.GONE):
            return report.message[:_REASON]
        try:
            output = system.output(Handle(stamp=pilot.stamp, reference=report.reference))
        except BatchSystemAway as error:
            said = f"its output could not be fetched: {error}"
        else:
            said = _end(output.stderr or output.stdout, _TAIL)
        how = report.message or report.state
        status = "" if report.exit_code is None else f", exit status {report.exit_code}"
        return f"{how}{status}: {said}"[:_REASON]

    def _clear(
        self,
        system: Idealized,
        over: Sequence[tuple[Pilot, Report]],
        now: datetime,
        summary: Summary,
    ) -> None:
        """End batch jobs whose pilots have ended, and remove what ended ones leave."""
        habits = self.sites.habits
        orphans = [
            Handle(stamp=pilot.stamp, reference=report.reference)
            for pilot, report in over
            if report.state in (State.WAITING, State.RUNNING) and now - pilot.updated_at > habits.grace
        ]
        if orphans:
            system.kill(orphans)
            summary.killed += len(orphans)
        for pilot, report in over:
            if report.state in ENDED and pilot.status in _BROKEN and not pilot.has_output:
                with summary.noting_refusals(pilot.vo):
                    self._keep_output(system, pilot, report)
        gone = [pilot for pilot, report in over if self._is_done_with(pilot, report, now)]
        if gone:
            system.forget([Handle(stamp=pilot.stamp) for pilot in gone])
            self._cleared.update(pilot.stamp for pilot in gone)

    def _keep_output(self, system: Idealized, pilot: Pilot, report: Report) -> None:
        """Give the service the ends of what a pilot wrote that broke: they are shown there."""
        output = system.output(Handle(stamp=pilot.stamp, reference=report.reference))
        stdout, stderr = (_end(text, _KEPT) for text in (output.stdout, output.stderr))
        self.pilots[pilot.vo].keep_output(pilot.stamp, stdout=stdout, stderr=stderr)

    def _is_done_with(self, pilot: Pilot, report: Report, now: datetime) -> bool:
        ago = now - pilot.updated_at
        if report.state is State.GONE and pilot.reference is None:
            return ago > _LATE
        keep = timedelta(0) if pilot.status is Status.DONE else self.sites.habits.keep_output
        return report.state in ENDED and ago >= keep


def _end(text: bytes, most: int) -> str:
    return text[-most:].decode(errors="replace").replace("\0", "").strip()


def _disarm(system: Idealized, pilot: Pilot, summary: Summary) -> None:
    """See to it that a submission which is still on its way comes to nothing."""
    handles = [Handle(stamp=pilot.stamp, reference=pilot.reference)]
    try:
        system.kill(handles)
        system.forget(handles)
    except BatchSystemAway as error:
        summary.away.append(str(error))


def _status(pilot: Pilot, report: Report, now: datetime) -> Status | None:
    """What the service is to be told; None: nothing."""
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
            return _gone(pilot, now)


def _gone(pilot: Pilot, now: datetime) -> Status | None:
    if pilot.last_seen_at is None:
        return Status.DELETED if pilot.reference is None else Status.ABORTED
    return None if now - pilot.last_seen_at < _LATELY else Status.FAILED
