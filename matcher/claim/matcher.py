"""The matcher of one process: finds in memory what a resource may run, and claims it in the database."""

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from random import Random

from sqlalchemy import Connection, Engine

from cs_config.errors import QueueNotFound
from cs_config.tree.configuration import Configuration
from matcher.cache import NoMatch, QueuePoolCache
from matcher.claim import claim_loop
from matcher.claim.batch_claim import BatchClaimer, Results
from matcher.claim.claim_loop import ClaimRequest, ClaimResult
from matcher.claim.matching_task_queues import MatchingTaskQueue, list_matching
from matcher.claim.prepare import prepare
from matcher.claim.snapshot import MatcherCache, Snapshot
from matcher.claim.undelivered import InDoubtClaims
from matcher.claim.wait_causes import WaitCauseRecorder
from matcher.errors import Unserved
from matcher.index import place_pools
from matcher.index.waiting import FeedFreshness, FeedRead
from matcher.pilot_groups import PilotGroup
from matcher.request.match_request import RETRY_AFTER, MatchCaller, MatchRequest, MatchResult
from matcher.request.resource import StatedResource
from requirements.errors import PilotageError
from taskqueue.db import database
from taskqueue.db.database import LazyTransaction
from taskqueue.pools import by_queue
from taskqueue.sites import bans
from taskqueue.task_queues import task_queues

log = logging.getLogger(__name__)

#: Why there is nothing, where nothing else says so.
NO_TASK_QUEUE = "no_task_queue"


class Matcher:
    """Serves requests for work, one batch at a time.

    What it remembers is only where to look: `taskqueue.leases.claim` states again what must hold.
    """

    def __init__(
        self,
        engine: Engine,
        config: Callable[[], Configuration],
        clock: Callable[[], datetime],
        random: Random | None = None,
    ) -> None:
        self._engine = engine
        self._given = config
        self._clock = clock
        self._random = random or Random()
        self._memory = MatcherCache()
        self._freshness = FeedFreshness()
        self._notes = WaitCauseRecorder()
        self._claims = BatchClaimer(engine)
        self._pools = QueuePoolCache()

    @property
    def doubts(self) -> InDoubtClaims:
        """What may have been claimed for nobody; for the thread that calls `serve`."""
        return self._claims.doubts

    def now(self) -> datetime:
        """The time by which leases count."""
        return self._clock()

    def _config(self) -> Configuration:
        """What holds now, without what has expired."""
        return self._given().at_moment(self._clock())

    def refresh(self) -> None:
        """Take up what has changed since the last time, while nobody waits."""
        self._notes.go_on()
        self._mark_empty()
        since = self._freshness.begin()
        with database.reading(self._engine) as conn:
            self._follow(conn, self._clock(), since)

    def serve(self, batch: Sequence[MatchRequest]) -> list[ClaimResult | PilotageError]:
        """Look for jobs for all requests; one that is wrong gets its error and disturbs no other.

        Who finds nothing in memory, which has been brought up to date before, costs no writing.
        """
        first = _find_duplicates(batch)
        unique = [batch[number] for number in range(len(batch)) if first[number] == number]
        was_fresh = self._memory.news.is_fresh
        found = self._look(unique, fresh=was_fresh)
        if was_fresh and (vain := [each for each in unique if _is_unanswered(found[id(each)])]):
            found = found | self._look_again(vain, found)
        return [found[id(batch[number])] for number in first]

    def _look_again(self, requests: Sequence[MatchRequest], before: Results) -> Results:
        """With all that is known now, for those who got nothing of what was known a moment ago."""
        try:
            found = self._look(requests, fresh=False)
        except Exception as error:  # whatever it is, what others have got has to be delivered
            if len(requests) == len(before):
                raise
            return {id(request): Unserved(error) for request in requests}
        return {number: _add_emptied(look, before[number]) for number, look in found.items()}

    def _look(self, requests: Sequence[MatchRequest], *, fresh: bool) -> Results:
        """What each gets, by what is known now; `fresh`: by what was known a moment ago."""
        if not fresh:
            self._mark_empty()
        now, since = self._clock(), self._freshness.begin()
        with database.reading_lazily(self._engine) as reading:
            view = self._view(reading, now, since, fresh=fresh)
            found = {id(request): prepare(view, request, self._notes) for request in requests}
            if not fresh:
                found |= _read_earlier_answers(view, requests, found)
        wishes = [each for each in found.values() if isinstance(each, ClaimRequest)]
        # The claim goes by the newest configuration.
        claimed = self._claims.claim(wishes, config=self._config(), now=now)
        self._notes.served(wishes, claimed, now)
        for each in wishes:
            if each.counted:
                gave = claimed[id(each.request)]
                self._memory.open.note(each.place, gave=isinstance(gave, ClaimResult) and bool(gave.claimed))
        return {
            number: each for number, each in found.items() if not isinstance(each, ClaimRequest)
        } | claimed

    def rung(self) -> None:
        """There is something new in the feed: until it has been read, nothing is told from memory."""
        self._freshness.ring()

    def find_no_match(self, likeness: Hashable) -> NoMatch | None:
        """What there is still nothing for, told from memory; None: a look is needed. From any thread.

        Who names its request has to know that it names it for the first time: what a request was given is
        remembered by the database only.
        """
        return self._memory.find_no_match(likeness, self._config()) if self._freshness.is_good else None

    def settle(self, looks: Sequence[ClaimResult | PilotageError]) -> None:
        """Stop trying task queues that turned out to be empty; before the next full look they are marked."""
        emptied = {each for look in looks if isinstance(look, ClaimResult) for each in look.emptied}
        if emptied:
            with self._memory.lock:
                self._memory.waiting.set_aside(emptied)

    def _mark_empty(self) -> None:
        """Tell all matchers of those that are set aside; what is not empty comes back with the next look."""
        if aside := self._memory.waiting.aside:
            with database.writing(self._engine) as conn:
                task_queues.mark_empty(conn, aside, now=self._clock())

    def write_down(self, *, at_end: bool = False) -> None:
        """Write what kept jobs from pilots, about once a minute; for the thread that calls `serve`."""
        self._notes.write_down(self._engine, self._clock(), at_end=at_end)

    def get_submit_pools(
        self, vos: frozenset[str], queues: Sequence[str]
    ) -> tuple[Mapping[str, list[str]], list[QueueNotFound]]:
        """For each of the queues the pools that it serves; and those that do not exist.

        Raises:
            QueueNotFound: None of them exists.
        """
        known, unknown = place_pools.find_queues(queues, self._config())
        with database.reading(self._engine) as conn:
            found = self._pools.read_pools(conn, vos, sorted(set(known.values())))
        return {text: list(found.get(address, ())) for text, address in known.items()}, unknown

    def get_pilot_groups(
        self, vos: frozenset[str], queues: Sequence[str]
    ) -> tuple[Mapping[str, tuple[PilotGroup, ...]], list[QueueNotFound]]:
        """The same, the pools of each queue by the flags that pilots for them are sent with.

        Raises:
            QueueNotFound: None of them exists.
        """
        config = self._config()
        known, unknown = place_pools.find_queues(queues, config)
        with database.reading(self._engine) as conn:
            mapped = by_queue.list_mapped_pools(conn, sorted(vos), sorted(set(known.values())))
            with self._memory.lock:
                found = self._memory.groups.find_groups(conn, config, mapped)
        return {text: found[address] for text, address in known.items()}, unknown

    def get_matching_task_queues(
        self, presented: StatedResource, caller: MatchCaller
    ) -> list[MatchingTaskQueue]:
        """All task queues that a resource may serve now, limits and bans applied, with what waits in them.

        Without facts of a node, also those that only some nodes of the queue may serve.

        Raises:
            QueueNotFound, InvalidResource: The place is wrong.
        """
        self._mark_empty()  # or the look would bring them back, to be tried again
        since = self._freshness.begin()
        with database.reading_lazily(self._engine) as reading:
            view = self._view(reading, self._clock(), since)
            served, resource = view.place(presented, caller)
            if served is None:
                return []
            pools, place = served.pools, served.place
            if not presented.node_facts:
                # Before there is a node, nobody can say what it has not.
                pools, place = pools | served.kept_back, replace(place, checked=view.config.version)
            candidates, keeper = view.admitted(place, resource, view.candidates(pools, resource))
            return list_matching(view.conn, candidates, place, view.gate(place, keeper))

    def _follow(self, conn: Connection, now: datetime, since: FeedRead) -> tuple[MatcherCache, int]:
        """What is remembered, brought up to date, and its age; a new memory if the database is another."""
        memory = self._memory
        began = time.monotonic()
        while (age := memory.follow(conn)) is None:
            log.warning("what has changed in the database cannot be told: everything is loaded anew")
            memory = self._memory = MatcherCache()
        memory.news.banned = frozenset(ban.site for ban in bans.list_bans(conn, now=now))
        memory.news.at = began
        self._freshness.end(since)
        return memory, age

    def _view(
        self, reading: LazyTransaction, now: datetime, since: FeedRead, *, fresh: bool = False
    ) -> Snapshot:
        """What is to be seen now, or was a moment ago; in a transaction that began after `since`."""
        memory, age = self._memory, self._memory.places.age
        if not fresh:
            memory, age = self._follow(reading.conn, now, since)
        return Snapshot(
            reading=reading,
            memory=memory,
            age=age,
            config=self._given().at_moment(now),
            now=now,
            random=self._random,
            banned=memory.news.banned,
        )


def build_answer(request: MatchRequest, look: ClaimResult) -> MatchResult:
    """What the pilot is told."""
    warnings = request.presented.warnings
    if look.claimed:
        return MatchResult(matches=look.claimed, warnings=warnings)
    reason = look.refused or NO_TASK_QUEUE
    return MatchResult(reason=reason, retry_after=RETRY_AFTER, warnings=warnings)


def _find_duplicates(batch: Sequence[MatchRequest]) -> list[int]:
    """For each request the first of the batch that is the same one, said again."""
    seen: dict[object, int] = {}
    return [
        seen.setdefault(claim_loop.request_key(request) or number, number)
        for number, request in enumerate(batch)
    ]


def _read_earlier_answers(
    view: Snapshot,
    requests: Sequence[MatchRequest],
    found: Mapping[int, ClaimRequest | ClaimResult | PilotageError],
) -> Results:
    """The answers that were given to those who would get none now; a wish finds out by itself."""
    keyed = [
        each
        for each in requests
        if each.request_id is not None and not isinstance(found[id(each)], ClaimRequest)
    ]
    given = claim_loop.read_earlier_answers(view.conn, keyed) if keyed else {}
    return {
        id(request): ClaimResult(claimed=held)
        for request in keyed
        if (held := given.get(claim_loop.request_key(request)))
    }


def _is_unanswered(look: ClaimResult | PilotageError) -> bool:
    """Whether somebody who knows more may get something."""
    if isinstance(look, ClaimResult):
        return not (look.claimed or look.in_other_hands)
    return not isinstance(look, Unserved)


def _add_emptied(
    look: ClaimResult | PilotageError, before: ClaimResult | PilotageError
) -> ClaimResult | PilotageError:
    if isinstance(look, ClaimResult) and isinstance(before, ClaimResult):
        return replace(look, emptied=look.emptied | before.emptied)
    return look
