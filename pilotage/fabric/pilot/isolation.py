"""Keeping a payload from what is not its own: by words that are put before those of the payload.

These words run as the pilot, so nothing that a job says may touch them: they get an environment of their own,
and that of the payload is read from a file when all doors are closed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pilotage.fabric.pilot import namespaces, work_area
from pilotage.fabric.pilot.host import HostTrouble
from pilotage.fabric.pilot.work_area import WorkArea

NONE, USERNS, APPTAINER, COMMAND = "none", "userns", "apptainer", "command"
KINDS = (NONE, USERNS, APPTAINER, COMMAND)

#: What a container sees of this host: the directories of the payload, and none of its variables.
_CONTAINER = (
    *("--containall", "--no-home", "--pwd", "{home}"),
    *("--bind", "{home}", "--bind", "{scratch}"),
    *("--bind", "{scratch}:/tmp", "--bind", "{scratch}:/var/tmp"),
)
#: The payload as the last words: first its environment, then itself.
_LAUNCH = ("/bin/sh", "-c", '. "$0" && exec "$@"')
#: Names that a shell can export; some belong to the shell.
_EXPORTABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OF_SHELL = frozenset({"_", "PPID", "UID", "EUID", "SHELLOPTS", "BASHOPTS", "IFS", "PS4"})
#: What the isolating words see of our environment.
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_SEEN_PREFIXES = ("APPTAINER", "SINGULARITY", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
#: Seconds for a try at the start; a container may have to be fetched first.
_PATIENCE = 900.0


@dataclass(frozen=True)
class Isolation:
    """How payloads are isolated."""

    kind: str = NONE
    words: tuple[str, ...] = ()  #: before the payload's; {home}, {scratch}, {area} are its directories

    @property
    def has_programs_of_host(self) -> bool:
        """Whether what a job calls by name is what this host has."""
        return self.kind != APPTAINER

    def wrapped(
        self, words: Sequence[str], payload: Mapping[str, str], own: Mapping[str, str], area: WorkArea
    ) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """Words and environment of what is executed instead of a payload.

        Args:
            words: Of the payload.
            payload: Its environment.
            own: The pilot's.
            area: Directories of the payload.
        """
        if self.kind == NONE:
            return tuple(words), payload
        directories = {"{home}": area.home, "{scratch}": area.scratch, "{area}": area.top}
        before = [_filled(word, directories) for word in self.words]
        variables = area.scratch / ".environment"
        variables.write_text(_assignments(payload), encoding="utf-8", errors="surrogateescape")
        return (*before, *_LAUNCH, str(variables), *words), _of_wrapper(own)


def choose(
    kind: str, *, command: str | None, image: str | None, hidden: Sequence[Path], own: Mapping[str, str]
) -> Isolation:
    """The isolation that was asked for.

    Args:
        kind: One of `KINDS`.
        command: Words: the wrapper, or what runs a container.
        image: Of the container.
        hidden: Files and directories that payloads do not see.
        own: The pilot's environment.

    Raises:
        ValueError: Something is missing for it, or makes no sense with it.
    """
    if (image is not None) != (kind == APPTAINER):
        raise ValueError(f"--isolation {kind}: --image goes with {APPTAINER}, and only with that")
    if command is not None and kind in (NONE, USERNS):
        raise ValueError(f"--isolation {kind}: takes no --isolation-command")
    if kind == NONE:
        return Isolation()
    if kind == USERNS:
        return Isolation(kind, _found(namespaces.words(hidden), kind, own))
    if kind == APPTAINER:
        runs = _words(command or "apptainer exec", kind)
        return Isolation(kind, _found((*runs, *_CONTAINER, str(image)), kind, own))
    if command is None:
        raise ValueError(f"--isolation {kind}: needs --isolation-command")
    return Isolation(kind, _found(_words(command, kind), kind, own))


def check(isolation: Isolation, *, below: Path, own: Mapping[str, str]) -> None:
    """Try it with a payload that does nothing: no job is to find out that it does not work.

    Args:
        isolation: To be tried.
        below: Directory of the work areas.
        own: The pilot's environment.

    Raises:
        HostTrouble: It cannot be had on this host.
    """
    if isolation.kind == NONE:
        return
    try:
        status, said = _tried(isolation, below, own)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostTrouble(f"--isolation {isolation.kind}: {error}") from None
    if status != 0:
        raise HostTrouble(f"--isolation {isolation.kind} does not work here ({status}): {said}")


def _tried(isolation: Isolation, below: Path, own: Mapping[str, str]) -> tuple[int, str]:
    """Exit status and last words."""
    area = work_area.make(below, job_id=0, epoch=0)
    try:
        words, environment = isolation.wrapped(("/bin/sh", "-c", ":"), {}, own, area)
        done = subprocess.run(
            words,
            env=dict(environment),
            cwd=area.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
        )
    finally:
        area.remove()
    return done.returncode, " ".join(done.stderr.decode("utf-8", "replace").split())[-500:]


def _words(text: str, kind: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"--isolation-command: {error}") from None
    if not words:
        raise ValueError(f"--isolation {kind}: --isolation-command is empty")
    return words


def _found(words: tuple[str, ...], kind: str, own: Mapping[str, str]) -> tuple[str, ...]:
    """The words with the path of their program."""
    program, *rest = words
    path = shutil.which(program, path=f"{own.get('PATH', '')}:{_PATH}")
    if path is None:
        raise ValueError(f"--isolation {kind}: there is no {program} on this host")
    return (os.path.abspath(path), *rest)  # noqa: PTH100 - links stay what they are


def _filled(word: str, directories: Mapping[str, Path]) -> str:
    for name, directory in directories.items():
        word = word.replace(name, str(directory))
    return word


def _assignments(payload: Mapping[str, str]) -> str:
    """The environment as commands of a shell; what a shell cannot export is left out."""
    names = [name for name in payload if _EXPORTABLE.fullmatch(name) and name not in _OF_SHELL]
    return "".join(f"export {name}={shlex.quote(payload[name])}\n" for name in names)


def _of_wrapper(own: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in own.items() if name.startswith(_SEEN_PREFIXES)}
    return {"PATH": own.get("PATH") or _PATH, **kept}
