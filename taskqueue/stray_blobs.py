"""Archives in the store that no VO has."""

from collections.abc import Collection

from sqlalchemy import Connection, bindparam, select

from taskqueue.tables import blobs

KNOWN = select(blobs.c.digest).where(blobs.c.digest.in_(bindparam("digests", expanding=True)))


def among(conn: Connection, digests: Collection[str]) -> frozenset[str]:
    """Those of the digests, a few hundred at most, that no VO has."""
    known = conn.execute(KNOWN, {"digests": sorted(digests)}).scalars()
    return frozenset(digests) - frozenset(known)
