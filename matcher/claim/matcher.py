"""The matcher of one process: finds candidates in memory and claims jobs in the database."""

import logging
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from random import Random

from sqlalchemy import Connection, Engine

from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.claim import claim_loop, in_doubt_claims
from matcher.claim.claim_loop import Results, StepwiseClaimer
from matcher.claim.claim_request import ClaimRequest, ClaimResult
from matcher.claim.in_doubt_claims import InDoubtClaims
from matcher.claim.prepare import NODE, find_place, prepare
from matcher.claim.snapshot import MatcherCache, NoMatch, Snapshot
from matcher.index.place_pools import PlacePools
from matcher.index.queue_pools import QueuePoolCache
from matcher.index.waiting import FeedFreshness, FeedRead
from matcher.limits import job_groups
from matcher.limits.compiled_rules import RuleFollower
from matcher.pilot_groups import PilotGroup
from matcher.request.match_request import MatchRequest, MatchResult, Unserved
from requirements.errors import PilotageError
from taskqueue.db import database
from taskqueue.db.database import LazyTransaction, NeedsDatabase, NoTransaction
from taskqueue.leases.opening import ClaimedJob
from taskqueue.pilots.slots import SlotRefusal
from taskqueue.pools import mapping
from taskqueue.sites import closures
from taskqueue.task_queues import task_queues

log = logging.getLogger(__name__)

_NO_READING = NoTransaction()
#: Reasons that no waiting job changes.
_REFUSALS = frozenset(SlotRefusal)
#: Seconds for which read data count as fresh enough to find a job: it must be offered within two. A request
#: without a job reads again.
_FRESH = 0.2
#: Seconds for which read data may be claimed from in the event loop: the claim states all conditions again.
_RECENT = 2.0
#: Default reason for no job.
NO_TASK_QUEUE = "no_task_queue"


class Matcher:
    """Serves requests for work, one batch at a time.

    Cached data only narrow the search: the claim itself, `taskqueue.leases.assignment` or the statement of
    `batched_claim.sql`, decides on locked rows.
    """

    def __init__(
        self,
        engine: Engine,
        config: Callable[[], Configuration],
        clock: Callable[[], datetime],
        random: Random | None = None,
        *,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`steady` counts the seconds after which what is cached is old."""
        self._engine = engine
        self._given = config
        self.now = clock  #: the time used for leases
        self._random = random or Random()
        self._steady = steady
        self._memory = MatcherCache.counting(steady)
        self._freshness = FeedFreshness(steady)
        self._rules = RuleFollower(engine)  # to bring up to date before requests are prepared
        self.doubts = InDoubtClaims()  #: claims with unknown outcome
        self._claims = StepwiseClaimer(engine, self.doubts)
        self._job_groups = job_groups.find_cache(engine)
        self._pools = QueuePoolCache()
        self.is_loaded = False  #: whether the waiting jobs were read at least once

    @property
    def place_lookups(self) -> Mapping[str, int]:
        """Requests of this process by whether their place was prepared: `hit` or `miss`."""
        return dict(self._memory.lookups)

    def _config(self) -> Configuration:
        """The current configuration, without expired values."""
        return self._given().at_moment(self.now())

    def refresh(self) -> None:
        """Apply recent changes; for idle times."""
        self._mark_empty()
        self._rules.follow(self._config())
        since = self._freshness.begin()
        with database.reading(self._engine) as conn:
            self._follow(conn, self.now(), since)

    def serve(self, batch: Sequence[MatchRequest]) -> list[ClaimResult | PilotageError]:
        """Claim jobs for all requests; an invalid one gets its error and affects no other.

        A request without candidates in the updated index causes no write.
        """
        numbers: dict[object, int] = {}
        # For each request the position of the first one with the same key.
        first = [numbers.setdefault(request.key or number, number) for number, request in enumerate(batch)]
        unique = [batch[number] for number in range(len(batch)) if first[number] == number]
        is_fresh = self._steady() - self._memory.closures.at < _FRESH
        found = self._claim_jobs(unique, fresh=is_fresh)
        if again := [each for each in unique if _may_find_more(found[id(each)], was_fresh=is_fresh)]:
            self.settle([found[id(each)] for each in again])
            found = found | self._try_again(again, is_all=len(again) == len(unique))
        return [found[id(batch[number])] for number in first]

    def prepare_in_memory(self, request: MatchRequest) -> ClaimRequest | None:
        """A request that a batch statement may claim for at once; None: `serve` has to answer it.

        Contacts no database, for the event loop. The index may lag: the claim states all conditions again,
        and a request that finds no job there is served as any other.
        """
        presented = request.presented
        if request.count != 1 or presented.job_id is not None or presented.submits:
            return None
        view = self._view(_NO_READING, self.now(), None)
        if self._steady() - view.memory.closures.at >= _RECENT:
            return None
        try:
            prepared = prepare(view, request)
        except NeedsDatabase:
            return None
        return prepared if isinstance(prepared, ClaimRequest) and prepared.is_single else None

    def knows_place(self, request: MatchRequest) -> bool:
        """Whether what the mapping decides at the place of a request is in memory, or is not kept there."""
        memory, key = self._memory, request.cache_key
        generation = self._config(), memory.places.age
        caches = memory.prepared, memory.not_kept
        return key is None or any(each.find(key, generation) is not None for each in caches)

    def read_place(self, request: MatchRequest) -> None:
        """Read what the mapping decides at the place of a request, for `prepare_in_memory`. Thread-safe."""
        with database.reading_lazily(self._engine) as reading:
            view = self._view(reading, self.now(), None)
            find_place(view, request)
        memory, key, generation = view.memory, request.cache_key, (view.config, view.age)
        if key is not None and memory.prepared.find(key, generation) is None:
            memory.not_kept.store(key, key, generation)

    def record_outcome(self, prepared: ClaimRequest, *, gave: bool) -> None:
        """Record whether a claim at a place with limits got a job."""
        if prepared.is_restricted:
            self._memory.open_places.record(prepared.place, prepared.config, gave=gave)

    def exclude(self, emptied: Collection[int]) -> None:
        """Exclude task queues that turned out empty until the feed is read again."""
        with self._memory.lock:
            self._memory.waiting.exclude(emptied)

    def _try_again(self, requests: Sequence[MatchRequest], *, is_all: bool) -> Results:
        """Repeat requests without a job, on one snapshot that begins after all their claims have ended."""
        try:
            return self._claim_jobs(requests, fresh=False)
        except Exception as error:  # of any kind: jobs of other requests must still be delivered
            if is_all:
                raise
            return dict.fromkeys(map(id, requests), Unserved(error))

    def _claim_jobs(self, requests: Sequence[MatchRequest], *, fresh: bool) -> Results:
        """One result per request; `fresh`: the snapshot of a moment ago is good enough."""
        if not fresh:
            self._mark_empty()
        self._rules.follow(self._config())
        now, since = self.now(), None if fresh else self._freshness.begin()
        with database.reading_lazily(self._engine) as reading:
            view = self._view(reading, now, since)
            found = {id(request): prepare(view, request) for request in requests}
            if not fresh:
                found |= _read_earlier_answers(view, requests, found)
            places = {
                id(request): _find_pools(view, request) for request in requests if request.presented.submits
            }
        prepared = [each for each in found.values() if isinstance(each, ClaimRequest)]
        claimed = self._claims.claim(prepared, now=now) if prepared else {}
        for each in prepared:
            result = claimed[id(each.request)]
            self.record_outcome(each, gave=isinstance(result, ClaimResult) and bool(result.claimed))
        results = {
            number: each for number, each in found.items() if not isinstance(each, ClaimRequest)
        } | claimed
        if not places:
            return results
        try:
            return results | self._add_flags(results, requests, places)
        except Exception as error:  # of any kind: jobs of other requests must still be delivered
            if len(requests) == 1:
                self._give_up(results, requests)
                raise
            without = [each for each in requests if id(each) in places]
            self._give_up(results, without)
            return results | dict.fromkeys(map(id, without), Unserved(error))

    def _give_up(self, results: Results, requests: Sequence[MatchRequest]) -> None:
        """Release jobs that are not delivered; a request with a key gets them when it is repeated."""
        claimed = (
            (request, tuple(job.lease for job in result.claimed))
            for request in requests
            if request.key is None and isinstance(result := results[id(request)], ClaimResult)
        )
        self.doubts.add(list(claimed))

    def _add_flags(
        self, results: Results, requests: Sequence[MatchRequest], places: Mapping[int, PlacePools | None]
    ) -> Results:
        """The results of those requests whose jobs are submitted, by their places: with the jobs' flags.

        The configuration may have changed since a request was answered. If the flags of a repeated answer
        are no longer known, its jobs go back: without their flags they would run on any node.
        """
        with_jobs = {
            number: (request, result)
            for request in requests
            if (number := id(request)) in places
            if isinstance(result := results[number], ClaimResult) and result.claimed
        }
        if not with_jobs:
            return {}
        with database.reading(self._engine) as conn:
            ids = [job.job_id for _, result in with_jobs.values() for job in result.claimed]
            pools = mapping.read_pools_and_owners(conn, ids)
        found: dict[int, ClaimResult | PilotageError] = {}
        for number, (request, result) in with_jobs.items():
            jobs = _with_flags(result.claimed, pools, places[number])
            if jobs is None:
                with database.writing(self._engine) as conn:
                    leases = [job.lease for job in result.claimed]
                    in_doubt_claims.release(conn, request, leases, now=self.now())
                found[number] = ClaimResult(refused=NODE, emptied=result.emptied)
            else:
                found[number] = replace(result, claimed=jobs)
        return found

    def notify(self) -> None:
        """Register a notification of changes: cached no-matches are unused until the feed was read."""
        self._freshness.notify()

    def find_no_match(self, cache_key: Hashable, time_left: float | None = None) -> NoMatch | None:
        """A cached no-match, with both as of `MatchRequest`; None: the request must be served. Thread-safe.

        Callers must not pass a repeated request id: earlier answers are only in the database.
        """
        memory = self._memory
        if not self._freshness.is_good or memory.waiting.excluded:  # one of these may have a job
            return None
        return memory.no_matches.find(
            cache_key,
            self._config(),
            time_left=time_left,
            age=memory.places.age,
            calendar=memory.closures.calendar,
            waiting=memory.waiting,
            lock=memory.lock,
        )

    def settle(self, results: Sequence[ClaimResult | PilotageError]) -> None:
        """Exclude task queues that turned out empty; they are marked before the next full snapshot."""
        emptied = {each for result in results if isinstance(result, ClaimResult) for each in result.emptied}
        if emptied:
            self.exclude(emptied)

    def _mark_empty(self) -> None:
        """Mark excluded task queues as empty for all matchers; the next snapshot restores the others."""
        if aside := self._memory.waiting.excluded:
            with database.writing(self._engine) as conn:
                task_queues.mark_empty(conn, aside, now=self.now())

    def get_submit_pools(
        self, vos: frozenset[str], queues: Collection[QueueAddress]
    ) -> Mapping[QueueAddress, Sequence[str]]:
        """The sorted ids of the pools that each queue serves."""
        with database.reading(self._engine) as conn:
            found = self._pools.read_pools(conn, vos, sorted(queues))
        return {queue: found.get(queue, ()) for queue in queues}

    def get_pilot_groups(
        self, vos: frozenset[str], queues: Collection[QueueAddress]
    ) -> Mapping[QueueAddress, Sequence[PilotGroup]]:
        """The same pools, grouped by the flags of the pilots of each queue."""
        with database.reading(self._engine) as conn:
            mapped = mapping.list_mapped_pools(conn, sorted(vos), sorted(queues))
            return self._memory.places.groups.find_groups(conn, self._config(), mapped)

    @contextmanager
    def current_view(self) -> Iterator[Snapshot]:
        """A snapshot with all changes."""
        self._mark_empty()  # otherwise the snapshot would restore them
        self._rules.follow(self._config())
        since = self._freshness.begin()
        with database.reading_lazily(self._engine) as reading:
            yield self._view(reading, self.now(), since)

    def _follow(self, conn: Connection, now: datetime, since: FeedRead) -> tuple[MatcherCache, int]:
        """The updated cache and its age; a new cache if the changes are unknown."""
        memory = self._memory
        began = self._steady()
        while (age := memory.follow(conn)) is None:
            log.warning("changes of the database are unknown: loading everything again")
            memory = self._memory = MatcherCache.counting(self._steady)
        memory.closures.calendar = closures.read_calendar(conn, now=now)
        memory.closures.at = began
        self._freshness.end(since)
        self.is_loaded = True
        return memory, age

    def _view(self, reading: LazyTransaction, now: datetime, since: FeedRead | None) -> Snapshot:
        """A snapshot of a moment ago, or with all changes if the transaction begins after `since`."""
        memory, age = self._memory, self._memory.places.age
        if since is not None:
            memory, age = self._follow(reading.conn, now, since)
        config = self._given().at_moment(now)
        self._job_groups.config = config
        return Snapshot(
            reading=reading,
            memory=memory,
            age=age,
            config=config,
            now=now,
            random=self._random,
            calendar=memory.closures.calendar,
        )


def build_answer(request: MatchRequest, result: ClaimResult) -> MatchResult:
    """The answer to a pilot."""
    warnings = request.presented.warnings
    if result.claimed:
        return MatchResult(matches=result.claimed, warnings=warnings)
    reason = result.refused or NO_TASK_QUEUE
    return MatchResult(reason=reason, warnings=warnings)


def _read_earlier_answers(
    view: Snapshot,
    requests: Sequence[MatchRequest],
    found: Mapping[int, ClaimRequest | ClaimResult | PilotageError],
) -> Results:
    """Earlier answers for requests that get no claim now; claims check for themselves."""
    keyed = [
        each
        for each in requests
        if each.request_id is not None and not isinstance(found[id(each)], ClaimRequest)
    ]
    given = claim_loop.read_earlier_answers(view.conn, keyed) if keyed else {}
    return {id(request): ClaimResult(claimed=held) for request in keyed if (held := given.get(request.key))}


def _find_pools(view: Snapshot, request: MatchRequest) -> PlacePools | None:
    """The pools of a request's place now; None: it is served there no more."""
    try:
        return view.place(request.presented, request.caller)[0]
    except PilotageError:  # the answer already, or that of the next request if this one repeats another
        return None


def _with_flags(
    claimed: Sequence[ClaimedJob], pools: Mapping[int, tuple[str | None, str]], served: PlacePools | None
) -> tuple[ClaimedJob, ...] | None:
    """Jobs of these pools and owners with their flags at a place; None: those of one are unknown."""
    jobs = []
    for job in claimed:
        pool, owner = pools.get(job.job_id, (None, None))
        if pool is not None and (served is None or pool not in served.pools):
            return None
        flags = served.flags.get(pool, ()) if served and pool else ()
        jobs.append(replace(job, flags=flags, owner=owner))
    return tuple(jobs)


def _may_find_more(result: ClaimResult | PilotageError, *, was_fresh: bool) -> bool:
    """Whether a newer snapshot may find a job: this one was of a moment ago, or its jobs were gone."""
    if isinstance(result, ClaimResult):
        is_settled = result.claimed or result.in_other_hands or result.refused in _REFUSALS
        return not is_settled and (was_fresh or bool(result.emptied))
    return was_fresh and not isinstance(result, Unserved)
