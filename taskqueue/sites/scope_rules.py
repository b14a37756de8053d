"""Limits, delays and throttles of scopes as rows, with counters of what runs there.

`n` of a rule is a copy of a number of rows: open attempts that it counts, or reservations of its scope. It is
changed under the lock of the scope only: by claims, which add what they took, and subtract what ended since
(`lock_rules`). What ends an attempt takes no such lock: triggers of `attempts` append to
`scope_returns` in the same transaction. So `n` and the returns of a snapshot, −1 for each end,
add up to the rows of that snapshot, and a claim that applies late leaves too little room, never too much.

`cores` of a running limit are the processors of these attempts. Claims only read them: triggers add those of
an opened attempt to the rules that it is marked with, and those of a return when it is deleted. So they are
right beside processes of 1.0, which do not know them.

Token buckets of matching delays, and of running limits with a ramp, are stored with the time of the
database: matchers on several hosts have different clocks, and each would fill the buckets by its own.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import (
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    text,
    update,
)

from taskqueue.db import sql
from taskqueue.schema.tables import installation, matching_delays, scope_returns
from taskqueue.schema.tables import reservations as reservations_table
from taskqueue.schema.tables import scope_rules as table
from taskqueue.schema.tables import scopes as scopes_table
from taskqueue.sites import reservations, scopes
from taskqueue.sites.occupancy import JobsAndCores
from taskqueue.sites.scopes import Scope

#: Formats of the definitions that this program writes and reads: without and with a limit on cores, and of
#: the floors of a site, or what is counted for them. Processes of 1.0 give nothing where a rule has one that
#: they could not apply.
FORMAT: Final = 1
FORMAT_OF_CORES: Final = 2
FORMAT_OF_FLOORS: Final = 3
FORMATS: Final = (FORMAT, FORMAT_OF_CORES, FORMAT_OF_FLOORS)
#: `n` of a rule that is not counted yet: processes of 1.0 find it full.
FULL: Final = 1_000_000_000
#: Stands for a rule's id in `attempts.counted_by` and `scope_returns`: a reservation at the scope.
RESERVATION: Final = 0
#: Stands for the VO in the key of a rule of a site itself; no VO has such a name.
OF_SITE: Final = "*"


class RuleKind(StrEnum):
    """The kind of a rule: the quantity that it bounds."""

    RUNNING = "running"  #: open attempts of jobs with a value
    DELAY = "delay"  #: matches of jobs with a value in a time
    THROTTLE = "throttle"  #: matches, by what the scope advertises


_KINDS = frozenset(each.value for each in RuleKind)
_NOTHING: Final = JobsAndCores()
#: Columns that a rule has as they are.
_PLAIN_COLUMNS = ("scope", "attribute", "value", "vo", "definition", "format")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeRule:
    """A rule as compiled from the configuration."""

    scope: str  #: folded
    kind: RuleKind
    attribute: str = ""  #: of jobs; as the next two empty for a throttle
    value: str = ""  #: folded
    vo: str = ""  #: as stored; empty: all VOs; OF_SITE: all, by a rule of the site itself
    definition: str  #: JSON object: the other values, such as the limit
    format: int = FORMAT  #: of the definition

    @property
    def key(self) -> tuple[str, ...]:
        """Scope, kind, attribute, value and VO: a rule with another key counts other jobs."""
        return self.scope, self.kind.value, self.attribute, self.value, self.vo


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRule(ScopeRule):
    """A stored rule with its counter; it is in force once it is `opened`."""

    rule_id: int
    n: int  #: open attempts or reservations that it counts
    cores: int | None  #: processors of these attempts; None: not counted yet
    opened: bool  #: False: it admits no job yet, and `n` means nothing
    known: bool = True  #: False: written by a later release, in a format that this one cannot read

    @property
    def counting(self) -> "Counting":
        """Its entry in `attempts.counted_by`."""
        return (RESERVATION if self.kind is RuleKind.THROTTLE else self.rule_id), self.scope


#: One rule that counts an attempt: rule id, or RESERVATION, and scope. `attempts.counted_by` is a JSON list.
Counting = tuple[int, str]

ALL = select(table).order_by(table.c.rule_id)
AT_SITES = ALL.where(
    table.c.scope.in_(select(scopes_table.c.scope).where(sql.is_listed(scopes_table.c.site)))
)
_HAS_NO_CORES = and_(table.c.kind == RuleKind.RUNNING.value, table.c.cores.is_(None))
UNCOUNTED = ALL.where(or_(table.c.counted.is_(False), _HAS_NO_CORES), table.c.opened)
READ = select(table).where(sql.is_listed(table.c.scope)).order_by(table.c.rule_id)
_RETURNED = [func.sum(scope_returns.c[name]).label(name) for name in ("number", "cores")]
#: Else an advertisement has removed or acknowledged the returned reservation, and `n` is without it already.
_IS_COUNTED = exists().where(
    reservations_table.c.scope == scope_returns.c.scope,
    reservations_table.c.job_id == scope_returns.c.job_id,
    reservations_table.c.epoch == scope_returns.c.epoch,
    reservations_table.c.seen.is_(False),
)
PENDING = (
    select(scope_returns.c.scope, scope_returns.c.rule_id, *_RETURNED)
    .where(sql.is_listed(scope_returns.c.scope), or_(scope_returns.c.rule_id != RESERVATION, _IS_COUNTED))
    .group_by(scope_returns.c.scope, scope_returns.c.rule_id)
)
_HAS_RULES = exists().where(table.c.scope == scopes_table.c.scope)
_RETURN = ("rule_id", "job_id", "epoch", "number", "cores")


def _lock(*, wait: bool) -> Select[Any]:
    """Lock scopes with their rules, and delete their returns; a row for each rule (PostgreSQL).

    Columns other than `name` are null if another transaction has the scope. One statement reads the tables
    as they were before it had the locks: so rules are locked themselves, which gives their newest version. A
    rule that was inserted since waits for this transaction before it is counted; a newer return is applied
    later.
    """
    locked = scopes.LOCK.where(_HAS_RULES).with_for_update(skip_locked=not wait).cte("locked")
    rules = select(table).join(locked, locked.c.scope == table.c.scope).with_for_update(of=table).cte("rules")
    returned = (
        delete(scope_returns)
        .where(scope_returns.c.scope.in_(select(locked.c.scope)))
        .returning(*scope_returns.c)
        .cte("returned")
    )
    names = (
        select(scopes_table.c.scope.label("name"))
        .where(sql.is_listed(scopes_table.c.scope), _HAS_RULES)
        .subquery("names")
    )
    each = func.json_agg(func.json_build_array(*(returned.c[name] for name in _RETURN)))
    its_returns = select(each).where(returned.c.scope == names.c.name).scalar_subquery()
    # Beside one rule only: there may be thousands of returns.
    is_first = func.row_number().over(partition_by=names.c.name, order_by=rules.c.rule_id) == 1
    return (
        select(
            names,
            *locked.c,
            *(column for column in rules.c if column.name != "scope"),
            case((is_first, its_returns)).label("returned"),
        )
        .select_from(
            names.outerjoin(locked, locked.c.scope == names.c.name).outerjoin(
                rules, rules.c.scope == locked.c.scope
            )
        )
        .order_by(rules.c.rule_id)
    )


LOCK_FREE = _lock(wait=False)
LOCK_ALL = _lock(wait=True)
# SQLite has one writer, and no round trips.
SCOPES_SQLITE = scopes.READ.where(_HAS_RULES)
APPLY_SQLITE = (
    delete(scope_returns)
    .where(sql.is_listed(scope_returns.c.scope))
    .returning(*(scope_returns.c[name] for name in ("scope", *_RETURN)))
)
LADEN = (
    select(scope_returns.c.scope)
    .group_by(scope_returns.c.scope)
    .having(func.count() >= bindparam("least"))
    .order_by(scope_returns.c.scope)
)
DELETE_STRAY = delete(scope_returns).where(~exists().where(table.c.scope == scope_returns.c.scope))
STORE_COUNTS = sql.bulk_update(table, "n", key="rule_id")

INSERT = insert(table)
DEFINE = (
    update(table)
    .where(table.c.rule_id == bindparam("the_rule"))
    .values(definition=bindparam("the_definition"), format=bindparam("the_format"))
)
REMOVE = delete(table).where(table.c.rule_id == bindparam("the_rule"))
SET = (
    update(table)
    .where(table.c.rule_id == bindparam("the_rule"))
    .values(n=bindparam("the_n"), cores=bindparam("the_cores"), counted=True)
)
# Text: for a default SQLAlchemy would get the number by a statement of its own.
TAKE_OVER = text("""
    UPDATE scope_rules SET rule_id = DEFAULT, n = :the_n, opened = true, counted = false
    WHERE rule_id = :the_rule AND NOT opened
""")
CLOSED = ALL.where(table.c.opened.is_(False))

_VERSION = (installation.c.rules_version, installation.c.rules_expiries)
READ_VERSION = select(*_VERSION)
SHARE_VERSION = READ_VERSION.with_for_update(read=True)
_IS_OLDER = or_(
    installation.c.rules_version < bindparam("the_version"),
    and_(
        installation.c.rules_version == bindparam("the_version"),
        installation.c.rules_expiries < bindparam("the_expiries"),
    ),
)
SET_VERSION = (
    update(installation)
    .where(_IS_OLDER)
    .values(rules_version=bindparam("the_version"), rules_expiries=bindparam("the_expiries"))
)

#: Configuration version, and number of expiries passed by then.
RulesVersion = tuple[int, int]


def read_rules(conn: Connection, names: Collection[str]) -> list[StoredRule]:
    """Rules of scopes, by folded names, as a claim would find them now; advisory: nothing is locked."""
    ids = {"ids": sorted(names)}
    rows = conn.execute(READ, ids).all()
    if not rows:
        return []
    pending = {
        (row.scope, row.rule_id): JobsAndCores(row.number, row.cores) for row in conn.execute(PENDING, ids)
    }
    return [_build_with_returns(row, pending) for row in rows]


def list_rules(conn: Connection, sites: Collection[str] | None = None) -> list[StoredRule]:
    """The rules of sites (folded names; None: all) and of their CEs and queues, with stored counters."""
    rows = conn.execute(ALL) if sites is None else conn.execute(AT_SITES, {"ids": sorted(sites)})
    return [build_rule(row) for row in rows]


def list_uncounted(conn: Connection) -> list[StoredRule]:
    """The rules that this program can read and that are new, or whose cores were never counted."""
    return [rule for row in conn.execute(UNCOUNTED) if (rule := build_rule(row)).known]


def list_closed(conn: Connection) -> list[StoredRule]:
    """The rules that a process of 1.0 has stored and not opened; see `take_over`."""
    return [rule for row in conn.execute(CLOSED) if (rule := build_rule(row)).known]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedRules:
    """Locked scopes with their rules; what else a decision needs has to be read afterwards."""

    scopes: Mapping[str, Scope]  #: those that have rules, of the moment of locking
    busy: frozenset[str]  #: scopes with rules that another transaction has locked
    rules: Sequence[StoredRule]  #: with exact counters
    returned: Mapping[int, int]  #: counters by rule id that differ from the stored ones: store them


def lock_rules(conn: Connection, names: Collection[str], *, wait: bool) -> LockedRules:
    """Lock the scopes that have rules, subtract what has ended there, and read their rules.

    The returns are deleted in the caller's transaction, which has to store the counters. `wait`: until all
    scopes are free, or an OperationalError after the lock time-out.
    """
    if not names:
        return LockedRules(scopes={}, busy=frozenset(), rules=(), returned={})
    ids = {"ids": sorted(set(names))}
    if conn.dialect.name == "sqlite":
        found = {row.scope: row for row in conn.execute(SCOPES_SQLITE, ids)}
        ids = {"ids": list(found)}
        rows = conn.execute(READ, ids).all() if found else []  # before returns change the cores
        returned = [tuple(row) for row in conn.execute(APPLY_SQLITE, ids)] if found else []
    else:
        every = conn.execute(LOCK_ALL if wait else LOCK_FREE, ids).all()
        found = {row.name: row for row in every}
        returned = [(row.name, *each) for row in every for each in row.returned or ()]
        rows = [row for row in every if row.rule_id is not None]
    more = _sum_returns(conn, returned) if returned else {}
    rules = [_build_with_returns(row, more) for row in rows]
    return LockedRules(
        scopes={name: scopes.build_scope(row) for name, row in found.items() if row.scope is not None},
        busy=frozenset(name for name, row in found.items() if row.scope is None),
        rules=rules,
        returned={
            each.rule_id: each.n
            for each, row in zip(rules, rows, strict=True)
            if each.n != row.n and each.opened
        },
    )


def _sum_returns(
    conn: Connection, returned: Iterable[tuple[Any, ...]]
) -> Mapping[tuple[str, int], JobsAndCores]:
    """Sum what to add to the counters, by scope and rule, and delete ended reservations."""
    more: defaultdict[tuple[str, int], JobsAndCores] = defaultdict(JobsAndCores)
    ended: defaultdict[str, list[reservations.AttemptKey]] = defaultdict(list)
    for scope, rule_id, job_id, epoch, number, cores in returned:
        if rule_id == RESERVATION:
            ended[scope].append((job_id, epoch))
        else:
            more[scope, rule_id] += JobsAndCores(number, cores)
    for scope, attempts in ended.items():
        removed = reservations.remove_reservations(conn, scope, attempts)
        more[scope, RESERVATION] += JobsAndCores(-removed)
    return more


def list_laden(conn: Connection, *, least: int) -> list[str]:
    """The scopes, by folded names, where at least so many returns wait for a claim."""
    return list(conn.scalars(LADEN, {"least": least}))


def apply_returns(conn: Connection, scope: str) -> None:
    """Subtract what has ended at a scope, as a claim would; nothing if another transaction has locked it."""
    store_counts(conn, lock_rules(conn, [scope], wait=False).returned)


def delete_stray_returns(conn: Connection) -> None:
    """Delete the returns to scopes that have no rules any more: no claim applies them.

    Without a lock: a return is committed after the rule that counts it, so every snapshot with a return of a
    rule in force has the rule.
    """
    conn.execute(DELETE_STRAY)


def store_counts(conn: Connection, counts: Mapping[int, int]) -> None:
    """Set counters by rule id, under the lock of their scopes."""
    if counts:
        STORE_COUNTS.execute(conn, {"rule_id": list(counts), "n": list(counts.values())})


def read_version(conn: Connection) -> RulesVersion:
    """The version that the rules come from."""
    row = conn.execute(READ_VERSION).one()
    return row.rules_version, row.rules_expiries


def raise_version(conn: Connection, version: RulesVersion) -> bool:
    """Claim the rules for a version, until the end of the transaction; False: they come from a later one.

    Waits for transactions that store rules of an older one; later ones of that kind store nothing.
    """
    conn.execute(SET_VERSION, {"the_version": version[0], "the_expiries": version[1]})
    row = conn.execute(SHARE_VERSION).one()
    return (row.rules_version, row.rules_expiries) <= version


def replace_rules(conn: Connection, wanted: Mapping[str, Collection[ScopeRule]]) -> None:
    """Store the rules of locked scopes, new ones uncounted; rows that stay the same are not touched.

    Args:
        conn: A transaction that has the locks.
        wanted: All rules of each of these scopes, by folded name.
    """
    rows = conn.execute(READ, {"ids": sorted(wanted)})
    stored = {each.key: each for each in map(build_rule, rows)}
    rules = {each.key: each for of_scope in wanted.values() for each in of_scope}
    gone = [{"the_rule": each.rule_id} for key, each in stored.items() if key not in rules and each.known]
    if gone:
        conn.execute(REMOVE, gone)
    changed = [
        {"the_rule": stored[key].rule_id, "the_definition": each.definition, "the_format": each.format}
        for key, each in rules.items()
        if key in stored and not _is_same(stored[key], each)
    ]
    if changed:
        conn.execute(DEFINE, changed)
    insert_rules(conn, [each for key, each in rules.items() if key not in stored])


def insert_rules(conn: Connection, rules: Iterable[ScopeRule]) -> None:
    """Insert uncounted rules of a locked scope; a delay counts nothing and holds at once."""
    new = [
        {name: getattr(each, name) for name in _PLAIN_COLUMNS}
        | {"kind": each.kind.value, "opened": True}
        | ({"n": 0, "counted": True} if each.kind is RuleKind.DELAY else {"n": FULL, "counted": False})
        for each in rules
    ]
    if new:
        conn.execute(INSERT, new)


def list_outdated(stored: Iterable[StoredRule], wanted: Iterable[ScopeRule]) -> set[str]:
    """The scopes whose stored rules differ from the wanted ones."""
    before = {each.key: each for each in stored if each.known}
    after = {each.key: each for each in wanted}
    return {key[0] for key in before.keys() ^ after.keys()} | {
        key[0] for key in before.keys() & after.keys() if not _is_same(before[key], after[key])
    }


def set_counts(conn: Connection, counts: Mapping[int, JobsAndCores]) -> None:
    """Set the counters of rules that were counted, which admit jobs from now on; under the scopes' locks."""
    if counts:
        found = counts.items()
        conn.execute(
            SET, [{"the_rule": rule_id, "the_n": n.jobs, "the_cores": n.cores} for rule_id, n in found]
        )


def take_over(conn: Connection, rule: StoredRule) -> None:
    """Give a rule that a process of 1.0 has not opened yet a new id, as if it were stored by this release.

    What that process has counted is void then. In place on PostgreSQL: a claim that waits for the scope would
    see no row that is inserted now (`lock_rules`), and so no limit. Not needed once no process of 1.0 runs.
    """
    if conn.dialect.name == "sqlite":
        conn.execute(REMOVE, {"the_rule": rule.rule_id})
        insert_rules(conn, [rule])
    else:
        conn.execute(TAKE_OVER, {"the_rule": rule.rule_id, "the_n": FULL})


def format_countings(countings: Sequence[Counting]) -> str:
    """Value of `attempts.counted_by`."""
    return json.dumps(countings)


def parse_countings(text: str | None) -> list[Counting]:
    """Inverse of `format_countings`; empty for null."""
    return [(rule_id, scope) for rule_id, scope in json.loads(text)] if text else []


def _is_same(stored: StoredRule, wanted: ScopeRule) -> bool:
    # What a later release wrote stays.
    return not stored.known or stored.definition == wanted.definition


def _build_with_returns(row: Row[Any], returned: Mapping[tuple[str, int], JobsAndCores]) -> StoredRule:
    noted_as = RESERVATION if row.kind == RuleKind.THROTTLE.value else row.rule_id
    return build_rule(row, more=returned.get((row.scope, noted_as), _NOTHING))


def build_rule(row: Row[Any], *, more: JobsAndCores = _NOTHING) -> StoredRule:
    """The rule of a row of the table; `more` is added to its counters."""
    return StoredRule(
        **{name: getattr(row, name) for name in _PLAIN_COLUMNS},
        rule_id=row.rule_id,
        kind=RuleKind(row.kind) if row.kind in _KINDS else RuleKind.THROTTLE,
        n=row.n + more.jobs,
        cores=None if row.cores is None else row.cores + more.cores,
        opened=row.opened and row.counted,
        known=row.format in FORMATS and row.kind in _KINDS,
    )


#: Folded scope, kind of rule (delay, or limit with a ramp), attribute, folded value, VO as in `ScopeRule`.
BucketKey = tuple[str, RuleKind, str, str, str]
_BUCKET_KEY = ("scope", "kind", "attribute", "value", "vo")

READ_LEVELS = select(matching_delays).where(sql.is_listed(matching_delays.c.scope))
STORE_LEVELS = sql.insert_or_update(matching_delays, "tokens", "at")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketLevel:
    """Fill level of a bucket at a time."""

    tokens: float
    at: datetime


def read_levels(conn: Connection, scopes: Collection[str]) -> Mapping[BucketKey, BucketLevel]:
    """Stored buckets of scopes."""
    rows = conn.execute(READ_LEVELS, {"ids": sorted(scopes)})
    return {
        (row.scope, RuleKind(row.kind), row.attribute, row.value, row.vo): BucketLevel(
            tokens=row.tokens, at=row.at
        )
        for row in rows
    }


def store_levels(conn: Connection, levels: Iterable[tuple[BucketKey, BucketLevel]]) -> None:
    """Store bucket levels, under the lock of their scopes."""
    rows = [
        dict(zip(_BUCKET_KEY, key, strict=True)) | {"tokens": level.tokens, "at": level.at}
        for key, level in levels
    ]
    if rows:
        conn.execute(STORE_LEVELS, rows)
