"""The whole of what a change would do, asked of the evaluator that matches."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection

from cs_config import admissions
from cs_config.address import QueueAddress
from cs_config.proposals import Proposal
from matcher import job_ads
from matcher.preview import biting, going, shifts, vain
from matcher.preview.biting import Bite
from matcher.preview.going import Going
from matcher.preview.shifts import ClassShift, PoolShift, Shifts
from matcher.preview.touched import Touched
from matcher.preview.vain import Vain
from requirements.values import Value
from taskqueue import pools, waiting_classes
from taskqueue.waiting_classes import WaitingClass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsOfVo:
    """What becomes of the jobs of a VO that wait."""

    waiting: int = 0
    stuck: int = 0  #: their last queue goes
    freed: int = 0  #: they get their first queue
    gain: int = 0  #: they get more queues
    lose: int = 0  #: they get fewer queues


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a proposed configuration would do at this moment."""

    new: tuple[QueueAddress, ...]  #: queues that are not there yet
    removed: tuple[QueueAddress, ...]  #: queues that would not be there any more
    jobs: Mapping[str, JobsOfVo]  #: by VO
    classes: tuple[ClassShift, ...]  #: of waiting jobs, those with most jobs first
    pools: tuple[PoolShift, ...]  #: those with most waiting jobs first
    going: tuple[Going, ...]
    bites: tuple[Bite, ...]
    vain: Mapping[str, tuple[Vain, ...]]  #: by VO

    @property
    def totals(self) -> Mapping[str, int]:
        """What a guard may ask about."""
        return {
            "stuck_jobs": sum(each.stuck for each in self.jobs.values()),
            "freed_jobs": sum(each.freed for each in self.jobs.values()),
            "pools_gaining": sum(1 for each in self.pools if each.shift.gained),
            "pools_losing": sum(1 for each in self.pools if each.shift.lost),
            "pools_without_queue": sum(1 for each in self.pools if each.shift.had and not each.shift.has),
            "running_jobs": sum(each.jobs for each in self.going),
            "pilots": sum(each.pilots for each in self.going),
            "closed_places": len(self.bites),
            "new_queues": len(self.new),
            "removed_queues": len(self.removed),
        }


def of(conn: Connection, proposal: Proposal, *, vos: Collection[str] | None, now: datetime) -> Outlook:
    """What a proposal would do.

    Args:
        conn: For what waits and runs.
        proposal: The change.
        vos: Whose jobs, pools and limits are looked at; None: of all.
        now: The time: what has expired does not count.
    """
    proposal = replace(proposal, before=proposal.before.at(now), after=proposal.after.at(now))
    waiting = _by_vo(waiting_classes.read(conn, vos))
    stored = pools.requirements(conn, vos)
    ads = _ads(conn, proposal, waiting)
    before, after = set(proposal.before.levels), set(proposal.after.levels)
    found = _Found(proposal)
    for vo in sorted({*waiting, *stored}):
        found.look(vo, waiting.get(vo, []), stored.get(vo, {}), ads)
    return Outlook(
        new=tuple(sorted(after - before)),
        removed=tuple(sorted(before - after)),
        jobs={vo: _sums(each, found.classes.get(vo, [])) for vo, each in sorted(waiting.items())},
        classes=tuple(
            sorted(
                (each for these in found.classes.values() for each in these), key=lambda c: -c.waiting.jobs
            )
        ),
        pools=tuple(sorted(found.pools, key=lambda pool: (-pool.waiting, pool.pool_id))),
        going=tuple(going.of(conn, proposal, vos=vos)),
        bites=tuple(biting.of(conn, proposal, vos=vos, now=now)),
        vain=found.vain,
    )


class _Found:
    """What is gathered VO by VO."""

    def __init__(self, proposal: Proposal) -> None:
        self._proposal = proposal
        self._touched = Touched(proposal)
        self.classes: dict[str, list[ClassShift]] = {}
        self.pools: list[PoolShift] = []
        self.vain: dict[str, tuple[Vain, ...]] = {}

    def look(
        self,
        vo: str,
        waiting: Sequence[WaitingClass],
        stored: Mapping[str, str],
        ads: Mapping[int, Mapping[str, Value]],
    ) -> None:
        """Take up what changes for a VO."""
        touched = self._touched.by(vo)
        if not touched:
            return
        here = Shifts(self._proposal.before, self._proposal.after, vo, touched)
        self.classes[vo] = list(shifts.of_classes(here, waiting, ads))
        self.pools += shifts.of_pools(here, vo, stored, waiting)
        names = vain.names_set(self._proposal.differences, self._touched, vo)
        if found := tuple(vain.of(here, names, waiting)):
            self.vain[vo] = found


def _by_vo(waiting: Sequence[WaitingClass]) -> dict[str, list[WaitingClass]]:
    found: defaultdict[str, list[WaitingClass]] = defaultdict(list)
    for each in waiting:
        found[each.asked.vo].append(each)
    return dict(found)


def _ads(
    conn: Connection, proposal: Proposal, waiting: Mapping[str, Sequence[WaitingClass]]
) -> Mapping[int, Mapping[str, Value]]:
    """Where queues ask things of jobs, the first job of each class, which stands for the others."""
    if not (admissions.configured(proposal.before) or admissions.configured(proposal.after)):
        return {}
    classes = [each for these in waiting.values() for each in these]
    return {job.job_id: job_ads.of(job) for job in waiting_classes.first_jobs(conn, classes)}


def _sums(waiting: Sequence[WaitingClass], shifted: Sequence[ClassShift]) -> JobsOfVo:
    return JobsOfVo(
        waiting=sum(each.jobs for each in waiting),
        stuck=sum(each.stuck for each in shifted),
        freed=sum(each.freed for each in shifted),
        gain=sum(each.waiting.jobs for each in shifted if each.shift.gained),
        lose=sum(each.waiting.jobs for each in shifted if each.shift.lost),
    )
