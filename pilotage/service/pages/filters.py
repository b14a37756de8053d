"""How pages write times, durations and numbers."""

from datetime import UTC, datetime, timedelta

from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup

#: What stands where there is no value.
NOTHING = "–"
#: Between groups of three digits: narrow, and no line breaks there.
_GROUP = "\N{NARROW NO-BREAK SPACE}"
_NO_BREAK = "\N{NO-BREAK SPACE}"
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
#: Seconds within which something happens just now.
_NOW = 1


@pass_context
def when(context: Context, value: datetime | None) -> Markup | str:
    """A time as how long ago it was, the exact one beside it; the template knows `now`."""
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
    """A length of time in its largest units.

    Args:
        value: Seconds, if it is a number.
        parts: How many units.
    """
    if value is None:
        return NOTHING
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if abs(seconds) < 10 and seconds != int(seconds):
        return f"{seconds:.1f}{_NO_BREAK}s"
    said: list[str] = []
    left = abs(int(seconds))
    for unit, size in _UNITS:
        if (number := left // size) or said:
            said.append(f"{number}{_NO_BREAK}{unit}")
        left %= size
    shown = [each for each in said[:parts] if not each.startswith(f"0{_NO_BREAK}")]
    return ("−" if seconds < 0 else "") + (" ".join(shown) or f"0{_NO_BREAK}s")


def count(value: float | None) -> str:
    """A number in groups of three digits."""
    if value is None:
        return NOTHING
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.6g}" if abs(value) < 1 else f"{value:,.1f}"
    return text.replace(",", _GROUP)


def share(value: float | None) -> str:
    """A part of one, in percent."""
    return NOTHING if value is None else f"{100 * value:.1f}{_NO_BREAK}%"
