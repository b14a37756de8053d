"""Counters of scope rules: comparison with the rows that they count, which also counts new rules.

A new rule is stored uncounted, so that claims that see it take nothing that it bounds. Transactions that
began before it was committed do not see it: on PostgreSQL they are those that have a lock on `attempts` or
`scopes` as claims and reports take it (`read_unaware`). A statement locks its tables before it takes its
snapshot, and a transaction keeps the locks to its end; so when these transactions have ended, every claim
applies the rule, and every end of an attempt is returned to it, whatever the attempt's claim has read (see
the triggers of `attempts`). Then it is counted by one statement, under the lock of its scope.

For a throttle every attempt at the scope gets a reservation, also one that was taken away on its way: no
advertisement so far was counted for it, so none shows for certain that it contains the attempt. The next one
that was counted later does.

The check compares all counters with their rows; those that differ are counted again in the same way.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    Row,
    Select,
    case,
    exists,
    func,
    insert,
    literal,
    null,
    or_,
    select,
    text,
    true,
    union_all,
    update,
)

from taskqueue.db import sql
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
from taskqueue.schema.types import folded_name
from taskqueue.sites import reservations as site_reservations
from taskqueue.sites import scope_rules as rules
from taskqueue.sites import scopes
from taskqueue.sites.occupancy import ATTRIBUTE_COLUMNS, CORES, WAS_ON_ITS_WAY, JobsAndCores
from taskqueue.sites.scope_rules import RuleKind, StoredRule

#: Whether a rule counts jobs of a VO with a value of its attribute.
Counts = Callable[[StoredRule, str, str], bool]
#: Virtual transaction and server process of a running transaction.
UnawareTransaction = tuple[str, int]

UNAWARE = text("""
    SELECT DISTINCT virtualtransaction, pid FROM pg_locks
    WHERE locktype = 'relation' AND granted AND pid <> pg_backend_pid()
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (relation = CAST('attempts' AS regclass) AND mode = 'RowExclusiveLock'
            OR relation = CAST('scopes' AS regclass) AND mode = 'RowShareLock')
""")


def read_unaware(conn: Connection) -> frozenset[UnawareTransaction]:
    """Transactions that may claim, or end an attempt, and not see what was committed before this call."""
    if conn.dialect.name == "sqlite":
        return frozenset()  # one writer at a time: it sees all that was committed before it
    return frozenset((row.virtualtransaction, row.pid) for row in conn.execute(UNAWARE))


_site, _ce, _queue = ATTEMPT_AT
#: Attempts that are open or may be reopened; as text, so that the planner finds the partial indexes.
_MAY_COUNT = text("(attempts.closed_at IS NULL OR attempts.closed_as = 'lost')")
LOCK = (
    select(attempts.c.lease, attempts.c.counted_by)
    .where(sql.is_listed(attempts.c.lease), _MAY_COUNT)
    .order_by(attempts.c.job_id, attempts.c.epoch)
    .with_for_update(key_share=True)
)
MARK = sql.bulk_update(attempts, "counted_by", key="lease")
_ATTRIBUTES = select(scope_rules.c.attribute).where(scope_rules.c.kind == RuleKind.RUNNING.value).distinct()
COUNTED = select(func.coalesce(func.sum(scope_rules.c.n), 0)).where(
    scope_rules.c.kind == RuleKind.RUNNING.value
)
_AT_SCOPES = sql.is_listed(scope_rules.c.scope)
_PENDING_JOBS, _PENDING_CORES = (
    select(func.coalesce(func.sum(column), 0))
    .where(scope_returns.c.scope == scope_rules.c.scope, scope_returns.c.rule_id == scope_rules.c.rule_id)
    .scalar_subquery()
    for column in (scope_returns.c.number, scope_returns.c.cores)
)
_RESERVED = (
    select(func.count())
    .where(reservations.c.scope == scope_rules.c.scope, reservations.c.seen.is_(False))
    .scalar_subquery()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterDifference:
    """Counters that are not those of its rows."""

    rule: StoredRule  #: `n` and `cores` with what was returned
    pending: JobsAndCores  #: what was returned and not applied yet
    there: JobsAndCores  #: rows, and their processors; without these for a throttle


@cache
def _build_comparison(attributes: tuple[str, ...], *, at_scopes: bool) -> CompoundSelect[Any]:
    """Rules, and numbers of rows by place, VO and value, in one statement and so one snapshot.

    `at_scopes`: only the rules of the scopes of the bind `ids`.
    """
    chosen = _AT_SCOPES if at_scopes else true()
    is_throttle = scope_rules.c.kind == RuleKind.THROTTLE.value
    every: Select[Any] = select(
        scope_rules,
        case((is_throttle, 0), else_=_PENDING_JOBS).label("pending_jobs"),
        case((is_throttle, 0), else_=_PENDING_CORES).label("pending_cores"),
        case((is_throttle, _RESERVED), else_=0).label("jobs_there"),
        literal(0).label("cores_there"),
        *(null().label(name) for name in ("at_site", "at_ce", "job_vo", "job_value")),
    ).where(chosen, scope_rules.c.kind != RuleKind.DELAY.value, scope_rules.c.format.in_(rules.FORMATS))
    return union_all(every, *(_select_rows(each, chosen) for each in attributes))


def _select_rows(attribute: str, chosen: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    value = ATTRIBUTE_COLUMNS[attribute]
    has_grid_rule = exists().where(scope_rules.c.scope == scopes.GRID, chosen)
    its_sites = (
        select(scopes_table.c.site)
        .join(scope_rules, scope_rules.c.scope == scopes_table.c.scope)
        .where(chosen)
    )
    named = select(scope_rules.c.value).where(scope_rules.c.attribute == attribute, chosen)
    # A value with other letters than ASCII may be equal by rules that the database does not have.
    may_count = or_(folded_name(value).in_(named), sql.is_not_ascii(value))
    of_rule = (literal(attribute) if each.name == "attribute" else null() for each in scope_rules.c)
    return (
        select(*of_rule, null(), null(), func.count(), CORES, _site, _ce, jobs.c.vo, value)
        .join(jobs, jobs.c.job_id == attempts.c.job_id)
        .where(attempts.c.closed_at.is_(None), or_(has_grid_rule, _site.in_(its_sites)), may_count)
        .group_by(_site, _ce, jobs.c.vo, value)
    )


def _compare(
    conn: Connection, counts: Counts, names: Collection[str] | None = None
) -> Iterator[CounterDifference]:
    """Each rule that counts (of scopes, by folded names), and its rows in the same snapshot."""
    sql.join_row_by_row(conn)
    attributes = tuple(sorted(conn.execute(_ATTRIBUTES).scalars()))
    statement = _build_comparison(attributes, at_scopes=names is not None)
    rows = conn.execute(statement, {} if names is None else {"ids": sorted(names)}).all()
    groups = [row for row in rows if row.rule_id is None]
    for row in rows:
        if row.rule_id is not None:
            pending = JobsAndCores(row.pending_jobs, row.pending_cores)
            rule = rules.build_rule(row, more=pending)
            counted = (each for each in groups if _is_counted(each, rule, counts))
            there = sum(map(_read_there, counted), _read_there(row))
            yield CounterDifference(rule=rule, pending=pending, there=there)


def _read_there(row: Row[Any]) -> JobsAndCores:
    return JobsAndCores(row.jobs_there, row.cores_there)


def _is_counted(group: Row[Any], rule: StoredRule, counts: Counts) -> bool:
    site, ce = (*rule.scope.split("/"), "")[:2]
    return (
        group.attribute == rule.attribute
        and site in (group.at_site, scopes.GRID)
        and ce in ("", group.at_ce)
        and counts(rule, group.job_vo, group.job_value)
    )


def count_compared(conn: Connection) -> int:
    """How many attempts all rules count: so many rows a comparison reads at least."""
    return int(conn.execute(COUNTED).scalar_one())


def list_differences(conn: Connection, counts: Counts) -> list[CounterDifference]:
    """Rules in force whose counters differ from the rows of the same snapshot; nothing is locked."""
    return [each for each in _compare(conn, counts) if each.rule.opened and not _agrees(each)]


def _agrees(compared: CounterDifference) -> bool:
    rule, there = compared.rule, compared.there
    return rule.n == there.jobs and rule.cores in (None, there.cores)


def count_rules(conn: Connection, new: Collection[StoredRule], counts: Counts) -> None:
    """Count rules, and put them in force; under the locks of their scopes.

    New ones must be seen by all transactions at work. `n` and the returns of the snapshot make up its rows;
    the next claim applies all returns, also those of attempts that ended since.
    """
    names, ids = {rule.scope for rule in new}, {rule.rule_id for rule in new}
    for rule in new:
        if not rule.opened and rule.kind is RuleKind.THROTTLE:
            _reserve(conn, rule.scope)
        elif not rule.opened:
            _mark(conn, rule, counts)
    found = {each.rule.rule_id: each for each in _compare(conn, counts, names) if each.rule.rule_id in ids}
    counted = {
        rule_id: JobsAndCores(site_reservations.recount(conn, each.rule.scope))
        if each.rule.kind is RuleKind.THROTTLE
        else each.there - each.pending
        for rule_id, each in found.items()
    }
    rules.set_counts(conn, counted)


def _at_place(scope: str) -> list[ColumnElement[bool]]:
    """Conditions on attempts at a folded scope."""
    parts = () if scope == scopes.GRID else scope.split("/")
    return [column == part for column, part in zip(ATTEMPT_AT, parts, strict=False)]


def _reserve(conn: Connection, scope: str) -> None:
    """Reserve what a throttle that is new counts."""
    key = reservations.c.job_id == attempts.c.job_id, reservations.c.epoch == attempts.c.epoch
    unreserved = ~exists().where(reservations.c.scope == scope, *key)
    found = select(literal(scope), attempts.c.job_id, attempts.c.epoch).where(
        or_(_MAY_COUNT, WAS_ON_ITS_WAY), *_at_place(scope), unreserved
    )
    conn.execute(insert(reservations).from_select(["scope", "job_id", "epoch"], found))


def _mark(conn: Connection, rule: StoredRule, counts: Counts) -> None:
    """Mark the attempts with a value beyond ASCII that a rule counts: the triggers cannot compare it."""
    value = ATTRIBUTE_COLUMNS[rule.attribute]
    uncertain = (
        select(attempts.c.lease, jobs.c.vo, value.label("value"))
        .join(jobs, jobs.c.job_id == attempts.c.job_id)
        .where(_MAY_COUNT, sql.is_not_ascii(value), *_at_place(rule.scope))
    )
    leases = [row.lease for row in conn.execute(uncertain) if counts(rule, row.vo, row.value)]
    marks = {row.lease: rules.parse_countings(row.counted_by) for row in sql.read_batches(conn, LOCK, leases)}
    unmarked = {lease: mark for lease, mark in marks.items() if rule.counting not in mark}
    texts = [rules.format_countings([*mark, rule.counting]) for mark in unmarked.values()]
    MARK.execute(conn, {"lease": list(unmarked), "counted_by": texts})


NOTE_MENDED = update(installation).values(mended_counters=installation.c.mended_counters + 1)
READ_MENDED = select(installation.c.mended_counters)


def mend(conn: Connection, rule: StoredRule, counts: Counts) -> None:
    """Count a rule again, in the caller's transaction."""
    scopes.lock_scopes(conn, [rule.scope])
    count_rules(conn, [rule], counts)
    conn.execute(NOTE_MENDED)


def count_mended(conn: Connection) -> int:
    """How many counters were ever mended."""
    mended: int = conn.execute(READ_MENDED).scalar_one()
    return mended
