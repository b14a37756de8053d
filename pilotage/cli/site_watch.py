"""Advertising again and again what a command at a gateway counts."""

import json
import math
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pilotage.cli.failures import WrongUsage, one_line
from pilotage.fabric.client import ApiError, Client, ServiceAway

#: What only a shell understands, once what is quoted is taken away.
_SHELL = re.compile(r"[;|&<>`]|\$\(")
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.""", re.DOTALL)


def watch(client: Client, scope: str, command: str, *, every: float) -> None:
    """Advertise what the command counts, until interrupted; what fails is told, and tried again next time."""
    words = split(command)
    while True:
        began = time.monotonic()
        try:
            advertise(client, scope, words, patience=every)
        except (ServiceAway, ApiError, WrongUsage) as error:
            sys.stderr.write(f"pilotage: {scope} was not advertised: {one_line(str(error))}\n")
        time.sleep(max(0.0, began + every - time.monotonic()))


def advertise(client: Client, scope: str, words: list[str], *, patience: float) -> None:
    """Fetch a watermark, then count, then advertise: in this order nothing is counted twice or not at all."""
    as_of = client.watermark(scope.partition("/")[0])
    said = read(_printed(words, max(patience, 1)))
    warn(client.advertise(scope, {**said, "as_of": as_of}))


def split(command: str) -> list[str]:
    """The words of a command, which no shell reads.

    Raises:
        WrongUsage: It has none, an open quotation mark, or what only a shell understands.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise WrongUsage(f"--watch {command!r:.80}: {str(error).lower()}") from None
    if not words:
        raise WrongUsage("--watch: no command")
    if sign := _SHELL.search(_QUOTED.sub("", command)):
        instead = shlex.quote(f"sh -c {shlex.quote(command)}")
        raise WrongUsage(f"--watch: no shell reads {sign[0]!r}, write --watch {instead}")
    return words


def warn(answer: Mapping[str, Any]) -> None:
    """Say what the service found odd."""
    for each in answer.get("warnings", ()):
        sys.stderr.write(f"pilotage: {one_line(each)}\n")


def _printed(words: list[str], patience: float) -> str:
    """What a command prints.

    Raises:
        WrongUsage: It cannot be run, fails, takes too long, or prints no text.
    """
    name = words[0]
    try:
        run = subprocess.run(words, capture_output=True, text=True, timeout=patience, check=False)
    except FileNotFoundError:
        raise WrongUsage(f"no command {name}") from None
    except OSError as error:
        raise WrongUsage(f"{name} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise WrongUsage(f"{name} took longer than {patience:g} s and was ended") from None
    except UnicodeDecodeError:
        raise WrongUsage(f"{name} prints no UTF-8 text") from None
    if run.returncode:
        last = one_line((run.stderr.strip().splitlines() or [""])[-1])
        how = f"with status {run.returncode}" if run.returncode > 0 else f"by signal {-run.returncode}"
        raise WrongUsage(f"{name} ended {how}" + (f": {last:.200}" if last else ""))
    return run.stdout


def read(text: str) -> dict[str, object]:
    """What a command printed: a JSON object, or lines of K=V."""
    if not text.lstrip().startswith("{"):
        return pairs(line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#"))
    try:
        said: dict[str, object] = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise WrongUsage(f"no JSON object: {error.msg.lower()} in line {error.lineno}") from None
    return said


def pairs(words: Iterable[str]) -> dict[str, object]:
    """`CurrentJobs=12` … as names and values; numbers, true and false are such, all else is text.

    Raises:
        WrongUsage: One is not K=V, or a name is given twice.
    """
    found: list[tuple[str, object]] = []
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name.strip():
            raise WrongUsage(f"{word!r:.80} is not K=V")
        found.append((name.strip(), _value(value.strip())))
    return _once(found)


def _once(entries: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Names and values; which of two would count, nobody can tell."""
    names = Counter(name.lower() for name, _ in entries)
    for name, _ in entries:
        if names[name.lower()] > 1:
            raise WrongUsage(f"{name:.80} is given {names[name.lower()]} times")
    return dict(entries)


def _value(text: str) -> object:
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if math.isfinite(number) else text
    return {"true": True, "false": False}.get(text.lower(), text)
