"""Wait for jobs, and follow their changes, by events or where there are none by polling."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from pilotage.client.api import ApiError, Json, ServiceAway, ServiceClient, is_passing
from pilotage.client.errors import CommandRefused
from requirements.errors import format_ids
from requirements.states import FINAL

Events = Iterator[tuple[str, Json | None]]
#: Seconds between two requests for statuses where there are no events: the first, growing to the longest.
_PAUSES = (0.5, 10.0)
#: Seconds of one stream of events.
_STREAM = 300.0
#: Ids that fit into the address of a stream; beyond, the stream has all jobs of the token's bearer.
_MOST_NAMED = 200
#: Jobs that `wait` takes from a filter at most.
_MOST_JOBS = 100_000
#: Jobs in one request.
_PAGE = 1000


def find_ids(client: ServiceClient, filters: Mapping[str, str]) -> list[int]:
    """The ids of all jobs that pass the filters; `CommandRefused` if there are very many."""
    found: list[int] = []
    after = None
    while len(found) <= _MOST_JOBS:
        page = client.jobs(filters, limit=_PAGE, after=after)
        found += (job["job_id"] for job in page["jobs"])
        if (after := page["next"]) is None:
            return found
    raise CommandRefused(f"more than {_MOST_JOBS:,} jobs pass the filters; narrow them, or name ids")


def fetch_jobs(client: ServiceClient, ids: Sequence[int]) -> Iterator[Json]:
    """The existing jobs with these ids."""
    for start in range(0, len(ids), _PAGE):
        named = ",".join(map(str, ids[start : start + _PAGE]))
        yield from client.jobs({"id": named}, limit=_PAGE)["jobs"]


def follow_statuses(
    client: ServiceClient,
    ids: Sequence[int],
    *,
    timeout: float | None = None,
    warn: Callable[[ServiceAway | ApiError], object] = lambda _: None,
) -> Iterator[Mapping[int, str]]:
    """Yield the statuses of jobs again and again, until all have ended or `timeout` seconds are over.

    They come by events; where there are none, such as behind a proxy that holds them back, by polling. A
    service that was reached once and goes away is waited for; `warn` gets the first error of each such time.
    """
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    statuses: dict[int, str] = {}
    ended: set[int] = set()  # as listed: jobs may have gone on since an event with a final status
    pause, has_events, is_away = _PAUSES[0], True, False
    while left := [job_id for job_id in ids if job_id not in ended]:
        is_check = any(statuses.get(job_id) in FINAL for job_id in left)
        can_stream = has_events and not is_check
        events = _open_events(client, left, deadline - time.monotonic()) if can_stream else None
        try:
            statuses |= {job["job_id"]: job["status"] for job in fetch_jobs(client, left)}
            ended |= {job_id for job_id in left if statuses.get(job_id) in FINAL}
            has_events, is_away = is_check or events is not None, False
        except (ServiceAway, ApiError) as error:
            if not statuses or not is_passing(error):
                raise
            if not is_away:
                warn(error)
            is_away = True
        if unknown := [job_id for job_id in left if job_id not in statuses]:
            raise CommandRefused(f"no job {format_ids(unknown)}")
        yield statuses
        for _ in _update(statuses, events or (), ended):
            if _is_over(statuses, deadline):
                break
            yield statuses
        if not is_away and any(status in FINAL for job_id, status in statuses.items() if job_id not in ended):
            continue  # to see these in the list
        yield statuses
        if ended.issuperset(ids) or time.monotonic() >= deadline:
            return
        time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
        pause = _PAUSES[0] if has_events else min(1.5 * pause, _PAUSES[1])


def _update(statuses: dict[int, str], events: Iterable[tuple[str, Json | None]], ended: set[int]) -> Events:
    """Apply each event to the statuses of jobs that are there and not among the ended ones, and yield it."""
    for cursor, change in events:
        if change is not None and (job_id := change["job_id"]) in statuses and job_id not in ended:
            statuses[job_id] = change["to"]
        yield cursor, change


def follow_changes(client: ServiceClient, filters: Mapping[str, str]) -> Iterator[Json]:
    """Changes of jobs from this call on, endlessly, each once: by events, or where there are none by polling.

    A service that goes away is waited for. `ApiError` if the database lost commits meanwhile (410).
    """
    return (change for change in follow_or_pause(client, filters) if change is not None)


def follow_or_pause(client: ServiceClient, filters: Mapping[str, str]) -> Iterator[Json | None]:
    """The same as `follow_changes`, with a None every few seconds in which nothing changes."""
    return _follow_from(client, filters, client.changes(filters)["next"])


def _follow_from(client: ServiceClient, filters: Mapping[str, str], cursor: str) -> Iterator[Json | None]:
    while True:
        try:
            for behind, change in client.events({**filters, "after": cursor}, seconds=_STREAM):
                cursor = behind
                yield change
        except (ServiceAway, ApiError) as error:
            if not is_passing(error):
                raise
            try:
                page = client.changes(filters, after=cursor)
            except (ServiceAway, ApiError) as again:
                if not is_passing(again):
                    raise
            else:
                yield from page["changes"]
                cursor = page["next"]
        time.sleep(_PAUSES[0])


def _is_over(statuses: Mapping[int, str], deadline: float) -> bool:
    return time.monotonic() >= deadline or all(status in FINAL for status in statuses.values())


def _open_events(client: ServiceClient, ids: Sequence[int], seconds: float) -> Events | None:
    """Events from now on, of these jobs among others; None: they cannot be had."""
    named = {"ids": ",".join(map(str, ids))} if len(ids) <= _MOST_NAMED else {}
    events = client.events(named, seconds=max(1.0, min(seconds, _STREAM)))
    try:
        next(events)
    except (ServiceAway, ApiError, StopIteration):
        return None
    return _until_broken(events)


def _until_broken(events: Events) -> Events:
    with suppress(ServiceAway):
        yield from events
