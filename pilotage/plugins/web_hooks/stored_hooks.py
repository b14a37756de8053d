"""Web hooks of VOs: addresses that are notified of events, the events themselves, and their deliveries.

The deliveries of one hook are sent in order, each at least once; a repetition has the same id.
Everything is bounded: hooks of a VO, deliveries that wait, jobs in one of them, and how long one is tried.
"""

import json
from base64 import b64encode
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from secrets import token_bytes
from typing import Any, Final

from sqlalchemy import (
    Connection,
    RowMapping,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from cs_config.options import bounds
from requirements.errors import InvalidRequest, NotFound, Problem
from requirements.states import FINAL
from taskqueue.accounting.log_reader import LogSpan
from taskqueue.db import clock, sql
from taskqueue.jobs import log
from taskqueue.schema.tables import hook_conditions as conditions
from taskqueue.schema.tables import hook_deliveries as deliveries
from taskqueue.schema.tables import job_log, jobs
from taskqueue.schema.tables import web_hooks as table

#: Name of the reader of the job log.
READER_NAME: Final = "web hooks"


class WebHookNotFound(NotFound):
    """No web hook with this number."""

    code = "hook_not_found"
    noun = "web hook"


class Event(StrEnum):
    """Kind of event that a web hook reports."""

    JOB_ENDED = "job.ended"  #: jobs came to their end
    POOL_WITHOUT_QUEUE = "pool.without_queue"  #: jobs wait, and no queue is eligible
    SITE_THROTTLED = "site.throttled"  #: a throttle admits no job to a site, CE or queue
    TEST = "test"  #: somebody tries the hook; sent to every one


#: Events that a hook can be made for.
EVENTS: Final = tuple(event for event in Event if event is not Event.TEST)

_EVENTS: Final = frozenset(map(str, Event))

#: Name of the list of entries in a message, and of what a state is of.
_LISTS: Final = {
    Event.JOB_ENDED: "jobs",
    Event.POOL_WITHOUT_QUEUE: "pools",
    Event.SITE_THROTTLED: "throttles",
}
_SUBJECTS: Final = {Event.POOL_WITHOUT_QUEUE: "pool_id", Event.SITE_THROTTLED: "scope"}

#: Prefix and bytes of a secret. Source: Standard Webhooks (https://www.standardwebhooks.com).
_PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = 32
#: Seconds until the second try; each further one waits twice as long, up to the longest.
_FIRST_RETRY: Final = 30
_LONGEST_RETRY: Final = 3600
#: Age of a delivery at which a failed try is its last one.
GIVEN_UP: Final = timedelta(days=1)
#: How long a state has to last until it is reported.
SETTLED: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebHook:
    """An address that is notified of events of a VO."""

    hook_id: int
    vo: str
    name: str
    url: str
    secret: str  #: base64 behind a prefix
    events: tuple[Event, ...]  #: sorted
    owner: str  #: empty: jobs of all owners
    job_group: str  #: empty: jobs of all groups
    created_by: str
    created_at: datetime
    failures: int  #: tries since the last that succeeded
    next_try_at: datetime | None
    dropped: int  #: deliveries for which there was no place
    waiting: int  #: deliveries to be sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One message of a hook."""

    delivery_id: int
    event: str
    body: str  #: empty once it has ended
    created_at: datetime
    tries: int
    answer: str  #: of the last try: an HTTP status, or what went wrong
    is_delivered: bool
    ended_at: datetime | None  #: None: to be sent

    @property
    def state(self) -> str:
        """The state in a word."""
        if self.ended_at is None:
            return "waiting"
        return "delivered" if self.is_delivered else "given up"


_waiting = (
    select(func.count())
    .where(deliveries.c.hook_id == table.c.hook_id, deliveries.c.ended_at.is_(None))
    .scalar_subquery()
)
_ALL = select(table, _waiting.label("waiting")).order_by(table.c.vo, table.c.hook_id)
_ADD = sql.insert_or_skip(table)
_OF_NAME = _ALL.where(table.c.vo == bindparam("the_vo"), table.c.name == bindparam("the_name"))
_COUNT = select(func.count()).where(table.c.vo == bindparam("the_vo"))
_GET = _ALL.where(table.c.hook_id == bindparam("the_hook"))
_DELETE = delete(table).where(table.c.hook_id == bindparam("the_hook"))


def create(
    conn: Connection,
    *,
    vo: str,
    name: str,
    url: str,
    events: Iterable[Event],
    owner: str = "",
    job_group: str = "",
    created_by: str,
    most: int,
    now: datetime,
) -> WebHook:
    """Store a new hook with a secret of its own.

    `InvalidRequest` if the VO has one of this name, or `most`; two requests may together exceed that by one.
    """
    if conn.execute(_COUNT, {"the_vo": vo}).scalar_one() >= most:
        message = f"{vo} may have {most} web hooks (Operations/{vo}/Limits/WebHooks)"
        raise InvalidRequest([Problem(path="vo", message=message)])
    secret = _PREFIX + b64encode(token_bytes(_SECRET_BYTES)).decode()
    row = {"vo": vo, "name": name, "url": url, "owner": owner, "job_group": job_group}
    about = {"events": json.dumps(sorted(set(events))), "created_by": created_by, "created_at": now}
    conn.execute(_ADD, {**row, **about, "secret": secret})
    stored = conn.execute(_OF_NAME, {"the_vo": vo, "the_name": name}).mappings().one()
    if stored["secret"] != secret:
        raise InvalidRequest([Problem(path="name", message=f"{vo} has a web hook {name!r} already")])
    return _read(stored)


def get(conn: Connection, hook_id: int) -> WebHook:
    """One hook; `WebHookNotFound`."""
    row = conn.execute(_GET, {"the_hook": hook_id}).mappings().one_or_none()
    if row is None:
        raise WebHookNotFound(hook_id)
    return _read(row)


def list_hooks(conn: Connection, vos: frozenset[str] | None = None) -> list[WebHook]:
    """The hooks of some VOs, or all."""
    statement = _ALL if vos is None else _ALL.where(table.c.vo.in_(sorted(vos)))
    return [_read(row) for row in conn.execute(statement).mappings()]


def remove(conn: Connection, hook_id: int) -> None:
    """Delete a hook with its deliveries."""
    conn.execute(_DELETE, {"the_hook": hook_id})


def _read(row: RowMapping) -> WebHook:
    # A later release, which runs beside this one during an update, may know more events.
    events = tuple(Event(each) for each in json.loads(row["events"]) if each in _EVENTS)
    return WebHook(**{**row, "events": events})


_DELIVERIES = (
    select(*(each for each in deliveries.c if each.name != "hook_id"))
    .where(deliveries.c.hook_id == bindparam("the_hook"))
    .limit(bindparam("most"))
)
_LATEST = _DELIVERIES.order_by(deliveries.c.delivery_id.desc())
_NEXT = _DELIVERIES.where(deliveries.c.ended_at.is_(None)).order_by(deliveries.c.delivery_id)
_DROP = (
    update(table)
    .where(table.c.hook_id == bindparam("the_hook"))
    .values(dropped=table.c.dropped + bindparam("more"))
)


def list_deliveries(conn: Connection, hook_id: int, *, most: int) -> list[Delivery]:
    """The latest deliveries of a hook, newest first."""
    rows = conn.execute(_LATEST, {"the_hook": hook_id, "most": most}).mappings()
    return [Delivery(**row) for row in rows]


def add_deliveries(
    conn: Connection, hook: WebHook, event: Event, entries: Sequence[Mapping[str, object]], *, now: datetime
) -> None:
    """Queue messages with some entries each; what a hook has no room for is dropped, and counted."""
    _add(conn, hook, event, [{_LISTS[event]: some} for some in _split(entries)], now=now)


def _split(entries: Sequence[Mapping[str, object]]) -> Iterator[list[Mapping[str, object]]]:
    """Entries in groups of bounded number and size."""
    group, size = list[Mapping[str, object]](), 0
    for entry in entries:
        more = len(_to_json(entry).encode())
        if group and (len(group) >= bounds.HOOK_JOBS or size + more > bounds.HOOK_BYTES):
            yield group
            group, size = [], 0
        group.append(entry)
        size += more
    if group:
        yield group


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def add_test(conn: Connection, hook: WebHook, *, now: datetime) -> None:
    """Add a message that tests a hook; it is sent as soon as possible."""
    _add(conn, hook, Event.TEST, [{}], now=now)
    conn.execute(_NOTE_TRY, {"the_hook": hook.hook_id, "failed": hook.failures, "due": None})


def _add(
    conn: Connection, hook: WebHook, event: Event, data: Sequence[Mapping[str, object]], *, now: datetime
) -> None:
    room = max(0, bounds.HOOK_DELIVERIES - hook.waiting)
    about = {"vo": hook.vo, "hook": hook.name}
    rows = [
        {
            "hook_id": hook.hook_id,
            "event": event,
            "body": _to_json({"type": event, "timestamp": now.isoformat(), "data": {**about, **each}}),
            "created_at": now,
        }
        for each in data[:room]
    ]
    if rows:
        conn.execute(insert(deliveries), rows)
    if dropped := len(data) - len(rows):
        conn.execute(_DROP, {"the_hook": hook.hook_id, "more": dropped})


def list_due(conn: Connection, *, most: int, now: datetime) -> list[tuple[WebHook, list[Delivery]]]:
    """The hooks that have something to send now, each with at most so many deliveries, oldest first."""
    # No try is put off for longer: what is due later than that was stored before the clock was set back.
    latest = now + timedelta(seconds=_LONGEST_RETRY) + clock.MOST_OFFSET
    is_due = or_(table.c.next_try_at.is_(None), table.c.next_try_at <= now, table.c.next_try_at > latest)
    rows = conn.execute(_ALL.where(is_due)).mappings().all()
    found = []
    for hook in (_read(row) for row in rows if row["waiting"]):
        pending = conn.execute(_NEXT, {"the_hook": hook.hook_id, "most": most}).mappings()
        found.append((hook, [Delivery(**row) for row in pending]))
    return found


_ended = bindparam("ended", type_=deliveries.c.ended_at.type)
_RECORD = (
    update(deliveries)
    .where(deliveries.c.delivery_id == bindparam("the_delivery"))
    .values(
        tries=deliveries.c.tries + 1,
        answer=bindparam("said"),
        is_delivered=bindparam("succeeded"),
        ended_at=_ended,
        body=case(
            (bindparam("ended", type_=deliveries.c.ended_at.type).is_(None), deliveries.c.body), else_=""
        ),
    )
)
_NOTE_TRY = (
    update(table)
    .where(table.c.hook_id == bindparam("the_hook"))
    .values(failures=bindparam("failed"), next_try_at=bindparam("due"))
)


def record_try(
    conn: Connection, hook: WebHook, delivery: Delivery, *, answer: str, is_delivered: bool, now: datetime
) -> None:
    """Store the result of a try; a failed one is repeated later, twice as late each time, for a day."""
    is_over = is_delivered or now - delivery.created_at >= GIVEN_UP
    conn.execute(
        _RECORD,
        {
            "the_delivery": delivery.delivery_id,
            "said": answer,
            "succeeded": is_delivered,
            "ended": now if is_over else None,
        },
    )
    # The next one is tried at once also after one that is given up.
    failures = 0 if is_over else hook.failures + 1
    delay = min(_FIRST_RETRY * 2 ** min(failures - 1, 20), _LONGEST_RETRY) if failures else 0
    due = now + timedelta(seconds=delay) if failures else None
    conn.execute(_NOTE_TRY, {"the_hook": hook.hook_id, "failed": failures, "due": due})


#: Jobs that came to their end in a span of the log. A final job that is deleted did not end again.
ENDED = (
    select(
        *(job_log.c.job_id, job_log.c.at, job_log.c.to_status.label("status"), job_log.c.minor_status),
        *(jobs.c.vo, jobs.c.owner, jobs.c.owner_group, jobs.c.job_name, jobs.c.job_group, jobs.c.site),
    )
    .join(jobs, jobs.c.job_id == job_log.c.job_id)
    .where(
        log.is_within,
        job_log.c.to_status.in_(sorted(FINAL)),
        or_(job_log.c.from_status.is_(None), job_log.c.from_status.not_in(sorted(FINAL))),
        jobs.c.vo.in_(bindparam("vos", expanding=True)),
    )
    .order_by(job_log.c.log_id)
)


def is_end_of_jobs_wanted(conn: Connection) -> bool:
    """Whether any hook reports jobs that end."""
    return any(Event.JOB_ENDED in each.events for each in list_hooks(conn))


def add_ended_jobs(conn: Connection, span: LogSpan, *, now: datetime) -> None:
    """Add deliveries about the jobs that ended in a span of the log, in the transaction that reads it."""
    hooks = [each for each in list_hooks(conn) if Event.JOB_ENDED in each.events]
    if not hooks:
        return
    of_vos: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    vos = sorted({hook.vo for hook in hooks})
    for row in conn.execute(ENDED, {**span.bounds, "vos": vos}).mappings():
        of_vos[row["vo"]].append(dict(row))
    for hook in hooks:
        met = [
            {**row, "at": row["at"].isoformat()}
            for row in of_vos[hook.vo]
            if row["at"] >= hook.created_at
            and hook.owner in ("", row["owner"])
            and hook.job_group in ("", row["job_group"])
        ]
        add_deliveries(conn, hook, Event.JOB_ENDED, met, now=now)


_KNOWN = select(conditions.c.subject, conditions.c.since, conditions.c.reported_at).where(
    conditions.c.vo == bindparam("the_vo"), conditions.c.event == bindparam("the_event")
)
_IS_SUBJECT = and_(
    conditions.c.vo == bindparam("the_vo"),
    conditions.c.event == bindparam("the_event"),
    sql.is_listed(conditions.c.subject),
)
_END = delete(conditions).where(_IS_SUBJECT)
_STORED = select(conditions.c.vo, conditions.c.event).distinct()
_FORGET = delete(conditions).where(
    conditions.c.vo == bindparam("the_vo"), conditions.c.event == bindparam("the_event")
)
_REPORT = update(conditions).where(_IS_SUBJECT).values(reported_at=bindparam("now"))


def add_conditions(
    conn: Connection,
    hooks: Sequence[WebHook],
    event: Event,
    holding: Mapping[str, str],
    *,
    now: datetime,
) -> None:
    """Add deliveries about states of one VO: when one has lasted for `SETTLED`, and when it ends thereafter.

    `holding` has the reason for each subject whose state holds now; `hooks` are all of the VO that report it.
    A hook that was made after a state was reported does not report its end either.
    """
    if not hooks:
        return
    vo = hooks[0].vo
    key = {"the_vo": vo, "the_event": event}
    known = {row.subject: row for row in conn.execute(_KNOWN, key)}
    new = [{"vo": vo, "event": event, "subject": each, "since": now} for each in holding.keys() - known]
    if new:
        conn.execute(insert(conditions), new)
    lasting = [
        subject
        for subject, row in known.items()
        if subject in holding and row.reported_at is None and now - row.since >= SETTLED
    ]
    over = [subject for subject in known if subject not in holding]
    for statement, subjects, values in ((_REPORT, lasting, {"now": now}), (_END, over, {})):
        for some in sql.split_batches(subjects):
            conn.execute(statement, {**key, **values, "ids": some})
    entries = [
        (
            {_SUBJECTS[event]: each, "state": state, "since": known[each].since.isoformat(), **why},
            known[each].reported_at or now,
        )
        for each, state, why in (
            *((each, "began", {"reason": holding[each]}) for each in lasting),
            *((each, "ended", {}) for each in over if known[each].reported_at),
        )
    ]
    for hook in hooks:
        own = [entry for entry, reported_at in entries if reported_at >= hook.created_at]
        add_deliveries(conn, hook, event, own, now=now)


def forget_conditions(conn: Connection, wanted: Collection[tuple[str, Event]]) -> None:
    """Delete the states of which nobody wants to be notified any more, by VO and event."""
    for vo, event in conn.execute(_STORED).all():
        if (vo, event) not in wanted:
            conn.execute(_FORGET, {"the_vo": vo, "the_event": event})
