"""Last part of the output of failed pilots, stored because their batch systems delete it."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, select
from sqlalchemy.sql.dml import Insert

from taskqueue.db.sql import DialectInsert, Upsert
from taskqueue.schema.tables import pilot_outputs as table


def _store(insert: DialectInsert) -> Insert:
    written = {name: insert.excluded[name] for name in ("stdout", "stderr", "stored_at")}
    return insert.on_conflict_do_update(index_elements=["stamp"], set_=written)


STORE = Upsert(table, _store)
GET = select(table).where(table.c.stamp == bindparam("the_stamp"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotOutput:
    """Last part of stdout and stderr of a pilot."""

    stdout: str
    stderr: str
    stored_at: datetime


def store_output(conn: Connection, stamp: str, output: PilotOutput) -> None:
    """Store the output of an existing pilot; replaces an earlier one."""
    values = {"stdout": output.stdout, "stderr": output.stderr, "stored_at": output.stored_at}
    conn.execute(STORE.to_statement(conn), {"stamp": stamp, **values})


def get_output(conn: Connection, stamp: str) -> PilotOutput | None:
    """Stored output of a pilot, if any."""
    row = conn.execute(GET, {"the_stamp": stamp}).one_or_none()
    return None if row is None else PilotOutput(stdout=row.stdout, stderr=row.stderr, stored_at=row.stored_at)
