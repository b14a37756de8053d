"""What a caller may ask of the accounts, and the answer.

What is whose is said in `told`: sums by VO and place go with jobs that are counted, those by owner with jobs
that are named.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from pilotage.service import told
from pilotage.service.callers import Caller
from pilotage.service.models.accounting import AccountingAnswer, AccountingQuery, AccountingRow
from requirements.errors import InvalidRequest, NotAllowed
from requirements.problem import Problem
from requirements.suggestion import did_you_mean
from requirements.values import fold
from taskqueue import whose
from taskqueue.accounting import report
from taskqueue.accounting.keys import hour_of
from taskqueue.accounting.report import DIMENSIONS, Question, Which

#: Lines of one answer.
MOST: Final = 20_000

_PERSONAL: Final = ("owner", "owner_group")
_AGO = re.compile(r"(\d{1,5})(h|d|w)")
_UNITS: Final = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_LAST_WEEK: Final = "7d"
#: Nothing was before, and nothing is after now but what wrong clocks say.
_BEGINNING: Final = datetime(2000, 1, 1, tzinfo=UTC)
_WRONG_CLOCK: Final = timedelta(days=1)


def dimensions(caller: Caller) -> Sequence[str]:
    """By what the caller may have sums."""
    return [name for name in DIMENSIONS if name not in _PERSONAL or told.named(caller)]


def understand(caller: Caller, query: AccountingQuery, *, now: datetime) -> Question:
    """The question, narrowed to what is the caller's; what is not its own is as if it did not exist.

    Raises:
        InvalidRequest: A column, or a time, is none.
        NotAllowed: It asks who used what, and is not told that.
    """
    _check_columns(caller, query)
    since = max(_moment("from", query.since or _LAST_WEEK, now), _BEGINNING)
    until = min(_moment("to", query.until, now) if query.until else now, now + _WRONG_CLOCK)
    if since >= until:
        raise InvalidRequest([Problem(path="from", message=f"{since:%Y-%m-%d %H:%M} is not before the end")])
    return Question(
        by=list(dict.fromkeys(query.by)),
        bucket=query.bucket,
        since=hour_of(since),
        until=until,
        which=_visible(caller, query),
    )


def answer(conn: Connection, question: Question) -> AccountingAnswer:
    """The sums.

    Raises:
        InvalidRequest: There are too many to tell.
    """
    found = report.lines(conn, question, most=MOST)
    if found is None:
        message = f"these are more than {MOST} rows: ask for a shorter time, longer buckets or fewer columns"
        raise InvalidRequest([Problem(path="by", message=message)])
    by = list(question.by)
    return AccountingAnswer(
        since=question.since,
        until=question.until,
        by=by,
        bucket=question.bucket,
        rows=[AccountingRow.of(line, by) for line in found],
    )


def _check_columns(caller: Caller, query: AccountingQuery) -> None:
    unknown = [name for name in query.by if name not in DIMENSIONS]
    if unknown:
        raise InvalidRequest(
            [
                Problem(
                    path="by",
                    message=f"{name!r} is not among {', '.join(DIMENSIONS)}",
                    suggestion=did_you_mean(name, DIMENSIONS),
                )
                for name in unknown
            ]
        )
    named = {*query.by, *(name for name in DIMENSIONS if getattr(query, name) is not None)}
    if refused := sorted(named - set(dimensions(caller))):
        raise NotAllowed(f"{caller.role} is told what VOs used, not who in them: not by {', '.join(refused)}")


def _visible(caller: Caller, query: AccountingQuery) -> Which:
    asked = {
        name: None if (words := getattr(query, name)) is None else frozenset(words) for name in DIMENSIONS
    }
    if asked["vo"] is not None:
        asked["vo"] = frozenset(map(fold, asked["vo"]))
    is_personal = any(name in query.by or asked[name] is not None for name in _PERSONAL)
    allowed = told.named(caller) if is_personal else told.counted(caller)
    every, any_of = whose.split([each.of(vos=asked["vo"], sites=asked["site"]) for each in allowed])
    owner = None if every.owner is None else frozenset({every.owner})
    own = {"vo": every.vos, "site": every.sites, "owner": whose.both(owner, asked["owner"])}
    return Which(**{**asked, **own}, any_of=any_of)


def _moment(name: str, text: str, now: datetime) -> datetime:
    if ago := _AGO.fullmatch(text.strip()):
        return now - int(ago[1]) * _UNITS[ago[2]]
    try:
        moment = datetime.fromisoformat(text.strip())
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        message = f"{text!r:.60} is no time: 2026-03-28, 2026-03-28T12:00:00Z, 24h, 7d or 12w"
        raise InvalidRequest([Problem(path=name, message=message)]) from None
