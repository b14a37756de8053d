"""Claiming for all requests that have come in, in one transaction."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice

from sqlalchemy import Connection

from cs_config.configuration import Configuration
from matcher import gates
from matcher.candidates import pieces
from matcher.doorkeeper import Doorkeeper
from matcher.filling import Filling
from matcher.gate import Gate
from matcher.lottery import Draw
from matcher.requests import MatchRequest
from matcher.resource import Resource
from taskqueue import choosing, claims, match_requests, pilots
from taskqueue.choosing import Passing, Waiting
from taskqueue.claims import Claimed, Given, Holder, Place, Taken, Want
from taskqueue.match_requests import Key
from taskqueue.task_queues import TaskQueue

#: Task queues that are tried before it is asked which of the others have jobs at all.
_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a request comes down to: where the jobs would run, and which they may be."""

    request: MatchRequest
    resource: Resource  #: that the jobs share
    place: Place
    holder: Holder
    drawn: Draw  #: those that fit, in the order in which to try them
    keeper: Doorkeeper | None = None  #: who tells the jobs apart before they come; None: all may
    fitting: Sequence[TaskQueue] = ()  #: those of them that the place lets in, if that is to be noted
    otherwise: str | None = None  #: why there is nothing, if none of those has a job any more
    counted: bool = False  #: whether something holds at the place, as far as was known before

    @property
    def job_id(self) -> int | None:
        """The only job that will do; None: any."""
        return self.request.presented.job_id

    @property
    def is_single(self) -> bool:
        """Whether one statement may claim for it: one job, and it does not matter which."""
        return self.request.count == 1 and self.keeper is None and self.job_id is None

    def told(self, look: "Look") -> "Look":
        """What it is told where its look brought nothing, not even a reason."""
        silent = not look.claimed and look.refused is None and not look.in_other_hands
        return replace(look, refused=self.otherwise) if silent else look


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look brought a request: jobs, or how it stands."""

    claimed: tuple[Claimed, ...] = ()
    refused: str | None = None  #: why it may have none now, in one word: banned, throttled
    emptied: frozenset[int] = frozenset()  #: task queues that were tried and have no job
    in_other_hands: bool = False  #: jobs that fit are being taken by others; they may come free again


@dataclass(slots=True, kw_only=True)
class _Catch:
    """What a wish has taken so far, before it is handed over."""

    wish: Wish
    filling: Filling
    gate: Gate | None = None  #: None: nothing holds at the place
    taken: list[Taken] = field(default_factory=list)
    emptied: frozenset[int] = frozenset()
    in_other_hands: bool = False
    passed_over: bool = False  #: a job that was let in was in another's hands

    @property
    def missing(self) -> int:
        """How many jobs more it wants; none if the resource is full."""
        return 0 if self.filling.full else self.wish.request.count - len(self.taken)

    @property
    def refused(self) -> str | None:
        """Why the place let nothing through."""
        return None if self.taken or self.gate is None else self.gate.refused

    @property
    def chooses(self) -> bool:
        """Whether it matters who each job is."""
        return self.wish.job_id is not None or (self.gate is not None and self.gate.asks_job)

    @property
    def admitted(self) -> int:
        """How many jobs may be taken at once, as far as the place is concerned."""
        return self.missing if self.gate is None else self.gate.most(self.missing)

    def most(self, task_queue: TaskQueue) -> int:
        """How many jobs of a task queue may be taken at once."""
        return self.filling.most(task_queue.requirement_class, self.admitted)

    @property
    def tried(self) -> Sequence[TaskQueue]:
        """Those that were tried before their turn to be asked whether they have any."""
        return self.wish.drawn.tried

    def rest(self) -> Iterator[list[TaskQueue]]:
        """The task queues that are left whose jobs still fit, in pieces, while more jobs may be taken."""
        for some in pieces(filter(self._fits, self.wish.drawn.rest())):
            yield some
            if self.missing <= 0 or not self.admitted:
                return

    def next(self) -> TaskQueue | None:
        """The task queue to try next; None: all have been."""
        return self.wish.drawn.next(self._fits)

    def _fits(self, task_queue: TaskQueue) -> bool:
        return bool(self.filling.most(task_queue.requirement_class, 1))

    def want(self, task_queue: TaskQueue) -> Want:
        """What it wants of that task queue."""
        return Want(
            task_queue_id=task_queue.task_queue_id,
            count=self.most(task_queue),
            place=self.wish.place,
            has_pool=task_queue.requirement_class.submit_pool is not None,
        )

    def took(self, task_queue: TaskQueue, taken: Sequence[Taken]) -> None:
        """Jobs of a task queue were taken."""
        self.taken += taken
        self.filling.take(task_queue.requirement_class, len(taken))

    def given(self) -> list[Given]:
        """The jobs with what each may use."""
        return [
            Given(row=row, place=self.wish.place, holder=self.wish.holder, allotment=allotment)
            for row, allotment in zip(self.taken, self.filling.allotments(), strict=True)
        ]


def claim_all(
    conn: Connection, wishes: Sequence[Wish], *, config: Configuration, now: datetime
) -> list[Look]:
    """Take jobs for each of the wishes, and hand them over: all of it happens, or nothing.

    A request that another process has answered meanwhile gets that answer.
    """
    doors = gates.lock(conn, config, {wish.place for wish in wishes}, now)
    keys = {wish: key for wish in range(len(wishes)) if (key := key_of(wishes[wish].request)) is not None}
    new = match_requests.reserve(conn, keys.values(), now=now)
    held = given_before(conn, [wishes[each].request for each, key in keys.items() if key not in new])
    catches = [
        _Catch(wish=wish, filling=Filling(wish.resource), gate=doors.at(wish.place, wish.keeper))
        for wish in wishes
    ]
    asking = [catch for number, catch in enumerate(catches) if keys.get(number) not in held]
    # Those first who cannot take just any job.
    for catch in asking:
        if (catch.gate is not None or catch.chooses) and catch.admitted:
            _search(conn, catch, now)
    _take(conn, [catch for catch in asking if catch.gate is None and not catch.chooses], now)
    looks = _hand_over(conn, catches, now)
    doors.write(conn)
    looks = [
        Look(claimed=held[keys[number]]) if keys.get(number) in held else look
        for number, look in enumerate(looks)
    ]
    _note(conn, keys, new, looks, now)
    return looks


def key_of(request: MatchRequest) -> Key | None:
    """Under which the answer to a request is remembered; None: it does not ask for that."""
    return None if request.request_id is None else (request.caller.subject, request.request_id)


def given_before(
    conn: Connection, requests: Sequence[MatchRequest]
) -> Mapping[Key | None, tuple[Claimed, ...]]:
    """What requests were given before, as far as they hold it still."""
    keys = [key for request in requests if (key := key_of(request)) is not None]
    found: dict[Key | None, tuple[Claimed, ...]] = {}
    for key, job_ids in match_requests.answered(conn, keys).items():
        if held := claims.still_held(conn, job_ids, subject=key[0]):
            found[key] = tuple(held)
    return found


def _take(conn: Connection, catches: Sequence[_Catch], now: datetime) -> None:
    """Take jobs, as many as each wants or as there are.

    A task queue that has none is cheap to try, but there may be thousands: after a few it is asked which
    of all the others have any.
    """
    for _ in range(_TRIES):
        asking = [
            (catch, found)
            for catch in catches
            if catch.missing > 0 and len(catch.tried) < _TRIES and (found := catch.next()) is not None
        ]
        wants = [catch.want(found) for catch, found in asking]
        for (catch, found), taken in zip(asking, claims.take_all(conn, wants, now=now), strict=True):
            catch.took(found, taken)
    for catch in catches:
        if catch.missing > 0:
            _search(conn, catch, now)


def _search(conn: Connection, catch: _Catch, now: datetime) -> None:
    """Take from those that have jobs, of all that were not tried; say how it stands if none has."""
    place = catch.wish.place
    tried, had, full = _ids(catch.tried), set[int](), list[TaskQueue]()
    for some in catch.rest():
        left = claims.left(conn, _ids(some), place=place)
        tried += _ids(some)
        had |= left
        worth = [each for each in some if each.task_queue_id in left]
        if catch.gate is not None:
            worth = catch.gate.worth(conn, worth, place)
        _take_from(conn, catch, worth, now)
        full += worth
    first = _ids(catch.tried)
    still = claims.left(conn, first + _ids(full), place=place) if catch.missing > 0 else had.union(first)
    catch.emptied = frozenset(tried) - still - had
    # A job that was asked for by its number is gone or in another's hands: neither is worth another look.
    others = catch.passed_over if catch.chooses else bool(still) and catch.refused is None
    catch.in_other_hands = not catch.taken and catch.wish.job_id is None and others


def _ids(task_queues: Sequence[TaskQueue]) -> list[int]:
    return [each.task_queue_id for each in task_queues]


def _take_from(conn: Connection, catch: _Catch, task_queues: Sequence[TaskQueue], now: datetime) -> None:
    """Take from the first task queue, then from the next: what the place lets through, while it fits."""
    place, gate = catch.wish.place, catch.gate
    for task_queue in task_queues:
        while most := catch.most(task_queue):
            if catch.chooses:
                passed = _choose(conn, catch, task_queue, now)
            else:
                passed = claims.take(conn, [task_queue.task_queue_id], most, place=place, now=now)
                if gate is not None:
                    gate.passed(passed)
            catch.took(task_queue, passed)
            if not passed or (gate is None and len(passed) < most and not catch.chooses):
                break


def _choose(conn: Connection, catch: _Catch, task_queue: TaskQueue, now: datetime) -> list[Taken]:
    """Take the first job of a task queue that will do and that the place lets in."""
    place, gate = catch.wish.place, catch.gate
    for job in _choices(conn, catch, task_queue):
        taken = choosing.take(conn, task_queue.task_queue_id, job.job_id, place=place, now=now)
        if taken:
            if gate is not None:
                gate.passed(taken, job)
            return taken
        catch.passed_over = True
    if gate is not None and catch.wish.job_id is not None:
        gate.kept_out(task_queue)
    return []


def _choices(conn: Connection, catch: _Catch, task_queue: TaskQueue) -> Iterator[Waiting]:
    """The jobs of a task queue that will do and that the place lets in."""
    place, job_id, gate = catch.wish.place, catch.wish.job_id, catch.gate
    if job_id is None:
        return iter(()) if gate is None else gate.admitted(conn, task_queue, place)
    passing = Passing() if gate is None else gate.passing(task_queue.vo)
    jobs = choosing.peek_at(conn, task_queue.task_queue_id, job_id, place=place, passing=passing)
    return (job for job in jobs if gate is None or gate.admits(job))


def _hand_over(conn: Connection, catches: Sequence[_Catch], now: datetime) -> list[Look]:
    given = [each for catch in catches for each in catch.given()]
    claimed = iter(claims.hand_over(conn, given, now=now))
    _count(conn, catches)
    return [
        Look(
            claimed=tuple(islice(claimed, len(catch.taken))),
            emptied=catch.emptied,
            in_other_hands=catch.in_other_hands,
            refused=catch.refused,
        )
        for catch in catches
    ]


def _count(conn: Connection, catches: Sequence[_Catch]) -> None:
    """Note with each pilot how many jobs it was given."""
    given: Counter[str] = Counter()
    for catch in catches:
        if catch.wish.holder.stamp is not None and catch.taken:
            given[catch.wish.holder.stamp] += len(catch.taken)
    pilots.give(conn, given)


def _note(
    conn: Connection,
    keys: Mapping[int, Key],
    new: frozenset[Key],
    looks: Sequence[Look],
    now: datetime,
) -> None:
    """Remember what was given under which key; an answer without jobs is not worth a row."""
    given = {key: [each.job_id for each in looks[wish].claimed] for wish, key in keys.items()}
    match_requests.remember(conn, {key: ids for key, ids in given.items() if ids}, now=now)
    match_requests.forget(conn, [key for key, ids in given.items() if not ids and key in new])
