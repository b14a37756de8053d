"""Accounting sums for a caller, also as CSV.

Visibility as in `auth.visibility`: sums by VO and place cover countable jobs, sums by owner named jobs.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from pilotage import hidden_signs
from pilotage.service.auth import visibility
from pilotage.service.auth.callers import Caller
from pilotage.service.models import StrictInput
from pilotage.service.models.jobs import Moment, Words, parse_moment, words
from pilotage.service.services import Services
from requirements.errors import InvalidRequest, NotAllowed, Problem, did_you_mean
from requirements.states import JobStatus
from requirements.values import fold
from taskqueue import ownership
from taskqueue.accounting import report
from taskqueue.accounting.report import DIMENSIONS, TimeBucket, UsageQuery, UsageRow
from taskqueue.accounting.sums import truncate_to_hour
from taskqueue.ownership import OwnershipFilter

#: Most rows in one answer.
MOST: Final = 20_000

_PERSONAL: Final = ("owner", "owner_group")
#: Bounds of the period: no data is older, and only wrong clocks make newer data.
_BEGINNING: Final = datetime(2000, 1, 1, tzinfo=UTC)
_WRONG_CLOCK: Final = timedelta(days=1)


#: Columns that sums are grouped by.
Columns = Annotated[list[Annotated[str, Field(max_length=40)]], BeforeValidator(words)]


class AccountingQuery(StrictInput):
    """Filter and grouping of sums; several values, separated by commas, mean any of them."""

    model_config = ConfigDict(populate_by_name=True)

    by: Columns = Field(
        default=["vo"],
        max_length=10,
        description="Any of vo, site, ce, queue, owner, owner_group, status.",
    )
    since: Moment = Field(
        default="7d", alias="from", description="A time (RFC 3339), a date, or how long ago: 24h, 7d."
    )
    until: Moment | None = Field(default=None, alias="to", description="The same forms; now if left out.")
    bucket: TimeBucket | None = Field(
        default=None, description="Sums for each hour, day, week …; left out: for the whole period."
    )
    vo: Words = None
    site: Words = None
    ce: Words = None
    queue: Words = None
    owner: Words = None
    owner_group: Words = None
    status: Words = None


class AccountingRow(BaseModel):
    """Sums for one combination of the values grouped by, which are further fields of the row."""

    model_config = ConfigDict(extra="allow")

    jobs: int = Field(description="Jobs that ended; a job that failed and was restarted ends again.")
    attempts: int = Field(description="Attempts that started and are over.")
    wall_seconds: float = Field(description="Wall time of attempts, in the hours in which it was spent.")
    core_seconds: float = Field(description="Wall time multiplied by the cores assigned to the job.")
    cpu_seconds: float = Field(description="CPU time, where pilots reported it.")
    cpu_efficiency: float | None = Field(
        description="CPU time by core time, of attempts with reported CPU time; null: there are none."
    )
    normalised_cpu_seconds: float = Field(description="CPU time multiplied by power, where measured.")
    waited: dict[str, float] = Field(description="Seconds that ended jobs waited, by cause.")


class AccountingAnswer(BaseModel):
    """The sums by time and values."""

    since: datetime = Field(serialization_alias="from")
    until: datetime = Field(serialization_alias="to")
    by: list[str]
    bucket: TimeBucket | None
    rows: list[AccountingRow]


def dimensions(caller: Caller) -> Sequence[str]:
    """The columns by which the caller may group."""
    return [name for name in DIMENSIONS if name not in _PERSONAL or visibility.may_see_names(caller)]


def read(parts: Services, caller: Caller, query: AccountingQuery) -> AccountingAnswer:
    """Read the sums; `InvalidRequest` if a column or time is invalid or there are too many rows.

    `NotAllowed` if they are by owners, and the caller may not see names.
    """
    now = parts.clock()
    _check_columns(caller, query)
    since = max(parse_moment("from", query.since, now), _BEGINNING)
    until = min(parse_moment("to", query.until, now) if query.until else now, now + _WRONG_CLOCK)
    if since >= until:
        raise InvalidRequest([Problem(path="from", message=f"{since:%Y-%m-%d %H:%M} is not before the end")])
    by = list(dict.fromkeys(query.by))
    since, until = truncate_to_hour(since.astimezone(UTC)), until.astimezone(UTC)
    which, any_of = _visible(caller, query)
    question = UsageQuery(by=by, bucket=query.bucket, since=since, until=until, which=which, any_of=any_of)
    with parts.replica.reading() as conn:
        found = report.read_rows(conn, question, most=MOST)
    if found is None:
        message = f"these are more than {MOST} rows: choose a shorter time, longer buckets or fewer columns"
        raise InvalidRequest([Problem(path="by", message=message)])
    rows = [_row(line, by) for line in found]
    return AccountingAnswer(since=since, until=until, by=by, bucket=query.bucket, rows=rows)


def _row(line: UsageRow, by: Sequence[str]) -> AccountingRow:
    use, efficiency = line.use, line.efficiency
    columns: dict[str, Any] = dict(zip(by, line.values, strict=True))
    return AccountingRow(
        **({} if line.at is None else {"at": line.at}) | columns,
        jobs=use.jobs,
        attempts=use.attempts,
        wall_seconds=use.wall_seconds,
        core_seconds=use.core_seconds,
        cpu_seconds=use.cpu_seconds,
        cpu_efficiency=None if efficiency is None else round(efficiency, 4),
        normalised_cpu_seconds=use.normalised_seconds,
        waited=dict(line.waited),
    )


def _check_columns(caller: Caller, query: AccountingQuery) -> None:
    allowed = ", ".join(DIMENSIONS)
    unknown = [
        Problem(
            path="by", message=f"{name!r} is not among {allowed}", suggestion=did_you_mean(name, DIMENSIONS)
        )
        for name in query.by
        if name not in DIMENSIONS
    ]
    unknown += [
        Problem(
            path="status",
            message=f"{word!r:.80} is not a status of a job",
            suggestion=did_you_mean(word, list(JobStatus)),
        )
        for word in query.status or ()
        if word not in list(JobStatus)
    ]
    if unknown:
        raise InvalidRequest(unknown)
    named = {*query.by, *(name for name in DIMENSIONS if getattr(query, name) is not None)}
    if refused := sorted(named - set(dimensions(caller))):
        raise NotAllowed(f"{caller.role} may see the use of VOs, not of persons: not by {', '.join(refused)}")


def _visible(
    caller: Caller, query: AccountingQuery
) -> tuple[dict[str, frozenset[str] | None], tuple[OwnershipFilter, ...]]:
    """Allowed values by dimension, and alternatives of which each row matches one."""
    values = {
        name: None if (words := getattr(query, name)) is None else frozenset(words) for name in DIMENSIONS
    }
    if values["vo"] is not None:
        values["vo"] = frozenset(map(fold, values["vo"]))
    is_personal = any(name in query.by or values[name] is not None for name in _PERSONAL)
    allowed = visibility.may_see_names(caller) if is_personal else visibility.may_count(caller)
    every, any_of = ownership.split_common(
        [each.narrow(vos=values["vo"], sites=values["site"]) for each in allowed]
    )
    owner = None if every.owner is None else frozenset({every.owner})
    own = {"vo": every.vos, "site": every.sites, "owner": ownership.intersect(owner, values["owner"])}
    return {**values, **own}, any_of


MEDIA_TYPE: Final = "text/csv"
_SUMS: Final = tuple(name for name in AccountingRow.model_fields if name != "waited")
#: Spreadsheets evaluate cells with these prefixes as formulas, and names are chosen by users.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def text(answer: AccountingAnswer) -> str:
    """Format as CSV: one line per row, one column per cause of waiting, in seconds."""
    causes = sorted({cause for row in answer.rows for cause in row.waited})
    names = [*(["at"] if answer.bucket else []), *answer.by]
    lines = [csv_line([*names, *_SUMS, *(f"waited_seconds: {cause}" for cause in causes)])]
    for row in answer.rows:
        cells = row.model_dump(mode="json")
        waited = [row.waited.get(cause, 0) for cause in causes]
        lines.append(csv_line([cells[name] for name in (*names, *_SUMS)] + waited))
    return "".join(lines)


def csv_line(values: Iterable[object]) -> str:
    """One line of CSV; texts that a spreadsheet would take for a formula are quoted.

    Control characters are escaped: commands write it to a terminal as it is.
    """
    written = io.StringIO()
    csv.writer(written, lineterminator="\r\n").writerow(map(_make_harmless, values))
    return written.getvalue()


def _make_harmless(value: object) -> object:
    if not isinstance(value, str):
        return value
    return hidden_signs.escape(f"'{value}" if value.startswith(_FORMULA) else value)
