"""Counters of scope rules: the first count when a rule is opened, and the check against the counted rows.

A new rule is stored closed, so that claims that see it take nothing that it bounds. Claims that began before
it was committed do not see it: on PostgreSQL they are the transactions that have a lock on `attempts` or
`scopes` as claims take it (`read_claims`). A statement locks its tables before it takes its snapshot, and a
transaction keeps the locks to its end; so when these transactions have ended, every claim sees the rule. Then
the open attempts that it counts are marked with it (`attempts.counted_by`), some at a time, each together
with its counter: a process that is killed meanwhile leaves a smaller number and as few marks, and another
continues. An attempt that ends before it was marked is not counted, and one that ends later is returned.

For a throttle every attempt at the scope gets a reservation, also one that was taken away on its way: no
advertisement so far was counted for it, so none shows for certain that it contains the attempt. The next one
that was counted later does.

The check compares all counters with their rows, and mends those that differ.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    Engine,
    Row,
    Select,
    bindparam,
    case,
    exists,
    func,
    literal,
    or_,
    select,
    text,
    union_all,
    update,
)

from taskqueue.db import database, sql
from taskqueue.schema.tables import (
    ATTEMPT_AT,
    attempts,
    installation,
    jobs,
    reservations,
    scope_returns,
    scope_rules,
)
from taskqueue.schema.tables import scopes as scopes_table
from taskqueue.sites import reservations as site_reservations
from taskqueue.sites import scope_rules as rules
from taskqueue.sites import scopes
from taskqueue.sites.occupancy import ATTRIBUTE_COLUMNS, WAS_ON_ITS_WAY
from taskqueue.sites.scope_rules import OF_SITE, RuleKind, StoredRule

#: Attempts marked by one transaction: their pilots' reports wait for so many at most.
_AT_ONCE = 500
#: Milliseconds: whoever opens a rule claims for other places as well, and tries again.
_LOCK_WAIT = 50
#: Whether a rule counts jobs of a VO with a value of its attribute.
Counts = Callable[[StoredRule, str, str], bool]
#: Virtual transaction and server process of a running transaction.
RunningClaim = tuple[str, int]

CLAIMS = text("""
    SELECT DISTINCT virtualtransaction, pid FROM pg_locks
    WHERE locktype = 'relation' AND granted AND pid <> pg_backend_pid()
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (relation = CAST('attempts' AS regclass) AND mode = 'RowExclusiveLock'
            OR relation = CAST('scopes' AS regclass) AND mode = 'RowShareLock')
""")

_site, _ce, _queue = ATTEMPT_AT
#: Attempts that are open or may be reopened; as text, so that the planner finds the partial indexes.
_MAY_COUNT = text("(attempts.closed_at IS NULL OR attempts.closed_as = 'lost')")
#: For a throttle also those that may be on their way: the reservations of those that were given up end with
#: the next advertisement.
_MAY_BE_RESERVED = or_(_MAY_COUNT, WAS_ON_ITS_WAY)


def _select_countable(attribute: str, value: ColumnElement[str]) -> Select[*tuple[object, ...]]:
    return (
        select(attempts.c.lease, attempts.c.counted_by, jobs.c.vo, value.label("value"))
        .join(jobs, jobs.c.job_id == attempts.c.job_id)
        .where(
            _MAY_COUNT if attribute else _MAY_BE_RESERVED,
            or_(bindparam("vo") == "", jobs.c.vo == bindparam("vo")),
            # A value with other letters than ASCII may be equal by rules that the database does not have.
            or_(bindparam("value") == "", func.lower(value) == bindparam("value"), sql.is_not_ascii(value)),
        )
        .order_by(attempts.c.job_id)
    )


#: At all sites, by attribute of the rule; a throttle has none.
COUNTABLE_IN_GRID = {
    attribute: _select_countable(attribute, value)
    for attribute, value in {**ATTRIBUTE_COLUMNS, "": literal("")}.items()
}
#: At one site, CE or queue.
COUNTABLE = {
    attribute: everywhere.where(
        _site == bindparam("site"),
        or_(bindparam("ce") == "", _ce == bindparam("ce")),
        or_(bindparam("queue") == "", _queue == bindparam("queue")),
    )
    for attribute, everywhere in COUNTABLE_IN_GRID.items()
}
LOCK = (
    select(attempts.c.lease, attempts.c.counted_by, attempts.c.closed_at, attempts.c.job_id, attempts.c.epoch)
    .where(attempts.c.lease.in_(sql.IDS), _MAY_BE_RESERVED)
    .order_by(attempts.c.job_id, attempts.c.epoch)
    .with_for_update(key_share=True)
)
MARK = sql.BulkUpdate(attempts, key="lease", varying=["counted_by"])


def read_claims(conn: Connection) -> frozenset[RunningClaim]:
    """Transactions that may claim without having seen what was committed before this call."""
    if conn.dialect.name == "sqlite":
        return frozenset()  # one writer at a time: it sees all that was committed before it
    return frozenset((row.virtualtransaction, row.pid) for row in conn.execute(CLAIMS))


def open_uncounted(
    engine: Engine, closed: Collection[StoredRule], counts: Counts, *, until: float
) -> list[StoredRule]:
    """Open those of closed rules that have nothing to count, in one transaction; return the others.

    All claims must see the rules already. Throttles are returned, and rules whose scope is locked. After
    `until`, of the monotonic clock, no further rule is looked at: it is neither opened nor returned.
    """
    empty, counted = list[StoredRule](), list[StoredRule]()
    with database.reading(engine) as conn:
        for rule in closed:
            is_empty = rule.kind is not RuleKind.THROTTLE and not any(_list_countable(conn, rule, counts))
            (empty if is_empty else counted).append(rule)
            if time.monotonic() > until:
                break
    if not empty:
        return counted
    with database.writing(engine) as conn:
        free = scopes.lock_free(conn, {rule.scope for rule in empty})
        rules.open_rules(conn, [rule.rule_id for rule in empty if rule.scope in free])
    return [*counted, *(rule for rule in empty if rule.scope not in free)]


def open_rule(engine: Engine, rule: StoredRule, counts: Counts) -> Iterator[None]:
    """Count what a closed rule must count, and open it; all claims must see it already.

    A generator: it yields between two transactions, so that the caller may do other work in between.

    Raises:
        OperationalError: The scope stays locked; what was counted so far is kept.
    """
    with database.reading(engine) as conn:
        leases = list(_list_countable(conn, rule, counts))
    for start in range(0, len(leases), _AT_ONCE):
        if start:
            yield
        database.run_with_retry(partial(_mark, engine, rule, leases[start : start + _AT_ONCE]))
    with database.writing(engine) as conn:
        scopes.limit_wait(conn, milliseconds=_LOCK_WAIT)
        scopes.lock_scopes(conn, [rule.scope])
        if rule.kind is RuleKind.THROTTLE:
            rules.set_count(conn, rule.rule_id, site_reservations.recount(conn, rule.scope))
        rules.open_rules(conn, [rule.rule_id])


def _list_countable(conn: Connection, rule: StoredRule, counts: Counts) -> Iterator[str]:
    """Leases of the attempts that the rule must count and that are not marked with it."""
    site, ce, queue = (*rule.scope.split("/"), "", "")[:3]
    # What the statement leaves out is certain not to be counted; the rest is decided by `counts`.
    of_rule = {"vo": rule.vo.replace(OF_SITE, ""), "value": rule.value if rule.value.isascii() else ""}
    rows = (
        conn.execute(COUNTABLE_IN_GRID[rule.attribute], of_rule)
        if site == scopes.GRID
        else conn.execute(COUNTABLE[rule.attribute], {"site": site, "ce": ce, "queue": queue, **of_rule})
    )
    for row in rows:
        is_counted = rule.kind is RuleKind.THROTTLE or counts(rule, row.vo, row.value)
        if is_counted and not _is_marked(row, rule):
            yield row.lease


def _mark(engine: Engine, rule: StoredRule, leases: Sequence[str]) -> None:
    """Mark attempts with the rule and count the open ones, in one transaction."""
    with database.writing(engine) as conn:
        scopes.limit_wait(conn, milliseconds=_LOCK_WAIT)
        scopes.lock_scopes(conn, [rule.scope])
        rows = [row for row in conn.execute(LOCK, {"ids": leases}) if not _is_marked(row, rule)]
        marks = [
            rules.format_countings([*rules.parse_countings(row.counted_by), rule.counting]) for row in rows
        ]
        MARK.execute(conn, {"lease": [row.lease for row in rows], "counted_by": marks})
        if rule.kind is RuleKind.THROTTLE:
            reserved = ((rule.scope, (row.job_id, row.epoch)) for row in rows)
            site_reservations.create_reservations(conn, reserved)
        else:
            rules.add_count(conn, rule.rule_id, sum(row.closed_at is None for row in rows))


def _is_marked(row: Row[*tuple[object, ...]], rule: StoredRule) -> bool:
    return rule.counting in rules.parse_countings(row.counted_by)


ATTRIBUTES = select(scope_rules.c.attribute).where(scope_rules.c.kind == RuleKind.RUNNING.value).distinct()
NOTE_MENDED = update(installation).values(mended_counters=installation.c.mended_counters + 1)
READ_MENDED = select(installation.c.mended_counters)

_PENDING = (
    select(func.coalesce(func.sum(scope_returns.c.number), 0))
    .where(scope_returns.c.scope == scope_rules.c.scope, scope_returns.c.rule_id == scope_rules.c.rule_id)
    .scalar_subquery()
)
_RESERVED = (
    select(func.count())
    .where(reservations.c.scope == scope_rules.c.scope, reservations.c.seen.is_(False))
    .scalar_subquery()
)
_SITES = select(scopes_table.c.site).join(scope_rules, scope_rules.c.scope == scopes_table.c.scope)
_HAS_GRID_RULE = exists().where(scope_rules.c.scope == scopes.GRID)


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterDifference:
    """A counter that is not the number of its rows."""

    rule: StoredRule
    there: int  #: rows


@cache
def _build_comparison(attributes: tuple[str, ...]) -> CompoundSelect[*tuple[object, ...]]:
    """All open rules, and numbers of rows by site, CE, VO and value, in one statement and so one snapshot."""
    is_throttle = scope_rules.c.kind == RuleKind.THROTTLE.value
    every: Select[*tuple[object, ...]] = select(
        scope_rules.c.rule_id,
        scope_rules.c.scope.label("site"),
        scope_rules.c.kind.label("ce"),
        scope_rules.c.attribute,
        scope_rules.c.vo,
        scope_rules.c.definition.label("value"),
        case((is_throttle, scope_rules.c.n), else_=scope_rules.c.n + _PENDING).label("n"),
        case((is_throttle, _RESERVED), else_=0).label("there"),
    ).where(
        scope_rules.c.opened, scope_rules.c.kind != RuleKind.DELAY.value, scope_rules.c.format == rules.FORMAT
    )
    return union_all(every, *map(_select_rows, attributes))


def _select_rows(attribute: str) -> Select[*tuple[object, ...]]:
    value = ATTRIBUTE_COLUMNS[attribute]
    return (
        select(
            literal(0),
            _site,
            _ce,
            literal(attribute),
            jobs.c.vo,
            value,
            literal(0),
            func.count(),
        )
        .join(jobs, jobs.c.job_id == attempts.c.job_id)
        .where(attempts.c.closed_at.is_(None), or_(_HAS_GRID_RULE, _site.in_(_SITES)))
        .group_by(_site, _ce, jobs.c.vo, value)
    )


def list_differences(conn: Connection, counts: Counts) -> list[CounterDifference]:
    """Open rules whose counter differs from the rows of the same snapshot; nothing is locked."""
    attributes = tuple(sorted(conn.execute(ATTRIBUTES).scalars()))
    rows = conn.execute(_build_comparison(attributes)).all()
    stored = [
        StoredRule(
            scope=row.site,
            kind=RuleKind(row.ce),
            attribute=row.attribute,
            vo=row.vo,
            definition=row.value,
            rule_id=row.rule_id,
            n=row.n,
            opened=True,
        )
        for row in rows
        if row.rule_id
    ]
    reserved = {row.rule_id: row.there for row in rows if row.rule_id}
    found = []
    for rule in stored:
        site, ce = (*rule.scope.split("/"), "")[:2]
        there = reserved[rule.rule_id] + sum(
            row.there
            for row in rows
            if not row.rule_id
            and row.attribute == rule.attribute
            and site in (row.site, scopes.GRID)
            and ce in ("", row.ce)
            and counts(rule, row.vo, row.value)
        )
        if there != rule.n:
            found.append(CounterDifference(rule=rule, there=there))
    return found


def mend(conn: Connection, rule_id: int) -> None:
    """Set the counter of a rule right, in the caller's transaction.

    Reservations are counted again under the lock of their scope. A limit is replaced by a closed one, which
    is counted before it is opened as any new one is.
    """
    for rule in _find_rule(conn, rule_id):
        scopes.lock_scopes(conn, [rule.scope])
        if rule.kind is RuleKind.THROTTLE:
            rules.set_count(conn, rule_id, site_reservations.recount(conn, rule.scope))
        else:
            rules.renew_rule(conn, rule)
        conn.execute(NOTE_MENDED)


def count_mended(conn: Connection) -> int:
    """How many counters were ever mended."""
    mended: int = conn.execute(READ_MENDED).scalar_one()
    return mended


def _find_rule(conn: Connection, rule_id: int) -> Iterator[StoredRule]:
    return (rule for rule in rules.list_rules(conn) if rule.rule_id == rule_id)
