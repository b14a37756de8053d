"""Answers to requests for work, by the `request_id` of the one who asked.

The row is written in the transaction of the claim, so an answer that got lost on its way is given again,
and the same request cannot claim twice: the second one waits for the first at the primary key.
"""

import json
from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Connection, bindparam, select, update
from sqlalchemy.sql.dml import Insert

from taskqueue.tables import match_requests as table
from taskqueue.upserts import Twins, Upsert


def _keep(insert: Upsert) -> Insert:
    return insert.on_conflict_do_nothing().returning(table.c.request_id)


RESERVE = Twins(table, _keep)
_THIS = (table.c.subject == bindparam("the_subject"), table.c.request_id == bindparam("the_request_id"))
ANSWERED = select(table.c.matches).where(*_THIS)
REMEMBER = update(table).where(*_THIS).values(matches=bindparam("the_matches"), at=bindparam("now"))


def reserve(conn: Connection, *, subject: str, request_id: str, now: datetime) -> list[int] | None:
    """Take the id for this transaction.

    Returns:
        None if it is new; else the jobs that the request was given before.
    """
    row = {"subject": subject, "request_id": request_id, "at": now, "matches": "[]"}
    if conn.execute(RESERVE.of(conn), row).one_or_none() is not None:
        return None
    this = {"the_subject": subject, "the_request_id": request_id}
    answered: list[int] = json.loads(conn.execute(ANSWERED, this).scalar_one())
    return answered


def remember(
    conn: Connection, *, subject: str, request_id: str, job_ids: Collection[int], now: datetime
) -> None:
    """Note what the request is given, before the transaction commits."""
    values = {
        "the_subject": subject,
        "the_request_id": request_id,
        "the_matches": json.dumps(sorted(job_ids)),
        "now": now,
    }
    conn.execute(REMEMBER, values)
