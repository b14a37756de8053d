"""Error messages and exit statuses of commands."""

import json
import os
import re
import sys
import traceback
import unicodedata
from collections.abc import Sequence
from importlib.util import find_spec

from typer.exceptions import TyperException

from pilotage import extensions
from pilotage.client.errors import CommandRefused as CommandRefused
from pilotage.client.errors import WrongUsage as WrongUsage
from requirements.errors import InvalidInput, PilotageError, format_count

REFUSED = 1  #: refused or not found
WRONG = 2  #: wrong usage or configuration
INTERRUPTED = 130  #: Ctrl-C, as shells count it

#: Problems to print of one rejected request.
_MOST_LINES = 20
#: A job of a submission in the path of a problem.
_JOB = re.compile(r"^jobs\[\d+\]")

#: Packages of the whole program.
_OURS = frozenset({"agents", "cs_config", "matcher", "optimizers", "pilotage", "requirements", "taskqueue"})

#: Errors that the user can correct; anything else is a bug and keeps its traceback.
SHOWN_ERRORS: tuple[type[Exception], ...] = (PilotageError, TyperException, OSError)


#: The optional dependency of `pyproject.toml` that installs a module.
EXTRAS = {
    "asyncssh": "ssh",
    "botocore": "s3",
    "opentelemetry": "otel",
    "psycopg": "postgresql",
    "redis": "redis",
    "rq": "redis",
}
#: Modules of the packages that machines with the commands only (dependency group `client`) do without.
BEYOND_CLIENT = frozenset(
    {"alembic", "cryptography", "fastapi", "jinja2", "jwt", "prometheus_client", "python_multipart"}
    | {"sqlalchemy", "starlette", "uvicorn"}
)


def show_error(error: Exception, *, as_json: bool) -> int:
    """Print `error` on standard error, one line for each problem, and return the exit status."""
    if as_json:
        lines = [json.dumps({"error": _as_json(error)}, default=str)]
    else:
        lines = [f"pilotage: {harmless(line)}" for line in _lines(error)]
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    return status_of(error)


def show(error: Exception, *, as_json: bool) -> int:
    """Print any error: one that the user can correct, a missing package, or a bug; the exit status."""
    if isinstance(error, MemoryError):  # of the host, or of the limit of this process
        error = CommandRefused("no memory is left")
    if isinstance(error, SHOWN_ERRORS):
        return show_error(error, as_json=as_json)
    missing = explain_missing(error) if isinstance(error, ModuleNotFoundError) else None
    return show_bug(error) if missing is None else show_error(missing, as_json=as_json)


def show_bug(error: Exception) -> int:
    """Print a bug of the program; its traceback only with PILOTAGE_DEBUG."""
    if os.environ.get("PILOTAGE_DEBUG"):
        traceback.print_exception(error)
    else:
        what = one_line(f"{type(error).__name__}: {error}")
        hint = "PILOTAGE_DEBUG=1 shows where"
        sys.stderr.write(f"pilotage: an error of the program itself, {harmless(what)} ({hint})\n")
    return REFUSED


def show_notes(error: BaseException) -> None:
    """Print what is known of work that was broken off, such as jobs that are submitted already."""
    sys.stderr.writelines(f"pilotage: {harmless(note)}\n" for note in getattr(error, "__notes__", ()))


def explain_missing(error: ModuleNotFoundError) -> CommandRefused | None:
    """How to install the package that is missing; None for a module that is not of our dependencies."""
    package = (error.name or "").partition(".")[0]
    if package in _OURS and find_spec("pilotage.service") is None:
        return CommandRefused(
            "this needs the whole program: install `pilotage` instead of `pilotage-client`, "
            "or in an environment of its own"
        )
    extra = EXTRAS.get(package)
    if extra is None and package not in BEYOND_CLIENT:
        return None
    command = f"{sys.executable} -m pip install 'pilotage{f'[{extra}]' if extra else ''}'"
    return CommandRefused(f"the package {package} is not installed; `{command}` installs it")


def status_of(error: Exception) -> int:
    """The exit status for `error`."""
    if isinstance(error, TyperException):
        return error.exit_code
    if isinstance(error, InvalidInput | WrongUsage):
        return WRONG
    http_status = getattr(error, "status", None)
    return WRONG if http_status in (400, 413, 422) else REFUSED


def _lines(error: Exception) -> list[str]:
    if isinstance(error, TyperException):
        return [one_line(_name_allowed(error).format_message())]
    if isinstance(error, InvalidInput):
        return [one_line(str(problem)) for problem in error.problems]
    if isinstance(error, OSError) and error.filename is not None:
        return [f"{error.filename}: {error.strerror}"]
    lines = _join_equal(_join_excerpts(str(error))) or [type(error).__name__]
    more = [f"… and {len(lines) - _MOST_LINES} more"] if len(lines) > _MOST_LINES else []
    return lines[:_MOST_LINES] + more


def _name_allowed(error: TyperException) -> TyperException:
    """The error of an option, which repeats a message of pydantic, with what the option allows instead."""
    from pydantic import ValidationError  # which Typer has loaded by then

    if isinstance(error.__cause__, ValidationError):
        from requirements.input_faults import list_faults

        error.message = "; ".join(each.message for each in list_faults(error.__cause__.errors()))
    elif error.message.startswith("No such command") and (hint := extensions.hint_at_absent()):
        error.message = f"{error.message.removesuffix('.')}{hint}"
    return error


def _join_equal(lines: Sequence[str]) -> list[str]:
    """Each problem of jobs once, with the first of them: equal jobs have equal problems."""
    found: dict[str | int, list[str]] = {}
    for number, line in enumerate(lines):
        found.setdefault(line[of_job.end() :] if (of_job := _JOB.match(line)) else number, []).append(line)
    return [
        first if not more else f"{first} (and {format_count(len(more), 'more job')})"
        for first, *more in found.values()
    ]


def _join_excerpts(text: str) -> list[str]:
    """The lines of a message; an indented line is an excerpt and joins the line before it."""
    lines: list[str] = []
    for line in text.splitlines():
        if lines and line.startswith(" "):
            lines[-1] += f"  {line.strip()}"
        elif line.strip():
            lines.append(line.strip())
    return lines


def one_line(text: str) -> str:
    """`text` with its lines joined."""
    return "  ".join(line.strip() for line in text.splitlines() if line.strip())


def harmless(text: str) -> str:
    """`text` with control characters escaped: it may come from untrusted users."""
    return text if text.isprintable() else "".join(map(_plain, text))


def _plain(sign: str) -> str:
    if sign in "\n\t" or not unicodedata.category(sign).startswith("C"):
        return sign
    return sign.encode("unicode_escape").decode()


def _as_json(error: Exception) -> dict[str, object]:
    if isinstance(error, PilotageError):
        return {"code": error.code, "message": str(error), "details": dict(error.details)}
    return {
        "code": "wrong_usage" if isinstance(error, TyperException) else "error",
        "message": _lines(error)[0],
    }
