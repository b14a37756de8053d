"""The statement that claims a job for an ask, or one for each of many; for PostgreSQL, compiled once.

The form for one ask is the same without what tells asks apart, which costs more than all the rest.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    CompoundSelect,
    DateTime,
    Integer,
    Label,
    Select,
    Text,
    Update,
    and_,
    any_,
    bindparam,
    exists,
    func,
    null,
    select,
    true,
    union_all,
    update,
)

from taskqueue import bans, claim_records, statements
from taskqueue.claim_records import NOW, Said
from taskqueue.states import JobStatus
from taskqueue.tables import (
    descriptions,
    jobs,
    match_requests,
    site_bans,
    waiting_jobs,
)
from taskqueue.taking import GIVEN, HERE, claimable, eligible_here, in_order

#: What is said of each job that is asked for.
_ELIGIBLE = {name: f"eligible_{name}" for name in HERE}
ASKED: Mapping[str, Any] = {
    "number": Integer,
    "task_queue_id": BigInteger,
    **{_ELIGIBLE[name]: bind.type for name, bind in HERE.items()},
    "site": Text,
    "ce": Text,
    "queue": Text,
    "holder": Text,
    "stamp": Text,
    "lease": Text,
    "lease_expires_at": DateTime(timezone=True),
    "processors": Integer,
    "ram_mb": BigInteger,
    "gpus": Integer,
    "request_id": Text,
}
_COLUMNS = ("job_id", "epoch", "vo", "description_id", "parameters")


def _of_one(*, keyed: bool, stamped: bool, pooled: bool) -> Select[Any] | CompoundSelect[Any]:
    ask: Said = {name: bindparam(name, type_=type_) for name, type_ in ASKED.items()}
    here = {name: ask[eligible] for name, eligible in _ELIGIBLE.items()}
    # A pool is looked for only where there is one: what is never carried out costs a tenth of the statement.
    waiting = (
        claimable(ask["task_queue_id"], **here)
        if pooled
        else in_order(ask["task_queue_id"]).where(jobs.c.submit_pool.is_(None))
    )
    first = (
        waiting.where(~_banned(ask["site"]), *([~_answered(ask)] if keyed else []))
        .limit(1)
        .with_for_update(of=[waiting_jobs, jobs], skip_locked=True, key_share=True)
        .cte("first")
    )
    its_id = select(first.c.job_id).scalar_subquery()
    given = (
        _give(its_id, ask["site"])
        .returning(*(jobs.c[name] for name in _COLUMNS), ask["number"].label("number"))
        .cte("given")
    )
    answer = _described(given)
    parts = claim_records.of(its_id, given, ask, keyed=keyed, stamped=stamped)
    if not keyed:
        return answer.add_cte(*parts)
    return union_all(answer, _said_before(ask["number"]).where(_answered(ask))).add_cte(*parts)


def _of_many() -> CompoundSelect[Any]:
    asked = select(statements.table_of("asks", ASKED, name="asked")).cte("asked")
    repeated = select(asked.c.number).where(_answered(dict(asked.c.items()))).cte("repeated")
    assigned = _assigned(asked, repeated)
    # As an array: the planner cannot know how few they are, and might read the whole table for a join.
    ids = any_(func.array(select(assigned.c.job_id).scalar_subquery()))
    given = (
        _give(ids, assigned.c.site)
        .where(jobs.c.job_id == assigned.c.job_id)
        .returning(
            *(jobs.c[name] for name in _COLUMNS),
            *(assigned.c[name] for name in ASKED if name != "task_queue_id"),
        )
        .cte("given")
    )
    parts = claim_records.of(ids, given, dict(given.c.items()), keyed=True, stamped=True)
    return union_all(_described(given), _said_before(repeated.c.number)).add_cte(*parts)


def _banned(site: ColumnElement[Any]) -> ColumnElement[bool]:
    return exists().where(site_bans.c.site == site, bans.HOLDS)


def _answered(ask: Said) -> ColumnElement[bool]:
    """The request has its answer: it was given jobs before."""
    return exists().where(
        match_requests.c.subject == ask["holder"], match_requests.c.request_id == ask["request_id"]
    )


def _assigned(asked: CTE, repeated: CTE) -> CTE:
    """Jobs that may be taken, each with its ask: the first of a task queue for the first, and so on."""
    free = (
        select(asked, _rank(asked.c.task_queue_id, asked.c.number))
        .where(asked.c.number.not_in(select(repeated.c.number)), ~_banned(asked.c.site))
        .cte("free")
    )
    wanted = (
        select(free.c.task_queue_id, func.count().label("count")).group_by(free.c.task_queue_id).cte("wanted")
    )
    first = (
        in_order(wanted.c.task_queue_id)
        .add_columns(waiting_jobs.c.priority)
        .limit(wanted.c.count)
        .with_for_update(of=[waiting_jobs, jobs], skip_locked=True, key_share=True)
        .lateral("first")
    )
    rank = _rank(wanted.c.task_queue_id, first.c.priority.desc(), first.c.job_id)
    picked = (
        select(wanted.c.task_queue_id, first.c.job_id, rank)
        .select_from(wanted.join(first, true()))
        .cte("picked")
    )
    its = and_(free.c.task_queue_id == picked.c.task_queue_id, free.c.rank == picked.c.rank)
    here = {name: free.c[eligible] for name, eligible in _ELIGIBLE.items()}
    # A job that is not for the place of its ask stays where it is.
    return (
        select(picked.c.job_id, free)
        .join(free, its)
        .join(jobs, jobs.c.job_id == picked.c.job_id)
        .where(eligible_here(free, **here))
        .cte("assigned")
    )


def _rank(group: ColumnElement[Any], *order: ColumnElement[Any]) -> Label[int]:
    return func.row_number().over(partition_by=group, order_by=order).label("rank")


def _give(ids: Any, site: ColumnElement[Any]) -> Update:
    return (
        update(jobs)
        .where(jobs.c.job_id == ids, jobs.c.status == JobStatus.WAITING.value)
        .values(site=func.coalesce(func.nullif(site, ""), "ANY"), **{**GIVEN, "updated_at": NOW})
    )


def _described(given: CTE) -> Select[Any]:
    # LATERAL … LIMIT: descriptions are looked up one by one, however many the planner thinks there are.
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


def _said_before(number: ColumnElement[Any]) -> Select[Any]:
    return select(number, *[null()] * 6)


#: Takes `asks`, a JSON list of objects with the names of `ASKED`, and `now`.
CLAIM_MANY = statements.compiled(_of_many(), "asks")
#: Takes the names of `ASKED`, and `now`; by whether there is a request_id, a stamp, and a SubmitPool.
CLAIM_ONE = {
    (keyed, stamped, pooled): statements.compiled(
        _of_one(keyed=keyed, stamped=stamped, pooled=pooled), *ASKED
    )
    for keyed in (False, True)
    for stamped in (False, True)
    for pooled in (False, True)
}
