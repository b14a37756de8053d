"""Output of commands: tables or JSON, lists read by pages, and reports of cycles."""

import dataclasses
import io
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Protocol

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pilotage.cli.errors import harmless

#: Width without a terminal: lines are not cut or wrapped, and a table is separated by tabs, for programs.
_UNLIMITED = 10_000

_COLOURS = {
    "good": "green",
    "passed": "green",
    "warning": "yellow",
    "bad": "red",
    "failed": "red",
    "Done": "green",
    "Running": "cyan",
    "Waiting": "yellow",
    "Failed": "red",
    "Stalled": "red",
    "Killed": "magenta",
}


Entry = Mapping[str, Any]
Column = str | Callable[[Entry], object]


def write_all_signs() -> None:
    """Escape characters that the encoding of standard output lacks, instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def console() -> Console:
    """Standard output."""
    return _plain_console(width=None if sys.stdout.isatty() else _UNLIMITED)


def is_interactive() -> bool:
    """Whether somebody at a terminal can answer a question."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def progress_console() -> Console:
    """Standard error, for progress."""
    return _plain_console(stderr=True)


def _plain_console(**settings: Any) -> Console:
    """A console that shows texts as they are: markup in them may come from untrusted users."""
    return Console(highlight=False, markup=False, emoji=False, **settings)


def emit(data: object, *, as_json: bool, render: Callable[[], RenderableType]) -> None:
    """Print `data` as JSON, or what `render` makes of it: of an empty text not even a line."""
    if as_json:
        from pilotage import hidden_signs  # imported late: without --json no command needs it

        is_utf8 = (sys.stdout.encoding or "").lower() in ("utf-8", "utf8")
        text = json.dumps(data, indent=2, default=str, ensure_ascii=not is_utf8)
        sys.stdout.write(hidden_signs.escape(text) + "\n")
        return
    rendered, shown = render(), console()
    if isinstance(rendered, Table) and shown.width == _UNLIMITED:
        sys.stdout.writelines(_separate_by_tabs(rendered))
    elif rendered != "":
        if left_out := fit_tables(rendered, shown.width):
            names = ", ".join(left_out)
            sys.stderr.write(f"Left out for the width of the terminal: {names}; --json shows all\n")
        shown.print(harmless(rendered) if isinstance(rendered, str) else rendered)


def _separate_by_tabs(rendered: Table) -> Iterator[str]:
    """The lines of a table for other programs, the headings first; a title goes to standard error."""
    if rendered.title:
        sys.stderr.write(f"{rendered.title}\n")
    columns = [[str(each.header), *map(str, each.cells)] for each in rendered.columns]
    for row in zip(*columns, strict=True):
        yield "\t".join(" ".join(text.split()) for text in row) + "\n"


#: Characters of the longest word that is never broken, such as the shortened id of a pool.
_LONGEST_WHOLE = 16
#: Characters to which columns of short phrases, such as a minor status, keep them in one line.
_PHRASE = 20
#: Characters of the longest text of such a column; others are of sentences, which break anywhere.
_LONGEST_PHRASE = 40
#: Characters between two columns.
_GAP = 3


def fit_tables(rendered: RenderableType, width: int) -> list[str]:
    """Make tables fit; the headings of the columns that are left out, on the right, where there is no room.

    Words stay whole, and so do numbers and ages, and short phrases.
    """
    if isinstance(rendered, Group):
        return [name for each in rendered.renderables for name in fit_tables(each, width)]
    return _fit_table(rendered, width) if isinstance(rendered, Table) else []


def _fit_table(rendered: Table, width: int) -> list[str]:
    texts = {id(each): [str(each.header), *map(str, each.cells)] for each in rendered.columns}
    whole = {
        key: max(len(line) for text in found for line in (text.splitlines() or [""]))
        for key, found in texts.items()
    }
    numbers = {id(each) for each in rendered.columns if each.justify == "right"}
    least = {
        key: whole[key]
        if key in numbers
        else max(
            min(_LONGEST_WHOLE, max(len(word) for text in found for word in (text.split() or [""]))),
            _measure_phrases(found[1:]),
        )
        for key, found in texts.items()
    }
    if sum(whole.values()) + _GAP * len(whole) <= width:
        return []
    left_out: list[str] = []
    while len(rendered.columns) > 1 and sum(least.values()) + _GAP * len(least) > width:
        column = rendered.columns.pop()
        del least[id(column)]
        left_out.insert(0, str(column.header))
    room = max(0, width - sum(least.values()) - _GAP * len(least))
    wanted = sum(whole[key] - number for key, number in least.items())
    for column in rendered.columns:
        key = id(column)
        column.width = least[key] + min(
            whole[key] - least[key], (whole[key] - least[key]) * room // max(1, wanted)
        )
    return left_out


def _measure_phrases(texts: Iterable[str]) -> int:
    longest = max((len(each) for each in texts if " " in each), default=0)
    return min(longest, _PHRASE) if longest <= _LONGEST_PHRASE else 0


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> Table:
    """A table; a heading that starts with `#` is that of a column of numbers."""
    shown = None if title is None else Text(harmless(title), style="table.title")
    result = Table(title=shown, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for heading in map(harmless, headings):
        if heading.startswith("#"):
            result.add_column(Text(heading[1:]), justify="right")
        else:
            result.add_column(Text(heading), overflow="fold")
    for row in rows:
        result.add_row(*(_styled(cell(value)) for value in row))
    return result


def list_table(columns: Mapping[str, Column], entries: Iterable[Entry], *, title: str | None = None) -> Table:
    """A table of entries: for each column its heading, and its key in an entry or a function of the entry."""
    rows = (
        [entry[each] if isinstance(each, str) else each(entry) for each in columns.values()]
        for entry in entries
    )
    return table(list(columns), rows, title=title)


def cell(value: object) -> str:
    """`value` as text of a table cell."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "; ".join(f"{harmless(str(name))} = {_inner(each)}" for name, each in value.items()) or "–"
    if isinstance(value, list | tuple | set | frozenset):
        parts = [*map(_inner, value)]
        return ("; " if any("," in part for part in parts) else ", ").join(parts) or "–"
    return harmless(str(value))


def _inner(value: object) -> str:
    """`value` as part of another one: a record in brackets, as in JDL."""
    return f"[{cell(value)}]" if isinstance(value, Mapping) and value else cell(value)


def _styled(text: str) -> Text:
    return Text(text, style=_COLOURS.get(text, ""))


def heading(field: str) -> str:
    """The heading of a column for a field of the interface: `Submit pool` for `submit_pool`."""
    return {"vo": "VO", "vos": "VOs", "url": "URL", "ce": "CE"}.get(field) or field.replace(
        "_", " "
    ).capitalize()


def facts(entries: Mapping[str, object], *, title: str) -> Table:
    """A table of names and values; times are local."""
    rows = (
        (heading(name), local_time(value) if name.endswith("_at") and isinstance(value, str) else value)
        for name, value in entries.items()
    )
    return table((title, ""), rows)


def local_time(text: str | None) -> str | None:
    """A time of the interface (RFC 3339) as `2026-03-28 12:00:05+01:00` in this machine's zone."""
    if not text:
        return None
    return datetime.fromisoformat(text).astimezone().isoformat(sep=" ", timespec="seconds")


def ago(text: str | None, now: datetime | None = None) -> str | None:
    """How long ago a time of the interface was: `12 s`, `3 min`, `2 h`, `5 d`."""
    if not text:
        return None
    seconds = int(((now or datetime.now(UTC)) - datetime.fromisoformat(text)).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{max(seconds, 0)} s"


#: Entries in one answer of the service.
PAGE = 1000

Limit = Annotated[int, typer.Option(metavar="N", min=1, help="Rows to show.")]

#: Reads one page, called with `limit` and with `after`, the `next` of the previous page.
ReadPage = Callable[..., Entry]


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedList:
    """The entries read of a list."""

    name: str  #: key of the entries in a response
    entries: Sequence[Entry]
    next: object = None  #: value of `--after` for the next page; None: this is the end
    total: int | None = None  #: entries of the whole list, if counted

    def emit(self, columns: Mapping[str, Column], *, as_json: bool) -> None:
        """Print the list; with a table, a line on standard error if there are more entries."""
        data = {self.name: self.entries, "next": self.next}
        emit(data, as_json=as_json, render=lambda: list_table(columns, self.entries))
        if self.next is not None and not as_json:
            sys.stderr.write(f"{self._format_size()}. More: --limit N; next page: --after {self.next}\n")

    def _format_size(self) -> str:
        if self.total is None:
            return f"Showing {len(self.entries):,} {self.name}, there are more"
        return f"Showing {len(self.entries):,} of {self.total:,} {self.name}"


def read_pages(name: str, page: ReadPage, *, limit: int | None = None, after: object = None) -> PagedList:
    """Read a list page by page, up to `limit` entries, from `after`, the `next` of a previous list."""
    found: list[Entry] = []
    while limit is None or len(found) < limit:
        answer = page(limit=PAGE if limit is None else min(PAGE, limit - len(found)), after=after)
        found += answer[name]
        after = answer["next"]
        if after is None:
            break
    return PagedList(name=name, entries=found, next=after)


class CycleSummary(Protocol):
    """The result of one cycle, a dataclass; its `str` is one line."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    kind: ClassVar[str]  #: of process, the name of its log
    at: datetime
    away: list[str]  #: services and batch systems that were unreachable

    def list_problems(self) -> list[str]:
        """All problems, also those of single VOs."""


def warn(message: str) -> None:
    """Print a warning of the service on standard error."""
    typer.echo(f"pilotage: warning: {harmless(message)}", err=True)


def report_cycle(summary: CycleSummary, *, as_json: bool) -> None:
    """Log the problems of a cycle, and print its result as one line of text or JSON."""
    problems = summary.list_problems()
    for line in (*summary.away, *problems):
        logging.getLogger(f"pilotage.{summary.kind}").warning("%s", line)
    if as_json:
        # `asdict` would turn a Counter into counts of its pairs.
        values = {each.name: getattr(summary, each.name) for each in dataclasses.fields(summary)}
        values["problems"] = problems
        sys.stdout.write(json.dumps(values, default=str) + "\n")
    else:
        console().print(harmless(f"{summary.at:%Y-%m-%d %H:%M:%SZ} {summary}"))
    sys.stdout.flush()


#: Columns of the local jobs of a grid job.
LOCAL_JOBS: Mapping[str, Column] = {
    "#Local job": "number",
    "State": "state",
    "#Tries": "tries",
    "Batch job": "reference",
    "Started": lambda each: local_time(each["started_at"]),
    "Ended": lambda each: local_time(each["ended_at"]),
    "#Exit code": "exit_code",
    "Details": lambda each: ", ".join(f"{name} {value}" for name, value in each["details"].items()),
    "Problem": "message",
}
