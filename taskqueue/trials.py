"""Which jobs the sweep has in hand: what is still noted when its process is gone was perhaps its end."""

from collections.abc import Mapping, Sequence

from sqlalchemy import BindParameter, Connection, bindparam, case, delete, select
from sqlalchemy.sql.dml import Insert

from taskqueue.tables import trials as table
from taskqueue.upserts import Twins, Upsert

_IDS: BindParameter[int] = bindparam("ids", expanding=True)


def _begin(insert: Upsert) -> Insert:
    # Of a holder that goes on itself the note was left by an error that it survived.
    one_more = case((table.c.holder == insert.excluded.holder, 0), else_=1)
    return insert.on_conflict_do_update(
        index_elements=["job_id"],
        set_={"crashes": table.c.crashes + one_more, "holder": insert.excluded.holder},
    )


BEGIN = Twins(table, _begin)
END = delete(table).where(table.c.job_id.in_(_IDS), table.c.holder == bindparam("the_holder"))
LEFT = select(
    table.c.job_id,
    (table.c.crashes + case((table.c.holder == bindparam("the_holder"), 0), else_=1)).label("crashes"),
).where(table.c.job_id.in_(_IDS))


def crashes(conn: Connection, job_ids: Sequence[int], *, holder: str) -> Mapping[int, int]:
    """How many processes ended while they had the job in hand; jobs without any are left out.

    Args:
        conn: Any connection.
        job_ids: The jobs.
        holder: The process that asks, which is not at its end.
    """
    rows = conn.execute(LEFT, {"ids": list(job_ids), "the_holder": holder})
    return {row.job_id: row.crashes for row in rows if row.crashes}


def begin(conn: Connection, job_ids: Sequence[int], *, holder: str) -> None:
    """Note that a process takes these jobs in hand; to be committed before it does."""
    conn.execute(
        BEGIN.of(conn), [{"job_id": each, "holder": holder, "crashes": 0} for each in sorted(job_ids)]
    )


def end(conn: Connection, job_ids: Sequence[int], *, holder: str) -> None:
    """It has come through with them."""
    conn.execute(END, {"ids": list(job_ids), "the_holder": holder})
