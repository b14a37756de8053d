"""Claiming for all requests that have come in, in one transaction."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice

from sqlalchemy import Connection

from cs_config.tree.configuration import Configuration
from matcher.claim.allotment import SlotAllotment
from matcher.index.sampling import CandidateOrder
from matcher.index.waiting import split_into_pieces
from matcher.limits import place_policy
from matcher.limits.admission import AdmissionPolicy
from matcher.limits.place_policy import PlacePolicy
from matcher.request.match_request import MatchRequest
from matcher.request.resource import Resource
from taskqueue.leases import assignment, claim, match_requests, selection
from taskqueue.leases.assignment import Location, TakenRow, TakeRequest
from taskqueue.leases.claim import AssignedJob, ClaimedJob, LeaseHolder
from taskqueue.leases.match_requests import RequestKey
from taskqueue.leases.selection import CandidateFilter, CandidateRow
from taskqueue.pilots import pilots
from taskqueue.task_queues.task_queues import TaskQueue

#: Task queues that are tried before it is asked which of the others have jobs at all.
_DIRECT_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """What a request comes down to: where the jobs would run, and which they may be."""

    request: MatchRequest
    resource: Resource  #: that the jobs share
    place: Location
    holder: LeaseHolder
    drawn: CandidateOrder  #: those that fit, in the order in which to try them
    keeper: AdmissionPolicy | None = None  #: who tells the jobs apart before they come; None: all may
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

    def complete(self, look: "ClaimResult") -> "ClaimResult":
        """What it is told where its look brought nothing, not even a reason."""
        silent = not look.claimed and look.refused is None and not look.in_other_hands
        return replace(look, refused=self.otherwise) if silent else look


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimResult:
    """What one look brought a request: jobs, or how it stands."""

    claimed: tuple[ClaimedJob, ...] = ()
    refused: str | None = None  #: why it may have none now, in one word: banned, throttled
    emptied: frozenset[int] = frozenset()  #: task queues that were tried and have no job
    in_other_hands: bool = False  #: jobs that fit are being taken by others; they may come free again


@dataclass(slots=True, kw_only=True)
class _Claim:
    """What a wish has taken so far, before it is handed over."""

    wish: ClaimRequest
    filling: SlotAllotment
    gate: PlacePolicy | None = None  #: None: nothing holds at the place
    taken: list[TakenRow] = field(default_factory=list)
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
        for some in split_into_pieces(filter(self._fits, self.wish.drawn.rest())):
            yield some
            if self.missing <= 0 or not self.admitted:
                return

    def next(self) -> TaskQueue | None:
        """The task queue to try next; None: all have been."""
        return self.wish.drawn.next(self._fits)

    def _fits(self, task_queue: TaskQueue) -> bool:
        return bool(self.filling.most(task_queue.requirement_class, 1))

    def want(self, task_queue: TaskQueue) -> TakeRequest:
        """What it wants of that task queue."""
        return TakeRequest(
            task_queue_id=task_queue.task_queue_id,
            count=self.most(task_queue),
            place=self.wish.place,
            has_pool=task_queue.requirement_class.submit_pool is not None,
        )

    def add(self, task_queue: TaskQueue, taken: Sequence[TakenRow]) -> None:
        """Jobs of a task queue were taken."""
        self.taken += taken
        self.filling.take(task_queue.requirement_class, len(taken))

    def claimed_jobs(self) -> list[AssignedJob]:
        """The jobs with what each may use."""
        return [
            AssignedJob(row=row, place=self.wish.place, holder=self.wish.holder, allotment=allotment)
            for row, allotment in zip(self.taken, self.filling.allotments(), strict=True)
        ]


def claim_all(
    conn: Connection, wishes: Sequence[ClaimRequest], *, config: Configuration, now: datetime
) -> list[ClaimResult]:
    """Take jobs for each of the wishes, and hand them over: all of it happens, or nothing.

    A request that another process has answered meanwhile gets that answer.
    """
    doors = place_policy.lock_policies(conn, config, {wish.place for wish in wishes}, now)
    keys = {
        wish: key for wish in range(len(wishes)) if (key := request_key(wishes[wish].request)) is not None
    }
    new = match_requests.reserve_keys(conn, keys.values(), now=now)
    held = read_earlier_answers(conn, [wishes[each].request for each, key in keys.items() if key not in new])
    catches = [
        _Claim(
            wish=wish, filling=SlotAllotment(wish.resource), gate=doors.find_policy(wish.place, wish.keeper)
        )
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
        ClaimResult(claimed=held[keys[number]]) if keys.get(number) in held else look
        for number, look in enumerate(looks)
    ]
    _store_answers(conn, keys, new, looks, now)
    return looks


def request_key(request: MatchRequest) -> RequestKey | None:
    """Under which the answer to a request is remembered; None: it does not ask for that."""
    return None if request.request_id is None else (request.caller.subject, request.request_id)


def read_earlier_answers(
    conn: Connection, requests: Sequence[MatchRequest]
) -> Mapping[RequestKey | None, tuple[ClaimedJob, ...]]:
    """What requests were given before, as far as they hold it still."""
    keys = [key for request in requests if (key := request_key(request)) is not None]
    found: dict[RequestKey | None, tuple[ClaimedJob, ...]] = {}
    for key, job_ids in match_requests.read_answers(conn, keys).items():
        if held := claim.list_held(conn, job_ids, subject=key[0]):
            found[key] = tuple(held)
    return found


def _take(conn: Connection, catches: Sequence[_Claim], now: datetime) -> None:
    """Take jobs, as many as each wants or as there are.

    A task queue that has none is cheap to try, but there may be thousands: after a few it is asked which
    of all the others have any.
    """
    for _ in range(_DIRECT_TRIES):
        asking = [
            (catch, found)
            for catch in catches
            if catch.missing > 0 and len(catch.tried) < _DIRECT_TRIES and (found := catch.next()) is not None
        ]
        wants = [catch.want(found) for catch, found in asking]
        for (catch, found), taken in zip(asking, assignment.take_batch(conn, wants, now=now), strict=True):
            catch.add(found, taken)
    for catch in catches:
        if catch.missing > 0:
            _search(conn, catch, now)


def _search(conn: Connection, catch: _Claim, now: datetime) -> None:
    """Take from those that have jobs, of all that were not tried; say how it stands if none has."""
    place = catch.wish.place
    tried, had, full = _ids(catch.tried), set[int](), list[TaskQueue]()
    for some in catch.rest():
        left = assignment.find_nonempty(conn, _ids(some), place=place)
        tried += _ids(some)
        had |= left
        worth = [each for each in some if each.task_queue_id in left]
        if catch.gate is not None:
            worth = catch.gate.worth(conn, worth, place)
        _take_from(conn, catch, worth, now)
        full += worth
    first = _ids(catch.tried)
    still = (
        assignment.find_nonempty(conn, first + _ids(full), place=place)
        if catch.missing > 0
        else had.union(first)
    )
    catch.emptied = frozenset(tried) - still - had
    # A job that was asked for by its number is gone or in another's hands: neither is worth another look.
    others = catch.passed_over if catch.chooses else bool(still) and catch.refused is None
    catch.in_other_hands = not catch.taken and catch.wish.job_id is None and others


def _ids(task_queues: Sequence[TaskQueue]) -> list[int]:
    return [each.task_queue_id for each in task_queues]


def _take_from(conn: Connection, catch: _Claim, task_queues: Sequence[TaskQueue], now: datetime) -> None:
    """Take from the first task queue, then from the next: what the place lets through, while it fits."""
    place, gate = catch.wish.place, catch.gate
    for task_queue in task_queues:
        while most := catch.most(task_queue):
            if catch.chooses:
                passed = _choose(conn, catch, task_queue, now)
            else:
                passed = assignment.take_jobs(conn, [task_queue.task_queue_id], most, place=place, now=now)
                if gate is not None:
                    gate.passed(passed)
            catch.add(task_queue, passed)
            if not passed or (gate is None and len(passed) < most and not catch.chooses):
                break


def _choose(conn: Connection, catch: _Claim, task_queue: TaskQueue, now: datetime) -> list[TakenRow]:
    """Take the first job of a task queue that will do and that the place lets in."""
    place, gate = catch.wish.place, catch.gate
    for job in _choices(conn, catch, task_queue):
        taken = selection.take_job(conn, task_queue.task_queue_id, job.job_id, place=place, now=now)
        if taken:
            if gate is not None:
                gate.passed(taken, job)
            return taken
        catch.passed_over = True
    if gate is not None and catch.wish.job_id is not None:
        gate.count_kept_out(task_queue)
    return []


def _choices(conn: Connection, catch: _Claim, task_queue: TaskQueue) -> Iterator[CandidateRow]:
    """The jobs of a task queue that will do and that the place lets in."""
    place, job_id, gate = catch.wish.place, catch.wish.job_id, catch.gate
    if job_id is None:
        return iter(()) if gate is None else gate.admitted(conn, task_queue, place)
    passing = CandidateFilter() if gate is None else gate.passing(task_queue.vo)
    jobs = selection.read_candidate(conn, task_queue.task_queue_id, job_id, place=place, passing=passing)
    return (job for job in jobs if gate is None or gate.admits(job))


def _hand_over(conn: Connection, catches: Sequence[_Claim], now: datetime) -> list[ClaimResult]:
    given = [each for catch in catches for each in catch.claimed_jobs()]
    claimed = iter(claim.open_attempts(conn, given, now=now))
    _count_for_pilots(conn, catches)
    return [
        ClaimResult(
            claimed=tuple(islice(claimed, len(catch.taken))),
            emptied=catch.emptied,
            in_other_hands=catch.in_other_hands,
            refused=catch.refused,
        )
        for catch in catches
    ]


def _count_for_pilots(conn: Connection, catches: Sequence[_Claim]) -> None:
    """Note with each pilot how many jobs it was given."""
    given: Counter[str] = Counter()
    for catch in catches:
        if catch.wish.holder.stamp is not None and catch.taken:
            given[catch.wish.holder.stamp] += len(catch.taken)
    pilots.add_jobs(conn, given)


def _store_answers(
    conn: Connection,
    keys: Mapping[int, RequestKey],
    new: frozenset[RequestKey],
    looks: Sequence[ClaimResult],
    now: datetime,
) -> None:
    """Remember what was given under which key; an answer without jobs is not worth a row."""
    given = {key: [each.job_id for each in looks[wish].claimed] for wish, key in keys.items()}
    match_requests.store_answers(conn, {key: ids for key, ids in given.items() if ids}, now=now)
    match_requests.release_keys(conn, [key for key, ids in given.items() if not ids and key in new])
