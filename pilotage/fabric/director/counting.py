"""From the list of our pilots to the numbers that decide."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from pilotage.fabric.director.demand import Limits
from pilotage.fabric.director.experience import Pause, Trial, most_to_send
from pilotage.fabric.director.pilots import ACTIVE, Pilot, Status
from pilotage.fabric.director.posts import Post, Sent, kind, sent_as

_BAD = frozenset({Status.FAILED, Status.ABORTED})


def is_running(pilot: Pilot) -> bool:
    """Whether it counts as running; what nobody knows of, is taken to be as it was: on its way."""
    return pilot.status is Status.RUNNING or pilot.last_seen_at is not None


def room(pilots: Iterable[Pilot], limits: Limits) -> int:
    """Pilots that may be added to a queue which has these."""
    active = [is_running(pilot) for pilot in pilots if pilot.status in ACTIVE]
    return limits.room(waiting=active.count(False), running=active.count(True))


def of_posts(
    pilots: Iterable[Pilot], posts: Iterable[Post], director: str
) -> Mapping[Post, tuple[Pilot, ...]]:
    """The pilots of each post; those that were sent with flags which no post has now are in none.

    What a broker may pick from changes with what its queues take: its pilots belong to the post that has
    most in common with where they are or may be.
    """
    alike: dict[tuple[str, Sent], list[Post]] = defaultdict(list)
    for post in sorted(posts):
        alike[post.vo, Sent(kind=kind(post.flags), broker=post.broker)].append(post)
    found: dict[Post, list[Pilot]] = defaultdict(list)
    for pilot in pilots:
        sent = sent_as(pilot.stamp, director)
        closest = None if sent is None else _closest(pilot.queues, alike.get((pilot.vo, sent), ()))
        if closest is not None:
            found[closest].append(pilot)
    return {post: tuple(of_post) for post, of_post in found.items()}


def bad_landings(
    pilots: Iterable[Pilot], director: str, pause: Pause, now: datetime
) -> frozenset[tuple[str, str, str]]:
    """VO, broker and queue where a broker's pilots fared so badly that it is not to pick this queue now.

    Counted are those of which it is known where they were: a queue on whose nodes pilots end at once is
    always free, and would get all of them.
    """
    of_landing: dict[tuple[str, str, str], list[Pilot]] = defaultdict(list)
    for pilot in pilots:
        sent = sent_as(pilot.stamp, director)
        if sent is not None and sent.broker and len(pilot.queues) == 1:
            of_landing[pilot.vo, sent.broker, pilot.queues[0]].append(pilot)
    return frozenset(
        landing for landing, there in of_landing.items() if most_to_send(trials(there), pause, now) == 0
    )


def of_queues(pilots: Iterable[Pilot], limits: Mapping[str, Limits]) -> Mapping[str, Sequence[Pilot]]:
    """The active pilots of each queue; one on its way counts where most room is left of where it may land."""
    found: dict[str, list[Pilot]] = defaultdict(list)

    def left(queue: str) -> int:
        of_queue = limits.get(queue, Limits())
        return min(of_queue.total, of_queue.waiting) - len(found[queue])

    active = (pilot for pilot in pilots if pilot.status in ACTIVE)
    for pilot in sorted(active, key=lambda each: not each.queue):
        found[pilot.queue or max(pilot.queues, key=left)].append(pilot)
    return found


def _closest(queues: Collection[str], posts: Sequence[Post]) -> Post | None:
    """The post that shares most queues, and of those the one that has fewest others."""

    def shared(post: Post) -> int:
        return len(set(queues).intersection(post.queues))

    best = max(posts, key=lambda post: (shared(post), -len(post.queues)), default=None)
    return best if best is not None and shared(best) else None


def will_take_a_job(pilot: Pilot, now: datetime, *, lifetime: float | None, soon: timedelta) -> bool:
    """Whether a pilot takes one of the waiting jobs by itself.

    One that waits does, and one that has just begun. One that had jobs does if those were short: if it
    will be free soon, and as much time is left of its slot as its jobs took so far.

    Args:
        pilot: Which.
        now: The time.
        lifetime: Seconds that its slot lasts; None: no end in sight.
        soon: How short a job is short.
    """
    if pilot.status not in ACTIVE:
        return False
    if not is_running(pilot) or not pilot.jobs:
        return True
    age = now - pilot.created_at
    each = age / pilot.jobs
    left = timedelta.max if lifetime is None else timedelta(seconds=lifetime) - age
    return each <= min(soon, left)


def trials(pilots: Iterable[Pilot]) -> Iterable[Trial]:
    """What is known of how pilots fared: of those that had a job, that failed, or that ended without one."""
    for pilot in pilots:
        broke = pilot.status in _BAD or (pilot.status is Status.DONE and not pilot.jobs)
        if pilot.jobs or broke:
            yield Trial(sent_at=pilot.created_at, known_at=pilot.updated_at, good=pilot.jobs > 0)


def waiting_and_running(pilots: Iterable[Pilot]) -> Counter[bool]:
    """How many active pilots run (True) and wait (False)."""
    return Counter(is_running(pilot) for pilot in pilots if pilot.status in ACTIVE)
