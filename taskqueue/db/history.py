"""Detection of lost commits: a backup was restored, or a replica promoted that was behind.

Each home directory has a row that its processes alone raise, and stores the number of the last commit that
was acknowledged to it. A row behind that number shows a loss: no other process can hide it, as it could by
raising a number that all share. With synchronous replicas every acknowledged commit survives a failover,
unlike the state of a sequence, which others see before the transaction is committed.

A loss holds until the next incarnation (`incarnation.recover`), for all processes: the first that notices it
writes it into the row of the installation.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, bindparam, delete, exists, select, update

from taskqueue.db import clock, sql
from taskqueue.schema.tables import installation, job_log
from taskqueue.schema.tables import seen_commits as table

#: The row of a home directory without processes is removed after this time, and its absence shows nothing.
KEPT: Final = timedelta(days=30)

READ = select(
    installation.c.incarnation,
    (installation.c.lost_in == installation.c.incarnation).label("is_lost"),
    select(table.c.number).where(table.c.home == bindparam("home")).scalar_subquery().label("number"),
    exists().select_from(job_log).label("has_jobs"),
)
#: Processes that share a home by a copy of it, or without its lock, must not put the number back.
RAISE = sql.insert_or_raise(table, "number", "at")
#: Not after a recovery that another process has made meanwhile: its incarnation has lost nothing.
MARK = (
    update(installation)
    .where(installation.c.incarnation == bindparam("noticed_in"))
    .values(lost_in=installation.c.incarnation)
)
REMOVE = delete(table).where(table.c.at < bindparam("before", type_=table.c.at.type))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCommit:
    """What a home directory knows of the database."""

    home: str  #: key of its row
    incarnation: int = 0  #: in which it saw a commit last; 0: never
    number: int = 0  #: of its last acknowledged commit
    at: datetime | None = None  #: time of that commit
    is_lost: bool = False  #: commits of this incarnation were lost


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryState:
    """What the database knows of a home directory, and of its own losses."""

    incarnation: int
    is_lost: bool  #: a process noticed that commits of this incarnation were lost
    number: int | None  #: of the last commit of the home directory; None: it has no row
    has_jobs: bool  #: false in a database that was created anew
    now: datetime

    @property
    def is_new(self) -> bool:
        """Whether this is another database at the same address: it has neither the row nor jobs."""
        return self.number is None and not self.has_jobs

    def is_behind(self, seen: SeenCommit) -> bool:
        """Whether commits were lost since `seen`, without a recovery."""
        if self.is_new:
            return False
        if self.incarnation != seen.incarnation:
            return self.incarnation < seen.incarnation
        if self.number is None:
            return seen.at is not None and self.now - seen.at < KEPT
        return self.number < seen.number

    def has_loss(self, seen: SeenCommit) -> bool:
        """Whether commits of this incarnation were lost, as noticed now or earlier, by any process."""
        was_lost = seen.is_lost and self.incarnation <= seen.incarnation and not self.is_new
        return self.is_lost or was_lost or self.is_behind(seen)

    def next_commit(self, seen: SeenCommit) -> SeenCommit:
        """What the home directory knows after the commit of a transaction that has read this state."""
        if self.has_loss(seen):
            return replace(seen, incarnation=max(seen.incarnation, self.incarnation), is_lost=True)
        number = max(self.number or 0, seen.number) + 1
        return SeenCommit(home=seen.home, incarnation=self.incarnation, number=number, at=self.now)


def read_state(conn: Connection, home: str, *, now: datetime) -> HistoryState:
    """The current state; `now` is used on SQLite only."""
    row = conn.execute(READ, {"home": home}).one()
    return HistoryState(
        incarnation=row.incarnation,
        is_lost=bool(row.is_lost),
        number=row.number,
        has_jobs=bool(row.has_jobs),
        now=clock.read_time(conn, now),
    )


def record(conn: Connection, state: HistoryState, commit: SeenCommit) -> None:
    """Raise the row of a home directory to what it knows once the commit is acknowledged (`next_commit`).

    After a loss the row stays as it is, and the installation is marked instead.
    """
    if not commit.is_lost:
        values = {"home": commit.home, "number": commit.number, "at": commit.at}
        conn.execute(RAISE, values)
    elif not state.is_lost:
        conn.execute(MARK, {"noticed_in": state.incarnation})


def remove(conn: Connection, *, before: datetime) -> int:
    """Delete the rows of home directories whose processes committed last before that time; how many."""
    return conn.execute(REMOVE, {"before": before}).rowcount
