"""What templates show: assets, formatted values, charts; and error pages."""

import gzip
import mimetypes
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Final, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from cs_config.source import diff, yaml_writer
from cs_config.source.diff import ABSENT
from pilotage import extensions
from pilotage.service.http_errors import NotHere
from requirements import canonical
from requirements.errors import format_count

_ASSETS = Path(__file__).parent / "assets"
_FOREVER = "public, max-age=31536000, immutable"
_ASK_AGAIN = "no-cache"

router = APIRouter(prefix="/assets", include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that is the same for everybody."""

    media_type: str
    content: bytes
    digest: str  #: of its content, shortened for its address
    packed: bytes  #: compressed by gzip

    @classmethod
    def from_content(cls, content: bytes, media_type: str) -> "Asset":
        """An asset with this content."""
        return cls(media_type, content, sha256(content).hexdigest()[:12], gzip.compress(content, mtime=0))


@cache
def list_assets() -> dict[str, Asset]:
    """All assets by name; read once."""
    return {path.name: _read(path) for path in sorted(_ASSETS.iterdir()) if path.is_file()}


def _read(path: Path) -> Asset:
    media_type = mimetypes.guess_type(path.name, strict=True)[0] or "application/octet-stream"
    return Asset.from_content(path.read_bytes(), media_type)


def address(name: str) -> str:
    """Address of an asset. It contains the digest, so that browsers may cache it forever."""
    return f"/assets/{name}?v={list_assets()[name].digest}"


@router.get("/{name}", response_class=Response)
@router.head("/{name}", response_class=Response)
async def asset(request: Request, name: str, v: str = "") -> Response:
    """Send an asset."""
    found = list_assets().get(name)
    if found is None:
        raise NotHere(f"there is no {name!r:.80} among the assets")
    return send(request, found, is_forever=v == found.digest)


def send(request: Request, found: Asset, *, is_forever: bool = False) -> Response:
    """Send an asset, compressed where the client takes that; 304 if the client has it."""
    headers = {
        "Cache-Control": _FOREVER if is_forever else _ASK_AGAIN,
        "ETag": f'"{found.digest}"',
        "Vary": "Accept-Encoding",
    }
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(found.packed, headers=headers, media_type=found.media_type)
    return Response(found.content, headers=headers, media_type=found.media_type)


#: Shown for a missing value.
NOTHING = "–"
#: Separator of groups of three digits: narrow, without a line break.
_GROUP = "\N{NARROW NO-BREAK SPACE}"
_NO_BREAK = "\N{NO-BREAK SPACE}"
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
#: Seconds within which a time is shown as "now".
_NOW = 1


@pass_context
def when(context: Context, value: datetime | None) -> Markup | str:
    """Format a time as relative to the template's `now`, with the exact time as title."""
    if value is None:
        return NOTHING
    exact = value.astimezone(UTC)
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        exact.isoformat(timespec="seconds").replace("+00:00", "Z"),
        f"{exact:%Y-%m-%d %H:%M:%S}",
        _relative(exact, context["now"]),
    )


def _relative(value: datetime, now: datetime) -> str:
    away = (now - value).total_seconds()
    if abs(away) < _NOW:
        return "now"
    length = duration(abs(away), parts=1)
    return f"{length} ago" if away > 0 else f"in {length}"


def duration(value: timedelta | float | None, parts: int = 2) -> str:
    """Format a duration (a number is in seconds) in its `parts` largest units, rounded to the last of them.

    Less than two of the only unit have a second one: rounded, 1 h 30 min would be the same as 2 h.
    """
    if value is None:
        return NOTHING
    seconds = round(value.total_seconds() if isinstance(value, timedelta) else float(value), 1)
    if abs(seconds) < 10 and seconds != int(seconds):
        return f"{seconds:.1f}{_NO_BREAK}s"
    units: list[str] = []
    left = round(abs(seconds))
    largest = next((place for place, (_, size) in enumerate(_UNITS) if left >= size), len(_UNITS) - 1)
    if left < 2 * _UNITS[largest][1]:
        parts = max(parts, 2)
    _, last = _UNITS[min(largest + parts, len(_UNITS)) - 1]
    left = (left + last // 2) // last * last
    for unit, size in _UNITS:
        if (number := left // size) or units:
            units.append(f"{number}{_NO_BREAK}{unit}")
        left %= size
    shown = [each for each in units[:parts] if not each.startswith(f"0{_NO_BREAK}")]
    return ("−" if seconds < 0 else "") + (" ".join(shown) or f"0{_NO_BREAK}s")


def count(value: float | None) -> str:
    """Format a number in groups of three digits."""
    if value is None:
        return NOTHING
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.3g}" if abs(value) < 1 else f"{value:,.1f}"
    return text.replace(",", _GROUP)


def numbered(value: int, one: str, many: str | None = None) -> str:
    """Format a number of things as `format_count`, in groups of three digits as `count`."""
    return format_count(value, one, many).replace(",", _GROUP)


def hours(seconds: float) -> str:
    """Format used time: in hours, if it is at least one."""
    return f"{count(seconds / 3600)}{_NO_BREAK}h" if seconds >= 3600 else duration(seconds)


def share(value: float | None) -> str:
    """Format a share of one in percent."""
    return NOTHING if value is None else f"{100 * value:.1f}{_NO_BREAK}%"


def percent(part: float, whole: float) -> float:
    """Part of a whole in percent; 0 of nothing."""
    return round(min(100.0, max(0.0, 100 * part / whole)), 2) if whole else 0.0


def quoted(word: str) -> str:
    """Quote a word of a command to copy, so that no name of a user is run by a shell."""
    return shlex.quote(word)


def written(value: object) -> str | None:
    """Format an entry of the configuration as in its file; None for ABSENT."""
    return None if value is ABSENT else yaml_writer.write_value(value)


#: Rows in the table below a chart: the newest steps.
_CHART_ROWS: Final = 24
#: Lines with a colour of their own; further ones are summed.
MOST_LINES: Final = 8
OTHERS: Final = "all others"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    """One quantity."""

    label: str
    tone: int | str  #: a colour of the style sheet: 1 to 8, a state; 0: the sum of others
    values: Sequence[float | None]  #: one for each time of the chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Quantities over the same times."""

    title: str
    note: str = ""  #: unit and step
    times: Sequence[datetime]  #: the oldest first
    lines: Sequence[ChartLine]  #: of stacked areas and bars, the lowest first
    kind: Literal["line", "area", "bars", "multiples"] = "line"  #: multiples: a plot for each line

    @property
    def data(self) -> dict[str, object]:
        """The data in the format of `chart.js`."""
        lines = [{"label": line.label, "tone": line.tone, "values": list(line.values)} for line in self.lines]
        return {"kind": self.kind, "times": [int(each.timestamp()) for each in self.times], "lines": lines}

    @property
    def rows(self) -> Sequence[tuple[datetime, Sequence[float | None]]]:
        """The newest times with their values, newest first."""
        places = range(len(self.times) - 1, max(-1, len(self.times) - 1 - _CHART_ROWS), -1)
        return [(self.times[place], [line.values[place] for line in self.lines]) for place in places]

    @property
    def is_empty(self) -> bool:
        """Whether all values are zero or missing."""
        return not any(value for line in self.lines for value in line.values)


def list_largest(values: Mapping[str, Sequence[float]]) -> list[ChartLine]:
    """The largest quantities in order of their sums, and one for the sum of the rest."""
    present = [name for name in values if any(values[name])]
    by_size = sorted(present, key=lambda name: (-sum(values[name]), name))
    found = [
        ChartLine(label=name, tone=tone, values=values[name])
        for tone, name in enumerate(by_size[:MOST_LINES], 1)
    ]
    if rest := by_size[MOST_LINES:]:
        summed = [sum(column) for column in zip(*(values[name] for name in rest), strict=True)]
        found.append(ChartLine(label=OTHERS, tone=0, values=summed))
    return found


_TEMPLATES = Path(__file__).parent / "templates"


@cache
def environment() -> Environment:
    """The template environment: everything is escaped, and an undefined name is an error."""
    made = Environment(
        loader=FileSystemLoader([_TEMPLATES, *extensions.list_templates()]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        cache_size=-1,
    )
    made.filters |= {
        each.__name__: each
        for each in (when, duration, count, numbered, hours, share, percent, quoted, written)
    }
    made.filters |= {"conditions": canonical.format_lines, "parameter": diff.format_entry}
    made.globals |= {"asset": address}
    return made


_NOT_STORED: Final = {"Cache-Control": "no-store"}


def respond(
    template: str, status: int = 200, headers: Mapping[str, str] = _NOT_STORED, /, **context: object
) -> HTMLResponse:
    """Render a template, a path below `templates/`."""
    text = environment().get_template(template).render(context)
    return HTMLResponse(text, status, headers=dict(headers))


#: Paths of the API always answer JSON.
_FOR_PROGRAMS = "/api/"
_TITLES = {
    400: "Invalid request",
    401: "Sign in first",
    403: "Not allowed",
    404: "Not found",
    409: "Changed by someone else",
    413: "Too large",
    422: "Invalid configuration",
    429: "Too many requests",
    503: "Not available now",
}


#: What a person can do about an error.
_ADVICE = {
    403: "The navigation has the pages of your role; an operator can give you another one.",
    404: "It may have been removed because of its age, or belong to somebody else.",
}


def is_wanted(request: Request) -> bool:
    """Whether the client is a browser that expects a page."""
    wants_html = "text/html" in request.headers.get("accept", "")
    return wants_html and not request.url.path.startswith(_FOR_PROGRAMS)


def render(request: Request, status: int, message: str, headers: Mapping[str, str]) -> HTMLResponse:
    """Render the error page; it needs neither a session nor the database, but has the navigation of one."""
    page = getattr(request.state, "page", None)
    is_plain = message == HTTPStatus(status).phrase
    return respond(
        "error.html",
        status,
        {**_NOT_STORED, **headers},
        status=status,
        heading=_TITLES.get(status, "An error of the service" if status >= 500 else "Refused"),
        message="There is no such page." if is_plain and status == HTTPStatus.NOT_FOUND else message,
        advice=_ADVICE.get(status, "") if page else "",
        path=request.url.path,
        **(page.frame if page else {}),
    )
