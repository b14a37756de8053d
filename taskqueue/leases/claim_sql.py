"""SQL of the batched claim for PostgreSQL, compiled once: a form for one job, and one for many.

The form for one job needs no columns that assign jobs to requests; these cost more than all the rest.

A third form is for places with running limits that task queues alone decide. It locks the scopes, applies
what was returned, refuses what has no room, and adds what it takes to the counters, all in one statement. It
does so only while the rules are those that the caller has read: `known` has each scope of the requests that
has rules, with a digest of these.
Each request lists the rules that count it. Requests rank within a rule by their number, whether they get a
job or not: what is left of the room is for the next statement. Scopes that another transaction has locked are
passed over. As in `scope_rules.lock_rules`, rules are locked themselves, which gives their newest version.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import (
    CTE,
    JSON,
    BigInteger,
    ColumnElement,
    CompoundSelect,
    DateTime,
    FromClause,
    Insert,
    Integer,
    Label,
    Select,
    Text,
    Update,
    and_,
    any_,
    bindparam,
    case,
    cast,
    column,
    delete,
    exists,
    func,
    insert,
    literal,
    null,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import array
from sqlalchemy.sql.dml import ReturningDelete
from sqlalchemy.sql.functions import concat

from requirements.resource import ALLOTTED
from requirements.states import JobStatus
from taskqueue.db import compiled_sql
from taskqueue.db.compiled_sql import CompiledStatement
from taskqueue.leases import opening
from taskqueue.leases.assignment import (
    ASSIGNED,
    LOCATION_BINDS,
    MATCHED_VALUES,
    is_eligible,
    next_epoch,
    select_claimable,
    select_in_claim_order,
)
from taskqueue.pilots import slots
from taskqueue.schema.tables import (
    attempts,
    descriptions,
    job_log,
    jobs,
    match_requests,
    scope_returns,
    scope_rules,
    site_bans,
    waiting_jobs,
)
from taskqueue.schema.tables import scopes as scopes_table
from taskqueue.schema.types import folded_name
from taskqueue.sites import scopes
from taskqueue.sites.scope_rules import RESERVATION, select_digest

NOW = bindparam("now", type_=DateTime(timezone=True))

#: Columns of a request, or of the request of each assigned job.
ClaimValues = Mapping[str, ColumnElement[Any]]


def build_records(ids: Any, given: CTE, request: ClaimValues, *, keyed: bool) -> list[CTE]:
    """The CTEs that record a claim of the jobs `given`, whose ids are one id, or ANY of an array.

    Their attempts are open already.

    `request` has the columns of each job's request; `keyed`: some have a request_id, which is stored with its
    answer.
    """
    parts = [
        _delete_waiting(ids).cte("taken"),
        _insert_log(given).cte("logged"),
    ]
    if keyed:
        parts.append(_insert_answers(given, request).cte("remembered"))
    return parts


def _delete_waiting(ids: Any) -> ReturningDelete[Any]:
    return delete(waiting_jobs).where(waiting_jobs.c.job_id == ids).returning(waiting_jobs.c.job_id)


def _open_attempts(picked: CTE, request: ClaimValues) -> CTE:
    """Open attempts for locked jobs; not for a pilot that gets another job at the same moment.

    Sorted, since each one waits for a rival to commit.
    """
    row = {
        **{name: picked.c[name] for name in ("job_id", "vo")},
        **{name: request[name] for name in opening.ATTEMPT_COLUMNS},
        "epoch": next_epoch(picked.c.epoch),
        "opened_at": NOW,
        "claim_number": case((request["slot"].is_not(None), slots.next_claim(request["stamp"]))),
    }
    opened = compiled_sql.insert_each(attempts, picked, row, request["stamp"])
    unique = [attempts.c.stamp, attempts.c.claim_number]
    return opened.on_conflict_do_nothing(index_elements=unique).returning(attempts.c.job_id).cte("opened")


def _insert_log(given: CTE) -> Insert:
    row = {
        "job_id": given.c.job_id,
        "at": NOW,
        "from_status": literal(JobStatus.WAITING.value),
        "to_status": literal(JobStatus.MATCHED.value),
        "minor_status": literal(ASSIGNED),
        "source": literal(opening.SOURCE),
        "epoch": given.c.epoch,
    }
    return compiled_sql.insert_each(job_log, given, row)


def _insert_answers(given: CTE, request: ClaimValues) -> Insert:
    """Insert in key order, without ON CONFLICT: the second of two rivals fails and claims nothing."""
    row = {
        "subject": request["holder"],
        "request_id": request["request_id"],
        "at": NOW,
        "matches": concat("[", given.c.job_id, "]"),
    }
    keyed = select(*row.values()).select_from(given).where(request["request_id"].is_not(None))
    return insert(match_requests).from_select(
        list(row), keyed.order_by(request["holder"], request["request_id"])
    )


#: Columns of a request for a job.
_ELIGIBLE_NAMES = {name: f"eligible_{name}" for name in LOCATION_BINDS}
CLAIM_COLUMNS: Mapping[str, Any] = {
    "number": Integer,
    "task_queue_id": BigInteger,
    **{_ELIGIBLE_NAMES[name]: bind.type for name, bind in LOCATION_BINDS.items()},
    "site": Text,
    "ce": Text,
    "queue": Text,
    "holder": Text,
    "stamp": Text,
    "slot": Integer,
    "claims": BigInteger,
    "lease": Text,
    "lease_expires_at": DateTime(timezone=True),
    **{name: attempts.c[name].type for name in ALLOTTED},
    "request_id": Text,
    "counted_by": Text,
    "times": Text,
}
#: Columns of a request at a place with running limits. `rules`: a list of [rule_id, limit] of the rules that
#: count its job; without the limit (null) if the job's VO is exempt. Left out: no rule counts it.
LIMITED_COLUMNS: Mapping[str, Any] = {**CLAIM_COLUMNS, "rules": JSON}
_KNOWN = {"scope": Text, "digest": Text}
_COLUMNS = ("job_id", "epoch", "vo", "description_id", "parameters")


class _LockedLimits:
    """The CTEs of the rules of all places of the requests; `admit` comes before `store`.

    `requests` has the scopes of each place as `scopes`.
    """

    def __init__(self, requests: CTE) -> None:
        known = select(compiled_sql.unnest_json("known", _KNOWN, name="known_rules")).cte("known")
        table = scope_rules
        locked = (
            select(scopes_table.c.scope)
            .where(scopes_table.c.scope == _any_of(known.c.scope))
            .order_by(scopes_table.c.scope)
            .with_for_update(skip_locked=True)
            .cte("locked")
        )
        of_locked = _any_of(locked.c.scope)
        rules = select(table).where(table.c.scope == of_locked).with_for_update().cte("rules")
        # Scopes whose rules are all in force, and as the caller has read them.
        verified = select(
            select(rules.c.scope)
            .join(known, known.c.scope == rules.c.scope)
            .group_by(rules.c.scope, known.c.digest)
            .having(func.bool_and(rules.c.opened), select_digest(rules) == known.c.digest)
            .cte("verified")
        )
        each_scope = select(func.unnest(requests.c.scopes).label("scope")).subquery("each_scope")
        # Scopes with rules that the caller does not know, or that are locked elsewhere. Materialized, since
        # it would be evaluated for each request.
        self._unverified = (
            union_all(
                select(known.c.scope).where(known.c.scope.not_in(verified)),
                select(table.c.scope).where(
                    table.c.scope == _any_of(each_scope.c.scope), table.c.scope.not_in(verified)
                ),
            )
            .cte("unverified")
            .prefix_with("MATERIALIZED")
        )
        # Returned reservations are left to claims that know throttles.
        returned = (
            delete(scope_returns)
            .where(scope_returns.c.scope == of_locked, scope_returns.c.rule_id != RESERVATION)
            .returning(scope_returns.c.rule_id, scope_returns.c.number)
            .cte("returned")
        )
        more = (
            select(returned.c.rule_id, func.sum(returned.c.number).label("number"))
            .group_by(returned.c.rule_id)
            .subquery("more")
        )
        #: By rule, what it counts now, and what is stored.
        self._counts = (
            select(
                rules.c.rule_id,
                rules.c.n.label("stored"),
                cast(rules.c.n + func.coalesce(more.c.number, 0), Integer).label("n"),
            )
            .outerjoin(more, more.c.rule_id == rules.c.rule_id)
            .cte("counts")
        )

    def are_unverified(self, place: ColumnElement[Any]) -> ColumnElement[bool]:
        """Whether rules of a place, an array of scopes, must be applied by somebody else."""
        return exists().where(self._unverified.c.scope == any_(place))

    def admit(self, requests: CTE) -> CTE:
        """The requests, refused where a limit leaves no room."""
        self._uses = uses = self._list_uses(requests)
        excess = (
            select(uses.c.number)
            .join(self._counts, self._counts.c.rule_id == uses.c.rule_id)
            .where(self._counts.c.n + uses.c.rank > uses.c.most)
        )
        refusal = case((requests.c.number.in_(excess), ""), else_=requests.c.refusal)
        others = (each for each in requests.c if each.name not in ("refusal", "scopes"))
        return select(*others, refusal.label("refusal")).cte("admitted")

    def _list_uses(self, requests: CTE) -> CTE:
        """The rules that count each request that may get a job, and its rank among those of the rule."""
        each = func.json_array_elements(requests.c.rules).table_valued(column("value", JSON), name="each")
        rule = cast(each.c.value.op("->>")(literal(0)), BigInteger)
        return (
            select(
                requests.c.number,
                rule.label("rule_id"),
                cast(each.c.value.op("->>")(literal(1)), BigInteger).label("most"),
                _rank_within(rule, requests.c.number),
            )
            .select_from(requests.join(each, true()))
            .where(requests.c.refusal.is_(None))
            .cte("uses")
        )

    def store(self, assigned: CTE, opened: CTE) -> CTE:
        """Add what was taken to the counters."""
        uses = self._uses
        gained = (
            select(uses.c.rule_id, func.count().label("number"))
            .join(assigned, assigned.c.number == uses.c.number)
            .join(opened, opened.c.job_id == assigned.c.job_id)
            .group_by(uses.c.rule_id)
            .subquery("gained")
        )
        new = (
            select(
                self._counts.c.rule_id,
                self._counts.c.stored,
                (self._counts.c.n + func.coalesce(gained.c.number, 0)).label("n"),
            )
            .outerjoin(gained, gained.c.rule_id == self._counts.c.rule_id)
            .subquery("new")
        )
        return (
            update(scope_rules)
            .where(
                scope_rules.c.rule_id == _any_of(self._counts.c.rule_id),
                scope_rules.c.rule_id == new.c.rule_id,
                new.c.n != new.c.stored,
            )
            .values(n=new.c.n)
            .cte("counted")
        )


def _any_of(values: ColumnElement[Any]) -> ColumnElement[Any]:
    """ANY of an array of the values of a CTE.

    The planner cannot estimate how few there are, and might scan a whole table for a join with the CTE.
    """
    return any_(func.array(select(values).scalar_subquery()))


def _build_one(*, keyed: bool, pooled: bool) -> CompoundSelect[Any]:
    request: ClaimValues = {name: bindparam(name, type_=type_) for name, type_ in CLAIM_COLUMNS.items()}
    here = {name: request[eligible] for name, eligible in _ELIGIBLE_NAMES.items()}
    # Without pools their condition is left out: even unevaluated it costs a tenth of the statement.
    waiting = (
        select_claimable(request["task_queue_id"], **here)
        if pooled
        else select_in_claim_order(request["task_queue_id"]).where(jobs.c.submit_pool.is_(None))
    )
    refusal = select(request["number"].label("number"), _refusal(request, keyed=keyed).label("refusal"))
    decided = refusal.cte("decided")
    refused = select(decided).where(decided.c.refusal.is_not(None)).cte("refused")
    first = (
        waiting.add_columns(jobs.c.epoch, jobs.c.vo)
        .where(~exists().select_from(refused))
        .limit(1)
        .with_for_update(of=[waiting_jobs, jobs], skip_locked=True, key_share=True)
        .cte("first")
    )
    opened = _open_attempts(first, request)
    its_id = select(opened.c.job_id).scalar_subquery()
    given = (
        _match_jobs(its_id, request["site"])
        .returning(*(jobs.c[name] for name in _COLUMNS), request["number"].label("number"))
        .cte("given")
    )
    parts = build_records(its_id, given, request, keyed=keyed)
    lost = select(request["number"], literal("")).select_from(first).where(~exists().select_from(opened))
    refusals = union_all(select(refused), lost).subquery()
    return union_all(_select_claimed(given), _select_refused(refusals)).add_cte(*parts)


def _build_many(*, limited: bool) -> CompoundSelect[Any]:
    columns = LIMITED_COLUMNS if limited else CLAIM_COLUMNS
    given_requests: FromClause = compiled_sql.unnest_json("requests", columns, name="request")
    limits = None
    if limited:
        its_scopes = array(_list_scopes(dict(given_requests.c.items()))).label("scopes")
        given_requests = requests_with_scopes = select(given_requests, its_scopes).cte("given_requests")
        limits = _LockedLimits(requests_with_scopes)
    refusal = _refusal(dict(given_requests.c.items()), keyed=True, limits=limits)
    requests = select(given_requests, refusal.label("refusal")).cte("requests")
    if limits is not None:
        requests = limits.admit(requests)
    assigned = _assign_jobs(requests)
    opened = _open_attempts(assigned, dict(assigned.c.items()))
    ids = _any_of(opened.c.job_id)
    given = (
        _match_jobs(assigned.c.job_id, assigned.c.site)
        .where(assigned.c.job_id.in_(select(opened.c.job_id)))
        .returning(
            *(jobs.c[name] for name in _COLUMNS),
            *(assigned.c[name] for name in CLAIM_COLUMNS if name != "task_queue_id"),
        )
        .cte("given")
    )
    parts = build_records(ids, given, dict(given.c.items()), keyed=True)
    if limits is not None:
        parts.append(limits.store(assigned, opened))
    lost = select(assigned.c.number, literal("")).where(assigned.c.job_id.not_in(select(opened.c.job_id)))
    refused = select(requests.c.number, requests.c.refusal).where(requests.c.refusal.is_not(None))
    refusals = union_all(refused, lost).subquery()
    return union_all(_select_claimed(given), _select_refused(refusals)).add_cte(*parts)


def _refusal(
    request: ClaimValues, *, keyed: bool, limits: _LockedLimits | None = None
) -> ColumnElement[str | None]:
    """Why a request gets nothing by this statement, whatever waits; null: it may get a job.

    Empty if its site is banned, or has rules that are not applied under its lock, here (`limits`) or before;
    or it was answered before (`keyed`). Otherwise its pilot has no room, see `slots.select_refusal`.
    """
    is_answered = compiled_sql.is_found(
        match_requests,
        match_requests.c.subject == request["holder"],
        match_requests.c.request_id == request["request_id"],
    )
    is_decided_elsewhere = or_(
        compiled_sql.is_found(site_bans, site_bans.c.site == _fold(request["site"]), scopes.IS_CURRENT),
        and_(
            request["counted_by"].is_(None),
            compiled_sql.is_found(scope_rules, scope_rules.c.scope.in_(_list_scopes(request))),
        )
        if limits is None
        else limits.are_unverified(request["scopes"]),
        *([is_answered] if keyed else []),
    )
    of_slot = slots.select_refusal(
        request["stamp"], request["slot"], request["claims"], NOW, wanted=request["processors"]
    )
    return case((is_decided_elsewhere, ""), else_=of_slot)


def _list_scopes(request: ClaimValues) -> list[ColumnElement[str]]:
    """The scopes of a request's place."""
    site, ce, queue = (_fold(request[name]) for name in ("site", "ce", "queue"))
    at_ce = concat(site, "/", ce)
    return [literal(scopes.GRID), site, at_ce, concat(at_ce, "/", queue)]


def _fold(name: ColumnElement[str]) -> ColumnElement[str]:
    """Fold a name, in the collation of the tables' columns: with another one no index could be used."""
    return folded_name(name).collate("default")


def _assign_jobs(requests: CTE) -> CTE:
    """Assign jobs to requests: the n-th assignable job of a task queue to the n-th request for it."""
    free = (
        select(requests, _rank_within(requests.c.task_queue_id, requests.c.number))
        .where(requests.c.refusal.is_(None))
        .cte("free")
    )
    wanted = (
        select(free.c.task_queue_id, func.count().label("count")).group_by(free.c.task_queue_id).cte("wanted")
    )
    first = (
        select_in_claim_order(wanted.c.task_queue_id)
        .add_columns(waiting_jobs.c.priority, jobs.c.epoch, jobs.c.vo)
        .limit(wanted.c.count)
        .with_for_update(of=[waiting_jobs, jobs], skip_locked=True, key_share=True)
        .lateral("first")
    )
    rank = _rank_within(wanted.c.task_queue_id, first.c.priority.desc(), first.c.job_id)
    picked = (
        select(wanted.c.task_queue_id, first.c.job_id, first.c.epoch, first.c.vo, rank)
        .select_from(wanted.join(first, true()))
        .cte("picked")
    )
    its = and_(free.c.task_queue_id == picked.c.task_queue_id, free.c.rank == picked.c.rank)
    here = {name: free.c[eligible] for name, eligible in _ELIGIBLE_NAMES.items()}
    # A job that is not eligible at its request's location stays in its task queue.
    return (
        select(picked.c.job_id, picked.c.epoch, picked.c.vo, free)
        .join(free, its)
        .join(jobs, jobs.c.job_id == picked.c.job_id)
        .where(is_eligible(free, **here))
        .cte("assigned")
    )


def _rank_within(group: ColumnElement[Any], *order: ColumnElement[Any]) -> Label[int]:
    return func.row_number().over(partition_by=group, order_by=order).label("rank")


def _match_jobs(ids: Any, site: ColumnElement[Any]) -> Update:
    return (
        update(jobs)
        .where(jobs.c.job_id == ids, jobs.c.status == JobStatus.WAITING.value)
        .values(site=func.coalesce(func.nullif(site, ""), "ANY"), **{**MATCHED_VALUES, "updated_at": NOW})
    )


def _select_claimed(given: CTE) -> Select[Any]:
    # LATERAL … LIMIT: descriptions are looked up one by one, whatever number the planner estimates.
    described = (
        select(descriptions.c.body, descriptions.c.sandbox)
        .where(descriptions.c.description_id == given.c.description_id)
        .limit(1)
        .lateral("described")
    )
    return select(
        *(given.c[name] for name in ("number", "job_id", "epoch", "vo", "parameters")),
        described.c.body,
        described.c.sandbox,
    ).select_from(given.join(described, true()))


def _select_refused(refusals: FromClause) -> Select[Any]:
    """A row for each refused request: without a job, and with the reason in place of the VO."""
    number, reason = refusals.c
    return select(number, null(), null(), reason, *[null()] * 3)


# Compiled when they are first needed: it takes longer than most imports, and few processes claim jobs.


@cache
def compile_one(*, keyed: bool, pooled: bool) -> CompiledStatement:
    """The claim of one job, with a request_id or not, with a SubmitPool or not.

    Its parameters are the names of `CLAIM_COLUMNS`, and `now`.
    """
    return compiled_sql.compile_statement(_build_one(keyed=keyed, pooled=pooled), *CLAIM_COLUMNS)


@cache
def compile_many() -> CompiledStatement:
    """The claim of many jobs, by `requests`, a JSON list of objects with `CLAIM_COLUMNS`, and `now`."""
    return compiled_sql.compile_statement(_build_many(limited=False), "requests")


@cache
def compile_limited() -> CompiledStatement:
    """The claim at places with limits, by `requests` (`LIMITED_COLUMNS`), `known` (`_KNOWN`), and `now`."""
    return compiled_sql.compile_statement(_build_many(limited=True), "requests", "known")
