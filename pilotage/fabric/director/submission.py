"""Submission of a pilot in two phases: first an intent at the service, then the batch job.

If the director is killed during the first phase, there may be an intent without a batch job; later there is
the intent with the stamp that the batch job has, if it exists. A stamp is never submitted again: the next
cycles search for it (`tracking`), then adopt the job or give the intent up; a pilot that is still needed gets
a new stamp. So no pilot is lost or doubled at whatever point the director dies. Two batch jobs with one
stamp, which a batch system may make of one submission, are one pilot: the second one finds the mark of the
first, or the secret used.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pilotage.fabric.batch.batch_system import (
    BatchJob,
    BatchSystemAway,
    SubmissionRefused,
    SubmissionUncertain,
)
from pilotage.fabric.director.cycle_summary import DirectorSummary
from pilotage.fabric.director.pilots import Pilots, Status
from pilotage.fabric.director.targets import DirectorTargets, PilotIntent, QueueTarget, TargetGroup, new_stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotSubmission:
    """Submits pilots."""

    sites: DirectorTargets
    pilots: Mapping[str, Pilots]  #: by VO

    def send(self, post: TargetGroup, pools: tuple[str, ...], number: int, summary: DirectorSummary) -> None:
        """Submit so many pilots of a post; stop at the first one that its batch system does not take."""
        door = self.sites.door(post)
        for _ in range(number):
            try:
                if not self._one(post, pools, door, summary):
                    return
            except (SubmissionUncertain, BatchSystemAway) as error:
                # It may be there: the intent stays, and the next cycles find out.
                summary.uncertain += 1
                summary.away.append(str(error))
                return

    def _one(
        self, post: TargetGroup, pools: tuple[str, ...], door: QueueTarget, summary: DirectorSummary
    ) -> bool:
        pilots, habits = self.pilots[post.vo], self.sites.habits
        stamp = new_stamp(habits.name, post.flags, post.broker)
        secret = pilots.intend(stamp, post)
        intent = PilotIntent(
            stamp=stamp,
            vo=post.vo,
            outlet=door,
            pools=pools,
            landings=self.sites.landings(post),
            secret=secret,
        )
        try:
            reference = self._submit(intent, post)
        except SubmissionRefused as error:
            pilots.tell(stamp, Status.ABORTED, reason=str(error)[:2000])
            summary.refused += 1
            summary.problems.append(f"{post.where}: {error}")
            return False
        # A pilot that was faster than we are runs already: then the next cycle stores its reference.
        pilots.tell(stamp, Status.WAITING, reference=reference)
        summary.submitted += 1
        return True

    def _submit(self, intent: PilotIntent, post: TargetGroup) -> str:
        outlet = intent.outlet
        job = BatchJob(
            stamp=intent.stamp,
            script=self.sites.script(intent),
            queue=outlet.batch_queue,
            resources=outlet.resources,
            flags=(*outlet.flags, *post.flags),
        )
        return self.sites.systems[outlet.system].submit(job)
