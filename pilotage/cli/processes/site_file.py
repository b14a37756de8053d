"""Token files of directors and gateways; `invalid` is the class of the caller's errors."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from requirements.errors import InvalidInput, Problem

Once = Annotated[bool, typer.Option("--once", help="Run one cycle, print its result, and exit.")]


def read_token(file: Path, invalid: type[InvalidInput]) -> str:
    """The token in a file."""
    text = file.read_text(encoding="utf-8", errors="replace").strip()
    if not text or not text.isascii() or len(text.split()) != 1:
        raise invalid([Problem(path=str(file), message="holds no token")])
    return text


def token_reader(file: Path, invalid: type[InvalidInput]) -> Callable[[], str]:
    """A function that returns the current token of a file, or the previous one while the file has none."""
    last = read_token(file, invalid)

    def now() -> str:
        nonlocal last
        with suppress(OSError, invalid):
            last = read_token(file, invalid)
        return last

    return now
