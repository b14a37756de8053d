"""Status files of a local job for its manager, in a shared directory: progress, output, end.

Each file is written under a temporary name and renamed, so it is complete or missing; the end comes last. The
manager does not trust their content: a payload of the same account may have written it.

Progress by phase is read from lines that the payload writes: `generated 117 of 250 events`. A payload's
output is not trusted: other lines are ignored, and sizes are limited.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pilotage.fabric.pilot.payload import payload
from pilotage.fabric.pilot.payload.payload import Report
from pilotage.fabric.pilot.service.service_client import LeaseAnswer
from pilotage.fabric.pilot.service.transport import Away

#: Maximum phases of one job.
MOST_PHASES = 16
#: Maximum number of units.
LARGEST = 10**12
_LINE = re.compile(
    r"(?P<name>[A-Za-z][\w .:/+-]{0,39}?):? +(?P<done>\d{1,13}) of (?P<of>\d{1,13})(?: .*)?", re.ASCII
)


@dataclass(frozen=True)
class Progress:
    """Progress of one phase."""

    name: str
    done: int
    of: int

    def __str__(self) -> str:
        return f"{self.name} {self.done} of {self.of}"


def read_progress(text: str, before: Iterable[Progress] = ()) -> tuple[Progress, ...]:
    """Read the progress from a payload's lines, added to `before`; the last line of a phase counts."""
    found = {each.name: each for each in before}
    for line in text.split("\n"):
        said = _LINE.fullmatch(line.strip())
        if said is None:
            continue
        of = min(int(said["of"]), LARGEST)
        progress = Progress(name=said["name"].strip(), done=min(int(said["done"]), of), of=of)
        if progress.name in found or len(found) < MOST_PHASES:
            found[progress.name] = progress
    return tuple(found.values())


def progress_from_status(raw: object) -> tuple[Progress, ...]:
    """Read the progress from a status file, which is not trusted: `[[name, done, of], …]`."""
    rows = raw if isinstance(raw, list) else []
    lines = [
        f"{row[0]} {row[1]} of {row[2]}"
        for row in rows[:MOST_PHASES]
        if isinstance(row, list) and len(row) == 3
    ]
    return read_progress("\n".join(line.replace("\n", " ") for line in lines))


def summed(each: Iterable[tuple[Progress, ...]], missing: Mapping[str, int]) -> tuple[Progress, ...]:
    """Sum up the progress of several jobs; `missing` are the units of jobs that have not reported one."""
    done: dict[str, int] = {}
    of: dict[str, int] = {}
    for phases in each:
        for phase in phases:
            done[phase.name] = done.get(phase.name, 0) + phase.done
            of[phase.name] = of.get(phase.name, 0) + phase.of
    return tuple(
        Progress(name=name, done=done[name], of=of[name] + missing.get(name, 0))
        for name in list(done)[:MOST_PHASES]
    )


NEWS, OUTPUT, END = "news", "output.tar.gz", "end"
#: Maximum bytes of a status file.
LONGEST = 16_000

#: Causes of an end: the payload, the job's description, or the site.
PAYLOAD, JOB, SITE = "payload", "job", "site"
#: Minor status of a local job that was ended by a signal, whatever its payload made of that.
ENDED_BY_BATCH_SYSTEM = "ended by the batch system"
#: Maximum characters of the payload's output in a status file.
_TAIL = 1500


@dataclass(frozen=True)
class LocalJobEnd:
    """How a local job ended, as it reported itself."""

    cause: str
    report: Report
    not_isolated: str = ""  #: why the payload was not isolated, where that was wanted


class StatusFiles:
    """Writer of the status files on the node.

    Every method raises `Away` if the directory cannot be written now.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def heartbeat(self, lease: str, facts: Mapping[str, object]) -> LeaseAnswer:
        """Write the progress; commands are never returned: the batch system ends the job."""
        del lease  # the directory identifies the job
        self._write(NEWS, io.BytesIO(json.dumps(facts, ensure_ascii=False).encode() + b"\n"))
        return LeaseAnswer(commands=(), heartbeat_seconds=None)

    def output(self, archive: Path) -> None:
        """Write the output archive."""
        with archive.open("rb") as source:
            self._write(OUTPUT, source)

    def end(self, end: LocalJobEnd) -> None:
        """Write how the job ended; the last file to be written."""
        said = (
            json.dumps({"cause": end.cause, "not_isolated": end.not_isolated, **end.report.as_json()}) + "\n"
        )
        self._write(END, io.BytesIO(said.encode()))

    def _write(self, name: str, source: BinaryIO) -> None:
        aside = self._directory / f"{name}.new"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with aside.open("wb") as target:
                shutil.copyfileobj(source, target)
                os.fsync(target.fileno())
            aside.replace(self._directory / name)
        except OSError as error:
            raise Away(f"{self._directory}: {error.strerror}") from error


def read_end(text: str) -> LocalJobEnd | None:
    """Read the end from a status file; None if it is invalid."""
    raw = _object(text)
    if raw.get("cause") not in (PAYLOAD, JOB, SITE):
        return None
    code = raw.get("exit_code")
    report = Report(
        status="Done" if raw.get("status") == "Done" else "Failed",
        minor_status=payload.printable(str(raw.get("minor_status", "")), 200),
        application_status=payload.printable(str(raw.get("application_status", "")), 500),
        exit_code=code if isinstance(code, int) and not isinstance(code, bool) and 0 <= code < 256 else None,
    )
    missing = payload.printable(str(raw.get("not_isolated", "")), 300)
    return LocalJobEnd(cause=str(raw["cause"]), report=report, not_isolated=missing)


def read_news(text: str) -> tuple[tuple[Progress, ...], str]:
    """Read the progress and the end of the output from a status file; empty if it is invalid."""
    raw = _object(text)
    return progress_from_status(raw.get("phases")), payload.printable(
        str(raw.get("output_tail") or ""), _TAIL
    )


def news(facts: Callable[[], Mapping[str, object]], phases: tuple[Progress, ...]) -> dict[str, object]:
    """Content of the status file: a pilot's heartbeat with phases, shortened to fit."""
    said = dict(facts())
    said["output_tail"] = payload.printable(str(said.get("output_tail") or "")[-_TAIL:], _TAIL)
    said["phases"] = [[each.name, each.done, each.of] for each in phases]
    return said


def _object(text: str) -> Mapping[str, Any]:
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):  # thousands of nested brackets
        return {}
    return raw if isinstance(raw, dict) else {}
