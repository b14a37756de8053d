"""Comparison of the counters of scope rules with the rows that they count, and their mending."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from sqlalchemy import (
    CompoundSelect,
    Connection,
    Select,
    case,
    exists,
    func,
    literal,
    or_,
    select,
    union_all,
    update,
)

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
from taskqueue.sites.occupancy import ATTRIBUTE_COLUMNS
from taskqueue.sites.rule_opening import Counts
from taskqueue.sites.scope_rules import RuleKind, StoredRule

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
_site, _ce, _ = ATTEMPT_AT
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
