"""Counters of scopes, compared with the rows that they are copies of."""

import contextlib
from collections.abc import Iterator

from sqlalchemy import Connection, Engine, func, select

from matcher.limits import compiled_rules
from taskqueue.schema.tables import attempts, jobs, scope_returns
from taskqueue.sites import scope_rules as rules
from taskqueue.sites import scopes
from taskqueue.sites.occupancy import ATTRIBUTE_COLUMNS, JobsAndCores
from taskqueue.sites.scope_rules import RuleKind, StoredRule


def find_differences(conn: Connection) -> list[tuple[StoredRule, JobsAndCores, JobsAndCores]]:
    """Rules whose counters are not the jobs and cores of their rows, with both, in one snapshot."""
    found = []
    for rule, counted in list_counts(conn):
        site, ce = (*rule.scope.split("/"), "")[:2]
        if rule.kind is not RuleKind.RUNNING:
            continue
        value = ATTRIBUTE_COLUMNS[rule.attribute]
        cores = [
            row.processors or 1
            for row in conn.execute(
                select(
                    *(attempts.c[name] for name in ("site", "ce", "processors")),
                    *(jobs.c.vo, value.label("value")),
                )
                .join(jobs, jobs.c.job_id == attempts.c.job_id)
                .where(attempts.c.closed_at.is_(None))
            )
            if compiled_rules.counts(rule, row.vo, row.value)
            and site in (scopes.GRID, row.site.lower())
            and ce in ("", row.ce.lower())
        ]
        there = JobsAndCores(len(cores), sum(cores))
        if counted != there and not (rule.cores is None and counted.jobs == there.jobs):
            found.append((rule, counted, there))
    return found


def list_counts(conn: Connection) -> Iterator[tuple[StoredRule, JobsAndCores]]:
    """Each rule, and what it counts with what was returned."""
    sums = (func.sum(scope_returns.c[name]).label(name) for name in ("number", "cores"))
    returned = select(scope_returns.c.scope, scope_returns.c.rule_id, *sums).group_by(
        scope_returns.c.scope, scope_returns.c.rule_id
    )
    pending = {
        (row.scope, row.rule_id): JobsAndCores(row.number, row.cores) for row in conn.execute(returned)
    }
    for rule in rules.list_rules(conn):
        counted = JobsAndCores(rule.n, rule.cores or 0)
        yield rule, counted + pending.get((rule.scope, rule.rule_id), JobsAndCores())


@contextlib.contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """A transaction that reads the database as of one moment."""
    with engine.connect() as conn:
        if engine.dialect.name == "postgresql":
            conn = conn.execution_options(isolation_level="REPEATABLE READ")
        else:
            conn = conn.execution_options(deferred=True)  # a reader stands in no writer's way
        with conn.begin():
            yield conn


def agree(engine: Engine) -> bool:
    """Whether all counters equal their rows."""
    with snapshot(engine) as conn:
        return not find_differences(conn)
