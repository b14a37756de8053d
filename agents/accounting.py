"""The accounting agent: what happened to jobs is added up, each change exactly once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, Engine

from agents import turn
from agents.turn import Turn
from taskqueue.accounting import flows, folding, log_reader, use, waits
from taskqueue.accounting.folding import Fold
from taskqueue.accounting.log_reader import Span

NAME: Final = "accounting"
#: Rows of the log in one transaction, and such transactions of one account in one cycle.
_MOST: Final = 10_000
_ROUNDS: Final = 50
#: How long numbers by the minute, sums by the hour, and how jobs moved at all are kept.
_MINUTES: Final = timedelta(days=3)
_HOURS: Final = timedelta(days=90)
_FLOWS: Final = timedelta(days=400)
#: Hours that one cycle folds at most of each; the next day goes on.
_PIECES: Final = 24 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Something that is added up from the log."""

    name: str
    count: Callable[[Connection, Span], None]
    lag: timedelta = timedelta()  #: how long after a change everything about it is known


ACCOUNTS: Final[Sequence[Account]] = (
    Account(name=flows.NAME, count=flows.count),
    Account(name=use.NAME, count=use.count),
    # By then the matchers have written what kept a job from pilots.
    Account(name=waits.NAME, count=waits.count, lag=timedelta(minutes=2)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountingResult:
    """How many rows of the log were read, by account."""

    read: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return False  # something happens all the time; nobody wants a line in the log for it


def cycle(engine: Engine, *, now: datetime, holder: str) -> AccountingResult | None:
    """Add up what happened since the last time.

    Args:
        engine: The database.
        now: The time.
        holder: This process, by a name that no other ever has.

    Returns:
        None: another process does this now.
    """
    mine = turn.take(engine, NAME, holder=holder, now=now)
    if mine is None:
        return None
    read = {account.name: _read(mine, account) for account in ACCOUNTS}
    if mine.last is None or mine.last.date() != now.date():
        _fold(mine)
    mine.finish()
    return AccountingResult(read=read)


def _read(mine: Turn, account: Account) -> int:
    with mine.writing() as conn:
        log_reader.note(conn, account.name)
    return mine.repeat(lambda conn: _count(conn, account, mine.now), most=_MOST, rounds=_ROUNDS)


def _fold(mine: Turn) -> None:
    """What is old is kept by longer times."""
    for fold, age in ((folding.FLOWS, _MINUTES), (folding.USE, _HOURS), (folding.WAITS, _HOURS)):
        _fold_one(mine, fold, mine.now - age)
    with mine.writing() as conn:
        folding.remove_flows(conn, before=mine.now - _FLOWS)


def _fold_one(mine: Turn, fold: Fold, before: datetime) -> None:
    mine.repeat(lambda conn: folding.step(conn, fold, before=before), most=1, rounds=_PIECES)


def _count(conn: Connection, account: Account, now: datetime) -> int:
    span = log_reader.following(conn, account.name, now=now, lag=account.lag, most=_MOST)
    if span is None:
        return 0
    log_reader.advance(conn, account.name, span)
    account.count(conn, span)
    return span.rows
