"""Settings and token files of directors and gateways; `invalid` is the class of the caller's errors."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
import yaml

from pilotage.cli import settings
from requirements.errors import InvalidInput, Problem

Once = Annotated[bool, typer.Option("--once", help="Run one cycle, print its result, and exit.")]


class _StrictLoader(yaml.SafeLoader):
    """Rejects duplicate names, of which YAML would silently take the last."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Check the names before those of `<<` are merged in."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if str(key.value) in lines:
                message = f"{key.value} stands twice, the first time in line {lines[str(key.value)]}"
                raise yaml.MarkedYAMLError(problem=message, problem_mark=key.start_mark)
            lines[str(key.value)] = key.start_mark.line + 1
        super().flatten_mapping(node)


def parse_file(file: Path, invalid: type[InvalidInput]) -> object:
    """The content of a YAML file."""
    return settings.load_yaml(file, invalid, _StrictLoader)


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
