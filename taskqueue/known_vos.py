"""The VOs that have anything stored, found without reading all that they have."""

from sqlalchemy import ColumnElement, Connection, bindparam, func, select

from taskqueue.tables import blobs, jobs, pilots

_COLUMNS: tuple[ColumnElement[str], ...] = (jobs.c.vo, blobs.c.vo, pilots.c.vo)

#: The next VO in the order of the index.
NEXT = tuple(select(func.min(vo)).where(vo > bindparam("after")) for vo in _COLUMNS)


def stored(conn: Connection) -> frozenset[str]:
    """VOs with jobs, archives or pilots."""
    found: set[str] = set()
    for statement in NEXT:
        last = ""
        while (vo := conn.execute(statement, {"after": last}).scalar_one()) is not None:
            found.add(vo)
            last = vo
    return frozenset(found)
