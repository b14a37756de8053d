"""What waits, class by class, for those who look: counted along all waiting jobs."""

from collections.abc import Collection, Sequence

from sqlalchemy import Connection

from pilotage.service.parts import Parts
from taskqueue import waiting_classes
from taskqueue.waiting_classes import WaitingClass


def classes(parts: Parts, conn: Connection, vos: Collection[str] | None) -> Sequence[WaitingClass]:
    """The classes of these VOs (None: of all) that have waiting jobs; of very many as of a while ago."""
    question = None if vos is None else frozenset(vos)
    return parts.waiting.get(question, lambda: waiting_classes.read(conn, vos), now=parts.clock())
