"""What the scripts of a site find out about its nodes.

Each executable of a directory prints lines: `name=value` is a fact, a single word is a tag. One that fails,
takes too long or prints anything else has said nothing; the pilot tells which, and goes on.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

log = logging.getLogger(__name__)

#: The fact that tells which probes failed.
FAILED = "ProbesFailed"
#: Seconds for each.
PATIENCE = 30.0
#: Bytes that one may print, lines of them, probes, and what all may say together: less than the service
#: takes.
_LONGEST, _MOST_LINES, _MOST_PROBES, _MOST_IN_ALL = 4096, 50, 50, 6000
_NAME = re.compile(r"[A-Za-z][\w.:/+-]{0,99}", re.ASCII)
_OURS = "PILOTAGE_"


class _Failure(Exception):
    """A probe is of no use; the message says why."""


@dataclass(frozen=True)
class Found:
    """What probes said."""

    facts: dict[str, object] = field(default_factory=dict)
    tags: tuple[str, ...] = ()


def run(directory: Path, environment: Mapping[str, str], *, patience: float = PATIENCE) -> Found:
    """Run all executables of a directory, in the order of their names; a later one wins.

    Args:
        directory: What is no executable file in it is passed over, as is what begins with a dot.
        environment: The pilot's; what is the pilot's own in it they do not see.
        patience: Seconds for each.
    """
    seen = {name: value for name, value in environment.items() if not name.startswith(_OURS)}
    said, failed = Found(), []
    for probe in _executables(directory):
        more = _run_one(probe, seen, patience)
        if isinstance(more, Found):
            more = _together(said, more)
        if isinstance(more, Found):
            said = more
        else:
            log.warning("probe %s: %s", probe.name, more)
            failed.append(f"{probe.name[:40]}: {more}"[:120])
    return replace(said, facts={**said.facts, FAILED: failed}) if failed else said


def _run_one(probe: Path, environment: Mapping[str, str], patience: float) -> Found | str:
    """What it says, or why it failed."""
    try:
        return _read(_output(probe, environment, patience))
    except (_Failure, OSError) as error:
        return str(error)


def _together(said: Found, more: Found) -> Found | str:
    found = Found({**said.facts, **more.facts}, tuple(dict.fromkeys((*said.tags, *more.tags))))
    if len(json.dumps([found.facts, found.tags])) > _MOST_IN_ALL:
        return f"with it all say more than {_MOST_IN_ALL} characters"
    return found


def _executables(directory: Path) -> list[Path]:
    try:
        files = sorted(file for file in directory.absolute().iterdir() if not file.name.startswith("."))
    except OSError as error:
        log.warning("probes: %s", error)
        return []
    found = [file for file in files if file.is_file() and os.access(file, os.X_OK)]
    return found[:_MOST_PROBES]


def _output(probe: Path, environment: Mapping[str, str], patience: float) -> str:
    with tempfile.TemporaryFile() as output:
        status = _status(probe, environment, patience, output)
        if status != 0:
            raise _Failure(f"ended with status {status}")
        size = output.seek(0, os.SEEK_END)
        if size > _LONGEST:
            raise _Failure(f"printed {size} bytes, allowed are {_LONGEST}")
        output.seek(0)
        try:
            return output.read().decode("utf-8")
        except UnicodeDecodeError:
            raise _Failure("printed something that is no text") from None


def _status(probe: Path, environment: Mapping[str, str], patience: float, output: BinaryIO) -> int:
    """Its exit status; nothing that it started runs on."""
    process = subprocess.Popen(
        [str(probe)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.DEVNULL,
        env=dict(environment),
        cwd="/",
        start_new_session=True,
    )
    try:
        return process.wait(patience)
    except subprocess.TimeoutExpired:
        raise _Failure(f"did not end within {patience:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _read(text: str) -> Found:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > _MOST_LINES:
        raise _Failure(f"printed {len(lines)} lines, allowed are {_MOST_LINES}")
    facts: dict[str, object] = {}
    tags: list[str] = []
    for line in lines:
        name, equals, value = (part.strip() for part in line.partition("="))
        if not _NAME.fullmatch(name):
            raise _Failure(f"{line[:40]!r} is neither name=value nor a tag")
        if equals:
            facts[name] = _value(value)
        else:
            tags.append(name)
    return Found(facts, tuple(tags))


def _value(text: str) -> object:
    """A number, a boolean, null or a list as JSON has them; else it is a text."""
    try:
        value = json.loads(text, parse_constant=str)
    except ValueError:
        return _printable(text)
    if isinstance(value, list) and all(_is_plain(each) for each in value):
        return value
    if value is None or _is_plain(value):
        return value
    return _printable(text)


def _is_plain(value: object) -> bool:
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return False
    if isinstance(value, float) and value - value != 0:
        return False
    return isinstance(value, (int, float)) or (isinstance(value, str) and value.isprintable())


def _printable(text: str) -> str:
    if not text.isprintable():
        raise _Failure(f"{text[:40]!r} has characters that cannot be printed")
    return text
