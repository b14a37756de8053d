"""The user's command for one local job: what differs from one to the next is put in its place."""

import shlex
from collections.abc import Mapping
from typing import Any

from pilotage.fabric.manager.errors import UnfitJob
from pilotage.fabric.manager.handlers import Command


def command(description: Mapping[str, Any], values: Mapping[str, int], *, size: int | None = None) -> Command:
    """The program with its arguments, where `{name}` stands for a value.

    Args:
        description: Of the grid job.
        values: By name; each is in the environment, too, under its name in capitals.
        size: Units that the local job does.

    Raises:
        UnfitJob: There is nothing to run, or the arguments cannot be separated into words.
    """
    executable = str(description.get("Executable") or "").strip()
    if not executable:
        raise UnfitJob("Executable: is missing")
    words = [_filled(word, values) for word in _words(description.get("Arguments"))]
    environment = {name.upper(): str(value) for name, value in values.items()}
    return Command(words=(executable, *words), environment=environment, size=size)


def _words(stated: object) -> list[str]:
    if stated is None:
        return []
    if isinstance(stated, list | tuple):
        return [str(word) for word in stated]
    try:
        return shlex.split(str(stated))
    except ValueError as error:
        raise UnfitJob(f"Arguments: {str(stated)!r:.80}: {error}") from None


def _filled(word: str, values: Mapping[str, int]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", str(value))
    return word
