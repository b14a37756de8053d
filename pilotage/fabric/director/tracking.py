"""Tracking of pilots: compares what batch systems report with what the service has, and ends orphans.

*Unknown* and *missing* change nothing. A pilot without a reference is an intent whose submission was
interrupted: its stamp is searched in the listing and among the marks of jobs. If found, the job is adopted;
if not, on agreeing evidence, the intent is given up and made harmless: its work area is removed, without
which its script does not start, and its stamp is searched and killed as long as it is cached.

An orphan is a batch job named after the director that the service does not know, for this or any other VO, or
knows to have ended longer ago than its director looks back. An intent is stored before its batch job exists,
so every listed job is known unless something was lost. One poll proves nothing: an orphan is killed only
after several consecutive polls of its batch system agreed over some time.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pilotage.client.api import ServiceClient
from pilotage.fabric.batch.batch_system import ENDED, Agreement, Handle, JobReport, Output, State
from pilotage.fabric.cycle_summaries import DirectorSummary
from pilotage.fabric.director.recorded_pilots import ACTIVE, DirectorPilot, PilotReport, Pilots, Status
from pilotage.fabric.director.targets import DirectorTargets, is_of_service, parse_stamp, stamp_prefix
from pilotage.fabric.director.workers import PollRequest, SystemSnapshot

_REASON = 2000  #: characters that the service takes
_TAIL = 1500  #: bytes of a pilot's output that are reported as the reason of its end
_KEPT = 16_000  #: bytes of its standard output, and of its standard error, that are kept
_SIGNAL = 128  #: added to the number of the signal that ended a script
_SIGNALS = 64  #: the highest number of one
_BROKEN = frozenset({Status.FAILED, Status.ABORTED})
#: A pilot that contacted the service so lately is not gone, whatever a batch system says.
_LATELY = timedelta(minutes=5)
#: That a batch job may go on after its pilot said that it ends.
_GRACE = timedelta(minutes=2)
#: So long after an intent was given up its batch job may still appear.
_LATE = timedelta(hours=1)
#: Pilots of one system that have ended and are cleared up in one cycle.
_MOST_ENDED = 2000
#: Outputs of failed pilots of one VO that are stored in one cycle: each is a request.
_MOST_OUTPUTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningActions:
    """Jobs to be ended and removed in one batch system."""

    kill: list[Handle] = field(default_factory=list)
    forget: list[Handle] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class PilotTracking:
    """Tracks the pilots of a director."""

    sites: DirectorTargets
    pilots: Mapping[str, Pilots]  #: by VO
    _cleared: set[str] = field(default_factory=set)
    _withdrawn: dict[str, str] = field(default_factory=dict)  #: by stamp of pilots that we ended, the reason

    def withdraw(
        self, pilot: DirectorPilot, snapshot: SystemSnapshot, reason: str, actions: CleaningActions
    ) -> bool:
        """End the batch job of a pilot if it waits; the next polls show the end, which gets this reason."""
        report = snapshot.reports.get(pilot.stamp)
        if report is None or report.state is not State.WAITING:
            return False
        actions.kill.append(Handle(stamp=pilot.stamp, reference=report.reference, only_waiting=True))
        self._withdrawn[pilot.stamp] = reason
        return True

    def build_requests(
        self, own: Sequence[DirectorPilot], last: Mapping[str, SystemSnapshot]
    ) -> Mapping[str, tuple[PollRequest, list[DirectorPilot]]]:
        """Build the request to each batch system: the jobs to look up, with their pilots.

        A pilot whose queue is not in the file any more is followed where its stamp was listed last.
        """
        by_system: dict[str, list[DirectorPilot]] = {name: [] for name in self.sites.systems}
        stamps = {pilot.stamp for pilot in own}
        self._cleared.intersection_update(stamps)
        self._withdrawn = {stamp: why for stamp, why in self._withdrawn.items() if stamp in stamps}
        for pilot in own:
            if pilot.stamp in self._cleared:
                continue
            name = self.sites.system_of(pilot.stamp, pilot.queue)
            if name is None:
                name = next((name for name, each in last.items() if pilot.stamp in each.stamps), None)
            if name is not None:
                by_system[name].append(pilot)
        return {name: (self._build_request(pilots), pilots) for name, pilots in by_system.items()}

    def _build_request(self, pilots: Sequence[DirectorPilot]) -> PollRequest:
        alive = [each for each in pilots if each.status in ACTIVE]
        ended = sorted(
            (each for each in pilots if each.status not in ACTIVE),
            key=lambda each: each.updated_at,
            reverse=True,
        )
        outputs = [each for each in pilots if each.status in _BROKEN and not each.has_output]
        return PollRequest(
            handles=[each.handle for each in (*alive, *ended[:_MOST_ENDED])],
            prefix=stamp_prefix(self.sites.options.name),
            outputs=frozenset(each.stamp for each in (*alive, *outputs)),
            old_areas=max(_OLD_AREA, self.sites.options.keep_output + _DAY),
        )

    def mark_cleared(self, stamps: Iterable[str]) -> None:
        """Nothing of these pilots is left in their batch systems."""
        self._cleared.update(stamps)

    def follow(
        self,
        followed: Mapping[str, tuple[PollRequest, Sequence[DirectorPilot]]],
        snapshots: Mapping[str, SystemSnapshot],
        summary: DirectorSummary,
    ) -> tuple[Mapping[str, PilotReport], Mapping[str, CleaningActions]]:
        """Report to the service what the snapshots show; accepted reports by stamp, and actions by system."""
        actions: dict[str, CleaningActions] = defaultdict(CleaningActions)
        updates: dict[str, list[tuple[DirectorPilot, PilotReport]]] = defaultdict(list)
        for name, snapshot in snapshots.items():
            request, pilots = followed[name]
            for pilot in pilots:
                if pilot.stamp in snapshot.reports:
                    update = self._judge(pilot, snapshot, request, actions[name], summary)
                    updates[pilot.vo] += [] if update is None else [(pilot, update)]
        changed: dict[str, PilotReport] = {}
        for vo, of_vo in updates.items():
            if of_vo and vo not in summary.refusals:
                with summary.noting_refusals(vo):
                    changed |= self._report(vo, of_vo, summary)
        return changed, actions

    def _judge(
        self,
        pilot: DirectorPilot,
        snapshot: SystemSnapshot,
        request: PollRequest,
        actions: CleaningActions,
        summary: DirectorSummary,
    ) -> PilotReport | None:
        """Report about a pilot, if there is one; actions on its batch job are added."""
        report, output = snapshot.reports[pilot.stamp], snapshot.outputs.get(pilot.stamp)
        if pilot.status not in ACTIVE:
            self._clear(pilot, report, output, actions, summary)
            return None
        if self._waits_too_long(pilot, report, summary.at):
            actions.kill.append(Handle(stamp=pilot.stamp, reference=report.reference))
            summary.removed += 1
            return None
        if not snapshot.is_complete(pilot.stamp, request):
            return None
        update = _update(pilot, report, output, summary.at, self._withdrawn.get(pilot.stamp, ""))
        if update is not None and report.state is State.GONE:
            # A submission that is still on its way must come to nothing.
            actions.kill.append(pilot.handle)
            actions.forget.append(pilot.handle)
        return update

    def _report(
        self, vo: str, updates: Sequence[tuple[DirectorPilot, PilotReport]], summary: DirectorSummary
    ) -> Mapping[str, PilotReport]:
        unchanged = self.pilots[vo].report([update for _, update in updates])
        accepted = [(pilot, update) for pilot, update in updates if update.stamp not in unchanged]
        for pilot, update in accepted:
            summary.adopted += pilot.reference is None and update.reference is not None
            if update.status not in ACTIVE:
                summary.ended[update.status] += 1
        return {pilot.stamp: update for pilot, update in accepted}

    def give_up(
        self, own: Iterable[DirectorPilot], requests: Iterable[PollRequest], summary: DirectorSummary
    ) -> None:
        """Report pilots as aborted that no batch system of the file has for longer than a pilot may wait."""
        followed = {handle.stamp for request in requests for handle in request.handles}
        limit = timedelta(seconds=self.sites.options.longest_wait)
        lost: dict[str, list[PilotReport]] = defaultdict(list)
        for pilot in own:
            seen = max(pilot.updated_at, pilot.last_seen_at or pilot.updated_at)
            if pilot.status in ACTIVE and pilot.stamp not in followed and summary.at - seen > limit:
                reason = f"\n{pilot.queue or 'its broker'} is not in the file of the director any more"
                lost[pilot.vo].append(PilotReport(stamp=pilot.stamp, status=Status.ABORTED, reason=reason))
        for vo, reports in lost.items():
            if vo not in summary.refusals:
                with summary.noting_refusals(vo):
                    self.pilots[vo].report(reports)
                    summary.ended[Status.ABORTED] += len(reports)

    def _waits_too_long(self, pilot: DirectorPilot, report: JobReport, now: datetime) -> bool:
        """Whether a pilot waits for longer than it may; its secret is void after some days."""
        limit = timedelta(seconds=self.sites.options.longest_wait)
        return report.state is State.WAITING and pilot.last_seen_at is None and now - pilot.created_at > limit

    def _clear(
        self,
        pilot: DirectorPilot,
        report: JobReport,
        output: Output | str | None,
        actions: CleaningActions,
        summary: DirectorSummary,
    ) -> None:
        """End the batch job of a pilot that has ended, store the output of a broken one, remove the rest."""
        handle = Handle(stamp=pilot.stamp, reference=report.reference)
        if report.state in (State.WAITING, State.RUNNING) and summary.at - pilot.updated_at > _GRACE:
            actions.kill.append(handle)
            summary.killed += 1
        if isinstance(output, Output) and summary.outputs[pilot.vo] < _MOST_OUTPUTS:
            summary.outputs[pilot.vo] += 1
            stdout, stderr = (_end(text, _KEPT) for text in (output.stdout, output.stderr))
            if pilot.vo not in summary.refusals:
                with summary.noting_refusals(pilot.vo):
                    self.pilots[pilot.vo].keep_output(pilot, stdout=stdout, stderr=stderr)
        if self._is_done_with(pilot, report, summary.at):
            actions.forget.append(handle)

    def _is_done_with(self, pilot: DirectorPilot, report: JobReport, now: datetime) -> bool:
        ago = now - pilot.updated_at
        if report.state is State.GONE and pilot.reference is None:
            return ago > _LATE
        keep = 0 if pilot.status is Status.DONE else self.sites.options.keep_output
        return report.state in ENDED and ago >= timedelta(seconds=keep)


def _update(
    pilot: DirectorPilot, report: JobReport, output: Output | str | None, now: datetime, withdrawn: str
) -> PilotReport | None:
    """Report about a pilot that lives; None: no change. `withdrawn`: why we ended it."""
    status = _status(pilot, report, now)
    if status is None or (status, report.reference) == (pilot.status, pilot.reference):
        return None
    was_withdrawn = withdrawn and status is Status.DELETED
    reason = "" if status in ACTIVE else f"\n{withdrawn}" if was_withdrawn else _last_words(report, output)
    node = report.host or report.node if status is Status.ABORTED else ""
    return PilotReport(stamp=pilot.stamp, status=status, reference=report.reference, reason=reason, node=node)


def _last_words(report: JobReport, output: Output | str | None) -> str:
    """An empty line, why a pilot ended, then the end of its output: nothing else reports it.

    The service shows users only the line after the empty one; directors of 1.0 send no empty line.
    """
    if report.state is State.DONE:  # also of a job that was deleted by force, whatever became of it
        return "\nits batch system reports a normal end"
    why = (" ".join(report.message.split()) or report.state.value)[: _REASON - _TAIL - 50]
    if report.exit_code:
        signal = report.exit_code - _SIGNAL
        why += f", exit status {report.exit_code}{f' (signal {signal})' if 0 < signal <= _SIGNALS else ''}"
    if report.state is State.GONE or output is None:
        said = ""
    elif isinstance(output, str):
        said = f"its output could not be fetched: {output}"
    else:
        said = _end(output.stderr or output.stdout, _TAIL)
    return f"\n{why}\n{said}"[:_REASON]


def _end(text: bytes, most: int) -> str:
    return text[-most:].decode(errors="replace").replace("\0", "").strip()


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
            if pilot.last_seen_at is not None:
                return None if now - pilot.last_seen_at < _LATELY else Status.FAILED
            # Some batch systems forget at once what is deleted while it waits.
            return Status.DELETED if report.was_killed or pilot.reference is None else Status.ABORTED


_AT_ONCE = 1000  #: stamps in one query
_DAY = 86_400.0
#: Seconds without a change after which the work area of a pilot that nobody follows is removed.
_OLD_AREA = 7 * _DAY
_ACTIVE, _ENDED = "active", "ended"


@dataclass(slots=True, kw_only=True)
class OrphanTracking:
    """Finds orphaned batch jobs of a director."""

    sites: DirectorTargets
    clock: Callable[[], float] = time.monotonic  #: seconds
    #: By batch system: what was not listed proves nothing of the jobs elsewhere.
    _agreements: dict[str, Agreement] = field(default_factory=lambda: defaultdict(Agreement))
    _ended: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  #: what we ended, by system

    def find(
        self,
        snapshots: Mapping[str, SystemSnapshot],
        followed: Collection[str],
        client: ServiceClient,
        summary: DirectorSummary,
    ) -> Mapping[str, CleaningActions]:
        """Actions on jobs that were found to be orphans often enough, by batch system.

        Old work areas of pilots that have ended, or that nobody knows, are removed, too.

        `followed` are the stamps of pilots that are tracked anyhow; the client may be of any VO: the service
        reports of all stamps whether they are known.
        """
        suspects = {name: each.stamps.difference(followed) for name, each in snapshots.items()}
        left = {name: each.old_areas.difference(followed, each.stamps) for name, each in snapshots.items()}
        # The query comes after the listing, so what is new is known.
        either = set[str]().union(*suspects.values(), *left.values())
        unknown = frozenset(self._find_unknown(either, client))
        found = {
            name: self._judge_suspects(name, snapshots[name], stamps & unknown, summary)
            for name, stamps in suspects.items()
        }
        for name, stamps in left.items():
            found[name].forget.extend(Handle(stamp=stamp) for stamp in sorted(stamps & unknown)[:_AT_ONCE])
        return found

    def _judge_suspects(
        self, name: str, snapshot: SystemSnapshot, suspects: Collection[str], summary: DirectorSummary
    ) -> CleaningActions:
        agreement, actions = self._agreements[name], CleaningActions()
        polls = {stamp: agreement.once_more(stamp, self.clock()) for stamp in sorted(suspects)}
        agreement.keep_only(frozenset(suspects))
        proven = [stamp for stamp, each in polls.items() if each.convince(self.sites.options.orphans)]
        actions.kill.extend(Handle(stamp=stamp) for stamp in proven)
        summary.killed += len(proven)
        summary.problems += [f"{stamp}: nobody knew of this batch job, it is ended" for stamp in proven]
        over = self._ended[name] - snapshot.stamps
        actions.forget.extend(Handle(stamp=stamp) for stamp in sorted(over))
        self._ended[name] = (self._ended[name] | set(proven)) - over
        return actions

    def _find_unknown(self, stamps: Collection[str], client: ServiceClient) -> Iterator[str]:
        """Stamps of no living pilot."""
        ours = sorted(stamp for stamp in stamps if parse_stamp(stamp, self.sites.options.name))
        for begin in range(0, len(ours), _AT_ONCE):
            some = ours[begin : begin + _AT_ONCE]
            standings = client.pilot_standings(some)
            # A director of another service may have our name. We may have had another address ourselves.
            yield from (
                stamp
                for stamp in some
                if standings[stamp] == _ENDED
                or (standings[stamp] != _ACTIVE and is_of_service(stamp, self.sites.service))
            )
