"""Options of commands that close or change something: why, and until when."""

from contextlib import suppress
from datetime import datetime

import typer
from typer.models import OptionInfo

from pilotage.cli.options import option

#: Forms of dates that 1.0.0 took, too: with months and days of one digit.
_DATE_FORMS = ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S")
#: What an option for a time to come allows.
_LOCAL_TIME = "2026-05-04, '2026-05-04 12:00' (local time without a zone) or 2026-05-04T12:00:00Z"


def time_option(text: str, *names: str) -> OptionInfo:
    """An option for a time to come, which the command gets with its zone, as ISO 8601."""
    return option("TIME", f"{text}: {_LOCAL_TIME}.", *names, convert=_convert_local_time)


def _convert_local_time(word: str | None) -> str | None:
    if word is None:
        return None
    moment: datetime | None = None
    with suppress(ValueError):
        moment = datetime.fromisoformat(word.strip())
    for form in _DATE_FORMS if moment is None else ():
        with suppress(ValueError):
            moment = datetime.strptime(word.strip(), form)  # noqa: DTZ007 - local time
    with suppress(ValueError, OverflowError):
        if moment is not None:
            return moment.astimezone().isoformat()
    raise typer.BadParameter(f"{word!r:.60} is not a time; allowed are {_LOCAL_TIME}")


def reason_option(text: str, *names: str) -> OptionInfo:
    """An option for a reason that people read; it may be left out where its command allows that."""
    return option("TEXT", text, *names, convert=_check_reason)


def _check_reason(word: str | None) -> str | None:
    if word and not word.strip():  # none at all is left to the command
        raise typer.BadParameter(f"{word!r:.60} is blank; state a reason")
    return word
