"""From the list of our pilots to the numbers that decide."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from pilotage.fabric.director.demand import Limits
from pilotage.fabric.director.experience import Trial
from pilotage.fabric.director.pilots import ACTIVE, Pilot, Status
from pilotage.fabric.director.posts import Post, kind, kind_of

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
    """The pilots of each post; those that were sent with flags which no post has now are in none."""
    by_kind = {(post.vo, post.queue, kind(post.flags)): post for post in posts}
    found: dict[Post, list[Pilot]] = defaultdict(list)
    for pilot in pilots:
        word = kind_of(pilot.stamp, director)
        post = by_kind.get((pilot.vo, pilot.queue, word or ""))
        if post is not None:
            found[post].append(pilot)
    return {post: tuple(of_post) for post, of_post in found.items()}


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
