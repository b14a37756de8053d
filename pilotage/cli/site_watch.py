"""Advertising again and again what a command at a gateway counts."""

import json
import math
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable

from pilotage.cli.failures import WrongUsage, one_line
from pilotage.fabric.client import ApiError, Client, ServiceAway


def watch(client: Client, scope: str, command: str, *, every: float) -> None:
    """Advertise what the command counts, until interrupted; what fails is told, and tried again next time."""
    words = shlex.split(command)
    while True:
        began = time.monotonic()
        try:
            advertise(client, scope, words, patience=every)
        except (ServiceAway, ApiError, subprocess.SubprocessError, ValueError, WrongUsage) as error:
            sys.stderr.write(f"pilotage: {scope} was not advertised: {one_line(str(error))}\n")
        time.sleep(max(0.0, began + every - time.monotonic()))


def advertise(client: Client, scope: str, words: list[str], *, patience: float) -> None:
    """Fetch a watermark, then count, then advertise: in this order nothing is counted twice or not at all."""
    as_of = client.watermark(scope.partition("/")[0])
    try:
        run = subprocess.run(words, capture_output=True, text=True, timeout=max(patience, 1), check=True)
    except FileNotFoundError:
        raise WrongUsage(f"no command {words[0]}") from None
    client.advertise(scope, {**read(run.stdout), "as_of": as_of})


def read(text: str) -> dict[str, object]:
    """What a command printed: a JSON object, or lines of K=V."""
    if not text.lstrip().startswith("{"):
        return pairs(line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#"))
    said = json.loads(text)
    if not isinstance(said, dict):
        raise WrongUsage("the command prints JSON, but no object")
    return said


def pairs(words: Iterable[str]) -> dict[str, object]:
    """`CurrentJobs=12` … as names and values; numbers, true and false are such, all else is text.

    Raises:
        WrongUsage: One is not K=V.
    """
    found: dict[str, object] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name.strip():
            raise WrongUsage(f"{word!r:.80} is not K=V")
        found[name.strip()] = _value(value.strip())
    return found


def _value(text: str) -> object:
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if math.isfinite(number) else text
    return {"true": True, "false": False}.get(text.lower(), text)
