"""Counters of scopes, compared with the rows that they are copies of."""

import contextlib
from collections.abc import Iterator

from sqlalchemy import Connection, Engine, func, select

from matcher.limits import compiled_rules
from taskqueue.schema.tables import attempts, jobs, scope_returns
from taskqueue.sites import scope_rules as rules
from taskqueue.sites import scopes
from taskqueue.sites.occupancy import ATTRIBUTE_COLUMNS
from taskqueue.sites.scope_rules import RuleKind, StoredRule


def find_differences(conn: Connection) -> list[tuple[StoredRule, int, int]]:
    """Rules whose counter is not the number of rows, with both, in one snapshot."""
    found = []
    for rule, counted in list_counts(conn):
        site, ce = (*rule.scope.split("/"), "")[:2]
        if rule.kind is not RuleKind.RUNNING:
            continue
        value = ATTRIBUTE_COLUMNS[rule.attribute]
        there = sum(
            compiled_rules.counts(rule, row.vo, row.value)
            and site in (scopes.GRID, row.site.lower())
            and ce in ("", row.ce.lower())
            for row in conn.execute(
                select(attempts.c.site, attempts.c.ce, jobs.c.vo, value.label("value"))
                .join(jobs, jobs.c.job_id == attempts.c.job_id)
                .where(attempts.c.closed_at.is_(None))
            )
        )
        if counted != there:
            found.append((rule, counted, there))
    return found


def list_counts(conn: Connection) -> Iterator[tuple[StoredRule, int]]:
    """Each rule, and what it counts with what was returned."""
    returned = select(
        scope_returns.c.scope, scope_returns.c.rule_id, func.sum(scope_returns.c.number).label("number")
    ).group_by(scope_returns.c.scope, scope_returns.c.rule_id)
    pending = {(row.scope, row.rule_id): row.number for row in conn.execute(returned)}
    for rule in rules.list_rules(conn):
        yield rule, rule.n + pending.get((rule.scope, rule.rule_id), 0)


@contextlib.contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """A transaction that reads the database as of one moment."""
    with engine.connect() as conn:
        if engine.dialect.name == "postgresql":
            conn = conn.execution_options(isolation_level="REPEATABLE READ")
        with conn.begin():
            yield conn


def agree(engine: Engine) -> bool:
    """Whether all counters equal their rows."""
    with snapshot(engine) as conn:
        return not find_differences(conn)
