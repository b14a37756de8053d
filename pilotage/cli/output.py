"""What commands print: a table for people, JSON for machines."""

import dataclasses
import io
import json
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Protocol

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

#: Not a terminal: nothing is cut or wrapped, a program may be reading.
_UNLIMITED = 10_000

_COLOURS = {
    "Done": "green",
    "Running": "cyan",
    "Waiting": "yellow",
    "Failed": "red",
    "Stalled": "red",
    "Killed": "magenta",
}


class Record(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


def write_all_signs() -> None:
    """Write what the encoding of standard output lacks as escapes, instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def console() -> Console:
    """Standard output."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _UNLIMITED)


def progress_console() -> Console:
    """Standard error, for what only a waiting person wants to see."""
    return Console(stderr=True, highlight=False)


def emit(data: object, *, as_json: bool, render: Callable[[], RenderableType]) -> None:
    """Print `data` as JSON, or what `render` makes of it."""
    if as_json:
        is_utf8 = (sys.stdout.encoding or "").lower() in ("utf-8", "utf8")
        sys.stdout.write(json.dumps(data, indent=2, default=str, ensure_ascii=not is_utf8) + "\n")
    else:
        console().print(render())


def fields(record: Record) -> dict[str, object]:
    """A record as JSON takes it; `asdict` would count the pairs of a counter."""
    return {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> Table:
    """A table; a heading that starts with `#` stands over numbers."""
    result = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for heading in headings:
        if heading.startswith("#"):
            result.add_column(heading[1:], justify="right")
        else:
            result.add_column(heading, overflow="fold")
    for row in rows:
        result.add_row(*(cell(value) for value in row))
    return result


def cell(value: object) -> str:
    """`value` as a person reads it."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "; ".join(f"{escape(str(name))} = {cell(each)}" for name, each in value.items()) or "–"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(cell(each) for each in value) or "–"
    text = escape(str(value))
    colour = _COLOURS.get(text)
    return f"[{colour}]{text}[/]" if colour else text


def heading(field: str) -> str:
    """A field of the interface as the heading of a column: `submit_pool` as `Submit pool`."""
    return "VO" if field == "vo" else field.replace("_", " ").capitalize()


def facts(entries: Mapping[str, object], *, title: str) -> Table:
    """Names with their values, one a line; times as people read them."""
    rows = (
        (heading(name), local_time(value) if name.endswith("_at") and isinstance(value, str) else value)
        for name, value in entries.items()
    )
    return table((title, ""), rows)


def escape(text: str) -> str:
    """`text` so that Rich reads no markup in it and the terminal no orders, whoever wrote it."""
    return harmless(text).replace("[", r"\[")


def harmless(text: str) -> str:
    """`text` with what a terminal would obey written as in a program: it may come from anybody."""
    return text if text.isprintable() else "".join(map(_plain, text))


def _plain(sign: str) -> str:
    if sign in "\n\t" or not unicodedata.category(sign).startswith("C"):
        return sign
    return sign.encode("unicode_escape").decode()


def local_time(text: str | None) -> str | None:
    """A time of the interface (RFC 3339) as `2026-03-28 12:00:05` in this machine's zone."""
    if not text:
        return None
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def ago(text: str | None, now: datetime | None = None) -> str | None:
    """How long ago a time of the interface was: `12 s`, `3 min`, `2 h`, `5 d`."""
    if not text:
        return None
    seconds = int(((now or datetime.now(UTC)) - datetime.fromisoformat(text)).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{max(seconds, 0)} s"
