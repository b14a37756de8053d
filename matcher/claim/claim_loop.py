"""Claiming step by step: for all requests of a batch in one transaction, on any database."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from operator import attrgetter

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError

from matcher import allotment
from matcher.allotment import SlotAllotment, fix_cores
from matcher.claim.claim_request import ClaimRequest, ClaimResult
from matcher.claim.in_doubt_claims import InDoubtClaims
from matcher.limits import place_policy
from matcher.limits.place_policy import PlacePolicies, PlacePolicy
from matcher.request.match_request import MatchRequest, Unserved
from requirements.errors import PilotageError
from requirements.resource import Location
from taskqueue.db import database
from taskqueue.db.sql import split_growing
from taskqueue.leases import assignment, attempts, candidate_jobs, opening
from taskqueue.leases.assignment import DescriptionRoom, TakenRow
from taskqueue.leases.attempts import RequestKey
from taskqueue.leases.candidate_jobs import CandidateFilter, CandidateRow
from taskqueue.leases.opening import AssignedJob, ClaimedJob
from taskqueue.pilots.slots import SlotRoom
from taskqueue.task_queues.task_queues import TaskQueue

#: Task queues tried before a query finds which of the others have jobs at all.
_DIRECT_TRIES = 3
#: Passes over a locked place after which it is waited for.
_PASSES = 3

#: Results by the `id()` of their requests.
Results = dict[int, ClaimResult | PilotageError]


class StepwiseClaimer:
    """Claims of one process step by step; for the claim thread only."""

    def __init__(self, engine: Engine, doubts: InDoubtClaims) -> None:
        self._engine = engine
        self._doubts = doubts
        self._passed: Counter[Location] = Counter()  # claims in a row that found a place locked

    def claim(self, requests: Sequence[ClaimRequest], *, now: datetime) -> Results:
        """Claim for all requests: first at free places, then at one that was passed over too often.

        Jobs claimed at free places must be delivered even if the second transaction fails.
        """
        overdue = next((each.place for each in requests if self._passed[each.place] >= _PASSES), None)
        free = [each for each in requests if each.place != overdue]
        late = [each for each in requests if each.place == overdue]
        found = self._claim_together(free, now, wait=False) if free else {}
        try:
            found |= self._claim_together(late, now, wait=True) if late else {}
        except Exception as error:  # of any kind
            is_busy = isinstance(error, OperationalError) and database.is_lock_timeout(error)
            if not (free or is_busy):
                raise
            result = ClaimResult(in_other_hands=True) if is_busy else Unserved(error)
            found |= dict.fromkeys((id(each.request) for each in late), result)
        self._count_passes(requests, found)
        return found

    def _count_passes(self, requests: Sequence[ClaimRequest], found: Results) -> None:
        results = [(each.place, found[id(each.request)]) for each in requests]
        passed = {
            place for place, result in results if isinstance(result, ClaimResult) and result.in_other_hands
        }
        for place in {place for place, _ in results} - passed:
            self._passed.pop(place, None)
        self._passed.update(passed)

    def _claim_together(self, requests: Sequence[ClaimRequest], now: datetime, *, wait: bool) -> Results:
        """Claim in one transaction; claims whose commit is not confirmed are in doubt."""
        maybe: list[tuple[MatchRequest, tuple[str, ...]]] = []
        with self._doubts.about(maybe), database.writing(self._engine) as conn:
            results = claim_all(conn, requests, now=now, wait=wait)
            maybe += (
                (requests[number].request, tuple(each.lease for each in result.claimed))
                for number, result in results.items()
            )
        return {id(requests[number].request): result for number, result in results.items()}


@dataclass(slots=True, kw_only=True)
class _Claim:
    """The jobs taken so far for a request, before their attempts are opened."""

    prepared: ClaimRequest
    filling: SlotAllotment
    wanted: int  #: jobs at most, up to now
    is_for_several: bool  #: whether the request is for more than one
    job_id: int | None  #: the only job that is accepted; None: any
    gate: PlacePolicy | None  #: None: the place has no conditions
    is_plain: bool  #: whether any job will do, and the place has no conditions
    chooses: bool  #: whether jobs must be checked one by one
    must_wait: bool  #: the place is locked by another transaction, or has a limit that is not in force yet
    room: SlotRoom | None  #: of the pilot; None: it is none
    descriptions: DescriptionRoom | None  #: None: of one job
    taken: list[TakenRow] = field(default_factory=list)
    served_from: set[int] = field(default_factory=set)  #: task queues of these jobs
    emptied: frozenset[int] = frozenset()
    in_other_hands: bool = False
    passed_over: bool = False  #: an admitted job was locked by another transaction

    @property
    def missing(self) -> int:
        """The number of jobs still wanted; 0 if the resource is full, or the answer."""
        is_full = self.filling.full or (self.descriptions is not None and self.descriptions.left <= 0)
        return 0 if is_full else self.wanted - len(self.taken)

    @property
    def silent(self) -> list[int]:
        """Directly tried task queues that gave no job: they have none, or all are locked or not admitted."""
        return [each for each in _ids(self.prepared.drawn.tried) if each not in self.served_from]

    @property
    def refused(self) -> str | None:
        """The reason why the pilot has no room, or the place admitted nothing."""
        if self.room is not None and self.room.refusal is not None:
            return self.room.refusal
        return None if self.taken or self.gate is None or self.must_wait else self.gate.refused

    @property
    def admitted(self) -> int:
        """How many jobs the place admits at once."""
        return self.missing if self.gate is None else self.gate.most(self.missing)

    def most(self, task_queue: TaskQueue) -> int:
        """How many jobs of a task queue may be taken at once."""
        return self.filling.most(task_queue.requirement_class, self.admitted)

    def rest(self) -> Iterator[list[TaskQueue]]:
        """The untried task queues whose jobs still fit, in pieces, while more jobs may be taken."""
        for piece in split_growing(filter(self.fits, self.prepared.drawn.order)):
            yield piece
            if self.missing <= 0 or not self.admitted:
                return

    def fits(self, task_queue: TaskQueue) -> bool:
        """Whether a job of the task queue fits in what is left."""
        return bool(self.filling.most(task_queue.requirement_class, 1))

    def add(self, task_queue: TaskQueue, taken: Sequence[TakenRow]) -> None:
        """Account for taken jobs of a task queue."""
        asked = task_queue.requirement_class
        # The gate has counted these cores, before it is known which other jobs there will be.
        is_fixed = self.is_for_several and self.gate is not None and self.gate.bounds_cores
        self.taken += taken
        if taken:
            self.served_from.add(task_queue.task_queue_id)
        self.filling.take(fix_cores(asked) if is_fixed else asked, len(taken))

    def claimed_jobs(self) -> list[AssignedJob]:
        """The jobs with their allotments."""
        return [
            AssignedJob(
                row=row,
                place=self.prepared.place,
                holder=self.prepared.holder.for_vo(row.vo),
                allotment=allotment,
                counted_by=None if self.gate is None else self.gate.find_countings(row.job_id),
                claim_number=None if self.room is None else self.room.next_claim + number,
            )
            for number, (row, allotment) in enumerate(zip(self.taken, self.filling.allotments(), strict=True))
        ]


def claim_all(
    conn: Connection, requests: Sequence[ClaimRequest], *, now: datetime, wait: bool = False
) -> dict[int, ClaimResult]:
    """Take jobs for all requests and open their attempts, in the caller's transaction.

    The results are by position in the list. A request that another process answered meanwhile gets that
    answer. One whose place is locked by another transaction gets nothing now, or is waited for (`wait`),
    which raises OperationalError after a moment.
    """
    policies = place_policy.lock_policies(conn, {prepared.place for prepared in requests}, now, wait=wait)
    keys = {number: key for number, each in enumerate(requests) if (key := each.request.key) is not None}
    new = attempts.reserve_keys(conn, keys.values(), now=now) if keys else frozenset()
    repeated = [requests[number].request for number, key in keys.items() if key not in new]
    held = read_earlier_answers(conn, repeated, lock=True) if repeated else {}
    rooms = opening.read_rooms(conn, [each.holder for each in requests], now=now)
    claims = [_begin(policies, prepared, room) for prepared, room in zip(requests, rooms, strict=True)]
    new_claims = [each for number, each in enumerate(claims) if keys.get(number) not in held]
    # The most restricted requests first.
    for each in sorted(new_claims, key=attrgetter("is_plain")):
        _take(conn, each, now)
    results = _hand_over(conn, claims, now)
    policies.write(conn)
    results |= {number: ClaimResult(claimed=held[key]) for number, key in keys.items() if key in held}
    if keys:
        _store_answers(conn, keys, new, results, now)
    return results


def _begin(policies: PlacePolicies, prepared: ClaimRequest, room: SlotRoom | None) -> _Claim:
    """The claim of a request; `room`: what the jobs of its pilot leave."""
    vos, job_id = prepared.resource.named_vos, prepared.request.presented.job_id
    resource, wanted = allotment.bound_by_room(prepared.resource, prepared.request.count, room)
    gate = policies.policy_at(prepared.place, prepared.admission, vos=vos, owners=prepared.owners)
    if gate is not None:
        gate.count_cores = allotment.build_core_counter(resource, is_only=wanted == 1)
    is_busy = policies.is_busy(prepared.place, vos)
    return _Claim(
        prepared=prepared,
        filling=SlotAllotment(resource),
        wanted=0 if is_busy else wanted,
        is_for_several=wanted > 1 and not is_busy,
        job_id=job_id,
        gate=gate,
        is_plain=job_id is None and gate is None,
        chooses=job_id is not None or (gate is not None and gate.depends_on_job),
        must_wait=is_busy or (gate is not None and gate.is_opening),
        room=room,
        descriptions=DescriptionRoom() if wanted > 1 and not is_busy else None,
    )


def read_earlier_answers(
    conn: Connection, requests: Sequence[MatchRequest], *, lock: bool = False
) -> Mapping[RequestKey | None, tuple[ClaimedJob, ...]]:
    """Jobs of earlier answers that are still held, by request key; `lock` as of `attempts.read_answers`."""
    keys = [key for request in requests if (key := request.key) is not None]
    found: dict[RequestKey | None, tuple[ClaimedJob, ...]] = {}
    for key, job_ids in attempts.read_answers(conn, keys, lock=lock).items():
        if held := opening.list_held(conn, job_ids, subject=key[0]):
            found[key] = tuple(held)
    return found


def _take(conn: Connection, claim: _Claim, now: datetime) -> None:
    """Take as many jobs as a request wants, or as there are.

    With floors one by one, as each job changes which VO is below its own: the scope of the site is locked, so
    all claims decide by the same numbers.
    """
    prepared, gate, wanted = claim.prepared, claim.gate, claim.wanted
    vos = prepared.resource.named_vos
    if gate is None or not gate.has_floors or len(vos) == 1:
        _take_in_order(conn, claim, now)
        return
    emptied: frozenset[int] = frozenset()
    for claim.wanted in range(1, wanted + 1):
        before = len(claim.taken)
        prepared.drawn.order = prepared.draw(gate.list_first(vos))
        _take_in_order(conn, claim, now)
        emptied |= claim.emptied
        if len(claim.taken) == before:
            break
    claim.emptied = emptied


def _take_in_order(conn: Connection, claim: _Claim, now: datetime) -> None:
    """Take from the candidates in their order.

    An empty task queue is cheap to try, but there may be thousands: after a few tries a query finds those
    with jobs.
    """
    drawn = claim.prepared.drawn
    while not claim.chooses and claim.missing > 0 and claim.admitted and len(drawn.tried) < _DIRECT_TRIES:
        if (found := drawn.next(claim.most)) is None:
            break
        if claim.gate is None or claim.gate.concerns(found):
            _take_from(conn, claim, [found], now)
    if claim.missing > 0 and claim.admitted:
        _search(conn, claim, now)
    elif claim.silent:
        claim.emptied = frozenset(claim.silent) - assignment.find_nonempty(
            conn, claim.silent, place=claim.prepared.place
        )


def _search(conn: Connection, claim: _Claim, now: datetime) -> None:
    """Take from those untried task queues that have jobs, and record why if nothing was taken."""
    place = claim.prepared.place
    searched, nonempty, passing = list[int](), set[int](), list[TaskQueue]()
    for piece in claim.rest():
        with_jobs = assignment.find_nonempty(conn, _ids(piece), place=place)
        searched += _ids(piece)
        nonempty |= with_jobs
        admitted = [each for each in piece if each.task_queue_id in with_jobs]
        if claim.gate is not None:
            admitted = claim.gate.list_passing(conn, admitted, place)
        _take_from(conn, claim, admitted, now)
        passing += admitted
    is_short = claim.missing > 0
    tried = _ids(claim.prepared.drawn.tried) if is_short else claim.silent
    # Jobs that are still there although the request is short of them are locked by others.
    left = assignment.find_nonempty(conn, tried + _ids(passing) if is_short else tried, place=place)
    claim.emptied = frozenset(searched + tried) - nonempty - left
    # A job requested by id is gone or locked: trying again is useless.
    others = claim.passed_over if claim.chooses else bool(left) and claim.refused is None
    claim.in_other_hands = not claim.taken and claim.job_id is None and others


def _ids(task_queues: Sequence[TaskQueue]) -> list[int]:
    return [each.task_queue_id for each in task_queues]


def _take_from(conn: Connection, claim: _Claim, task_queues: Sequence[TaskQueue], now: datetime) -> None:
    """Take from the task queues in turn what the place admits, while it fits."""
    place, gate = claim.prepared.place, claim.gate
    for task_queue in task_queues:
        while most := claim.most(task_queue):
            if claim.chooses:
                passed = _choose(conn, claim, task_queue, now)
            else:
                passed = assignment.take_jobs(
                    conn,
                    [task_queue.task_queue_id],
                    most,
                    place=place,
                    now=now,
                    room=claim.descriptions,
                )
                if gate is not None:
                    gate.count_taken(passed, task_queue)
            claim.add(task_queue, passed)
            if not passed or (gate is None and len(passed) < most and not claim.chooses):
                break


def _choose(conn: Connection, claim: _Claim, task_queue: TaskQueue, now: datetime) -> list[TakenRow]:
    """Take the first acceptable job of a task queue that the place admits."""
    place, gate = claim.prepared.place, claim.gate
    for job in _choices(conn, claim, task_queue):
        taken = candidate_jobs.take_job(
            conn, task_queue.task_queue_id, job.job_id, place=place, now=now, room=claim.descriptions
        )
        if taken:
            if gate is not None:
                gate.count_taken(taken, task_queue, job)
            return taken
        claim.passed_over = True
    if gate is not None and claim.job_id is not None:
        gate.record_kept_out(task_queue)
    return []


def _choices(conn: Connection, claim: _Claim, task_queue: TaskQueue) -> Iterator[CandidateRow]:
    """The acceptable jobs of a task queue that the place admits."""
    place, job_id, gate = claim.prepared.place, claim.job_id, claim.gate
    if job_id is None:
        return iter(()) if gate is None else gate.admitted(conn, task_queue, place)
    passing = CandidateFilter() if gate is None else gate.passing(task_queue)
    jobs = candidate_jobs.read_candidate(conn, task_queue.task_queue_id, job_id, place=place, passing=passing)
    return (job for job in jobs if gate is None or gate.admits(job, task_queue))


def _hand_over(conn: Connection, claims: Sequence[_Claim], now: datetime) -> dict[int, ClaimResult]:
    given = [each for claim in claims for each in claim.claimed_jobs()]
    claimed = iter(opening.open_attempts(conn, given, now=now))
    results: dict[int, ClaimResult] = {}
    for number, claim in enumerate(claims):
        refused = claim.refused
        in_other_hands = claim.in_other_hands or (claim.must_wait and not claim.taken)
        is_silent = refused is None and not claim.taken and not in_other_hands
        results[number] = ClaimResult(
            claimed=tuple(islice(claimed, len(claim.taken))),
            emptied=claim.emptied,
            in_other_hands=in_other_hands,
            refused=claim.prepared.otherwise if is_silent else refused,
        )
    return results


def _store_answers(
    conn: Connection,
    keys: Mapping[int, RequestKey],
    new: frozenset[RequestKey],
    results: Mapping[int, ClaimResult],
    now: datetime,
) -> None:
    """Store the answers by key; an answer without jobs is not worth a row."""
    given = {key: [each.job_id for each in results[number].claimed] for number, key in keys.items()}
    attempts.store_answers(conn, {key: ids for key, ids in given.items() if ids}, now=now)
    attempts.release_keys(conn, [key for key, ids in given.items() if not ids and key in new])
