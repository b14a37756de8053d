"""Opening of new rules: what they must count is counted once, and no claim is missed.

A new rule is stored closed, so that claims that see it take nothing that it bounds. Claims that began before
it was committed do not see it: on PostgreSQL they are the transactions that have a lock on `attempts` or
`scopes` as claims take it (`read_claims`). A statement locks its tables before it takes its snapshot, and a
transaction keeps the locks to its end; so when these transactions have ended, every claim sees the rule. Then
the open attempts that it counts are marked with it (`attempts.counted_by`), some at a time, each together
with its counter: a process that is killed meanwhile leaves a smaller number and as few marks, and another
continues. An attempt that ends before it was marked is not counted, and one that ends later is returned.

For a throttle every attempt at the scope gets a reservation: no advertisement so far was counted for it, so
none shows for certain that it contains the attempt. The next one that was counted later does.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    Select,
    bindparam,
    func,
    literal,
    or_,
    select,
    text,
)

from taskqueue.db import database, sql
from taskqueue.schema.tables import ATTEMPT_AT, attempts, jobs
from taskqueue.sites import reservations, scope_rules, scopes
from taskqueue.sites.occupancy import ATTRIBUTE_COLUMNS
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
#: Attempts that are open, or may be reopened; as text, so that the planner finds the partial indexes.
_MAY_COUNT = text("(attempts.closed_at IS NULL OR attempts.closed_as = 'lost')")


def _select_countable(value: ColumnElement[str]) -> Select[*tuple[object, ...]]:
    return (
        select(attempts.c.lease, attempts.c.counted_by, jobs.c.vo, value.label("value"))
        .join(jobs, jobs.c.job_id == attempts.c.job_id)
        .where(
            _MAY_COUNT,
            or_(bindparam("vo") == "", jobs.c.vo == bindparam("vo")),
            # A value with other letters than ASCII may be equal by rules that the database does not have.
            or_(bindparam("value") == "", func.lower(value) == bindparam("value"), sql.is_not_ascii(value)),
        )
        .order_by(attempts.c.job_id)
    )


#: At all sites, by attribute of the rule; a throttle has none.
COUNTABLE_IN_GRID = {
    attribute: _select_countable(value) for attribute, value in {**ATTRIBUTE_COLUMNS, "": literal("")}.items()
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
    .where(attempts.c.lease.in_(sql.IDS), _MAY_COUNT)
    .order_by(attempts.c.job_id, attempts.c.epoch)
    .with_for_update(key_share=True)
)
MARK = sql.BulkUpdate(attempts, key="lease", varying=["counted_by"])


def read_claims(conn: Connection) -> frozenset[RunningClaim]:
    """Transactions that may claim without having seen what was committed before this call."""
    if conn.dialect.name == "sqlite":
        return frozenset()  # one writer at a time: it sees all that was committed before it
    return frozenset((row.virtualtransaction, row.pid) for row in conn.execute(CLAIMS))


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
            scope_rules.set_count(conn, rule.rule_id, reservations.recount(conn, rule.scope))
        scope_rules.open_rule(conn, rule.rule_id)


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
            scope_rules.format_countings([*scope_rules.parse_countings(row.counted_by), rule.counting])
            for row in rows
        ]
        MARK.execute(conn, {"lease": [row.lease for row in rows], "counted_by": marks})
        if rule.kind is RuleKind.THROTTLE:
            reserved = ((rule.scope, (row.job_id, row.epoch)) for row in rows)
            reservations.create_reservations(conn, reserved)
        else:
            scope_rules.add_count(conn, rule.rule_id, sum(row.closed_at is None for row in rows))


def _is_marked(row: Row[*tuple[object, ...]], rule: StoredRule) -> bool:
    return rule.counting in scope_rules.parse_countings(row.counted_by)
