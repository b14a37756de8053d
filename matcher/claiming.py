"""Claiming for all requests that have come in, in one transaction."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from sqlalchemy import Connection

from cs_config.configuration import Configuration
from matcher import gates, job_ads
from matcher.gates import Gate
from matcher.requests import MatchRequest
from taskqueue import claims, match_requests, pilots
from taskqueue.claims import Claimed, Holder, Place, Taken
from taskqueue.match_requests import Key

#: Task queues that are tried before it is asked which of the others have jobs at all.
_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a request comes down to: where the jobs would run, and which they may be."""

    request: MatchRequest
    place: Place
    holder: Holder
    drawn: Iterator[int]  #: ids of the task queues that fit, in the order in which to try them


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look brought a request: jobs, or how it stands."""

    claimed: tuple[Claimed, ...] = ()
    refused: str | None = None  #: why it may have none now, in one word: banned, throttled
    emptied: frozenset[int] = frozenset()  #: task queues that were tried and have no job
    in_other_hands: bool = False  #: jobs that fit are being taken by others; they may come free again


@dataclass(frozen=True, slots=True, kw_only=True)
class _Catch:
    """What a wish took, before it is handed over."""

    taken: Sequence[Taken] = ()
    emptied: frozenset[int] = frozenset()
    in_other_hands: bool = False
    refused: str | None = None


def claim_all(
    conn: Connection, wishes: Sequence[Wish], *, config: Configuration, now: datetime
) -> list[Look]:
    """Take jobs for each of the wishes, and hand them over: all of it happens, or nothing.

    A request that another process has answered meanwhile gets that answer.
    """
    doors = gates.lock(conn, config, [wish.place for wish in wishes], now)
    keys = {wish: key for wish in range(len(wishes)) if (key := key_of(wishes[wish].request)) is not None}
    new = match_requests.reserve(conn, keys.values(), now=now)
    held = given_before(conn, [wishes[each].request for each, key in keys.items() if key not in new])
    catches = [
        _Catch() if keys.get(number) in held else _catch(conn, wish, doors.at(config, wish.place), now)
        for number, wish in enumerate(wishes)
    ]
    looks = _hand_over(conn, wishes, catches, now)
    doors.reserve(conn)
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


def _catch(conn: Connection, wish: Wish, gate: Gate | None, now: datetime) -> _Catch:
    """Take jobs, as many as are wanted, as there are, or as the place lets through.

    A task queue that has none is cheap to try, but there may be thousands: after a few it is asked which
    of all the others have any.
    """
    if gate is not None and not gate.most(wish.request.count):
        return _Catch(refused=gate.refused)
    count, place = wish.request.count, wish.place
    first = list(islice(wish.drawn, _TRIES))
    taken = _take(conn, first, count, wish, gate, now)
    if len(taken) >= count:
        return _Catch(taken=taken)
    rest = list(wish.drawn)
    left = claims.left(conn, rest, place=place)
    full = [each for each in rest if each in left]
    taken += _take(conn, full, count - len(taken), wish, gate, now)
    still = claims.left(conn, first + full, place=place) if len(taken) < count else left.union(first)
    refused = None if taken or gate is None else gate.refused
    return _Catch(
        taken=taken,
        emptied=frozenset(first + rest) - still - left,
        in_other_hands=not taken and bool(still) and refused is None,
        refused=refused,
    )


def _take(
    conn: Connection, task_queue_ids: Iterable[int], count: int, wish: Wish, gate: Gate | None, now: datetime
) -> list[Taken]:
    """Take up to `count` jobs, from the first task queue that has any, then from the next."""
    if gate is None:
        return claims.take(conn, task_queue_ids, count, place=wish.place, now=now)
    taken: list[Taken] = []
    for task_queue_id in task_queue_ids:
        while len(taken) < count and (most := gate.most(count - len(taken))):
            passed = _take_through(conn, task_queue_id, most, wish, gate, now)
            if not passed:
                break
            gate.passed(passed)
            taken += passed
    return taken


def _take_through(
    conn: Connection, task_queue_id: int, most: int, wish: Wish, gate: Gate, now: datetime
) -> Sequence[Taken]:
    """Take jobs of one task queue through a gate that has room for so many."""
    if not gate.asks_job:
        return claims.take(conn, [task_queue_id], most, place=wish.place, now=now)
    for job in claims.peek(conn, task_queue_id, place=wish.place):
        if gate.admits(job_ads.of(job)):
            taken = claims.take_among(conn, task_queue_id, [job.job_id], place=wish.place, now=now)
            if taken:
                return taken
    return ()


def _hand_over(
    conn: Connection, wishes: Sequence[Wish], catches: Sequence[_Catch], now: datetime
) -> list[Look]:
    given = [
        (row, wish.place, wish.holder)
        for wish, catch in zip(wishes, catches, strict=True)
        for row in catch.taken
    ]
    claimed = iter(claims.hand_over(conn, given, now=now))
    _count(conn, wishes, catches)
    return [
        Look(
            claimed=tuple(islice(claimed, len(catch.taken))),
            emptied=catch.emptied,
            in_other_hands=catch.in_other_hands,
            refused=catch.refused,
        )
        for catch in catches
    ]


def _count(conn: Connection, wishes: Sequence[Wish], catches: Sequence[_Catch]) -> None:
    """Note with each pilot how many jobs it was given."""
    given: dict[str, int] = {}
    for wish, catch in zip(wishes, catches, strict=True):
        if wish.holder.stamp is not None and catch.taken:
            given[wish.holder.stamp] = given.get(wish.holder.stamp, 0) + len(catch.taken)
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
