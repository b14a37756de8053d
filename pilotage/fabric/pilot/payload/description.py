"""The description of a job as the pilot reads it, and the program that it names."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pilotage.fabric.pilot import allotment

STD_OUTPUT = "std.out"
STD_ERROR = "std.err"


class UnfitDescription(Exception):
    """The description cannot be run by any pilot."""


@dataclass(frozen=True)
class PayloadDescription:
    """The parts of a job's description that a pilot needs."""

    executable: str
    arguments: tuple[str, ...]
    std_output: str  #: path below the work directory
    std_error: str
    environment: Mapping[str, str]
    input_files: tuple[str, ...]  #: expected in the input sandbox
    output_sandbox: tuple[str, ...]  #: names, patterns and directories below the work directory
    wall_time: int | None  #: seconds; None: no limit of its own
    max_ram: int | None  #: MB; None: no limit of its own
    cpu_time: int | None  #: normalised seconds that the job requests
    image: str = ""  #: of the container that it runs in; empty: none
    memory_limit: tuple[int, int] | None = None  #: MB of overhead, and for each core; None: none of its own
    scratch: int | None = None  #: MB; None: no limit of its own


def read_description(body: Mapping[str, Any]) -> PayloadDescription:
    """Read a description from the service; raises `UnfitDescription`."""
    said = {name.lower(): value for name, value in body.items()}
    document = body.get("requirements")  # spelled like this; a record of Requirements is not
    executable = str(said.get("executable") or "").strip()
    if not executable:
        raise UnfitDescription("Executable: is missing")
    return PayloadDescription(
        executable=executable,
        arguments=_words(said.get("arguments")),
        std_output=str(said.get("stdoutput") or STD_OUTPUT),
        std_error=str(said.get("stderror") or STD_ERROR),
        environment=_environment(said.get("executionenvironment", said.get("environment"))),
        input_files=tuple(name for name in _texts(said.get("inputsandbox")) if _is_file(name)),
        output_sandbox=_texts(said.get("outputsandbox")),
        wall_time=allotment.read_number(said.get("maxwallclocktime")),
        max_ram=allotment.read_number(said.get("maxram")),
        cpu_time=allotment.read_number(said.get("cputime")),
        image=str(said.get("image") or "").strip(),
        memory_limit=_memory_limit(document),
        scratch=allotment.find_scratch(body),
    )


def _memory_limit(document: object) -> tuple[int, int] | None:
    """MB of overhead, and for each core; a part without a limit has twice what is requested of it.

    Source: the match-making specification of DiracX, v0.2, section 5.
    """
    memory = _section(_section(document, "cpu"), "ram_mb")
    requested, limit = _section(memory, "request"), _section(memory, "limit")
    overhead, per_core = (
        2 * (allotment.read_number(requested.get(part)) or 0)
        if limit.get(part) is None
        else allotment.read_number(limit[part]) or 0
        for part in ("overhead", "per_core")
    )
    return (overhead, per_core) if overhead or per_core else None


def _section(document: object, name: str) -> Mapping[str, Any]:
    """A section of a document, empty if there is none."""
    section = document.get(name) if isinstance(document, Mapping) else None
    return section if isinstance(section, Mapping) else {}


def _words(arguments: object) -> tuple[str, ...]:
    if arguments is None:
        return ()
    if isinstance(arguments, (list, tuple)):
        words = [str(word) for word in arguments]
    else:
        try:
            words = shlex.split(str(arguments))
        except ValueError as error:
            raise UnfitDescription(f"Arguments: {str(arguments)[:200]!r}: {error}") from None
    if any("\0" in word for word in words):
        raise UnfitDescription("Arguments: has a NUL character")
    return tuple(words)


def _environment(stated: object) -> dict[str, str]:
    """Variables by name; a list or a string with `;` contains `NAME=value`.

    Source: DIRAC's ExecutionEnvironment.
    """
    if not stated:
        return {}
    if isinstance(stated, Mapping):
        pairs = [(str(name), str(value)) for name, value in stated.items()]
    else:
        texts = stated.split(";") if isinstance(stated, str) else [str(each) for each in _listed(stated)]
        split = [text.partition("=") for text in texts if text.strip()]
        pairs = [(name, value) for name, _, value in split]
    wrong = [name for name, value in pairs if not name.strip() or "\0" in name + value or "=" in name]
    if wrong:
        raise UnfitDescription(f"ExecutionEnvironment: {wrong[0]!r} is not a valid name of a variable")
    return {name.strip(): value for name, value in pairs}


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _texts(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    return tuple(str(each) for each in _listed(value) if str(each).strip())


def _is_file(name: str) -> bool:
    """Whether an entry of InputSandbox names a file in the archive, not an archive or a logical file."""
    return not name.upper().startswith(("LFN:", "SB:", "SHA256:"))


class NotFound(Exception):
    """There is no such program; the message names the places searched."""


def find_program(name: str, *, home: Path, environment: Mapping[str, str], on_host: bool = True) -> str:
    """Find the path of a program.

    A bare name is searched in the work directory first, then in the payload's PATH; on this host only if
    `on_host`, else by the container. A file of the sandbox is made executable: archives made elsewhere often
    lose that.

    Raises:
        NotFound: It is in neither place.
    """
    path = PurePosixPath(name)
    if path.is_absolute():
        if on_host and not Path(name).is_file():
            raise NotFound(f"{name}: not on this host")
        if on_host and not os.access(name, os.X_OK):
            raise NotFound(f"{name}: not executable")
        return name
    if ".." in path.parts:
        raise NotFound(f"{name}: leads out of the work directory")
    own = home / path
    if own.is_file():
        if not os.access(own, os.X_OK):
            own.chmod(own.stat().st_mode | 0o100)
        return str(own)
    if len(path.parts) > 1:
        raise NotFound(f"{name}: not in the input sandbox")
    if not on_host:
        return name
    found = shutil.which(name, path=environment.get("PATH", os.defpath))
    if found is None:
        raise NotFound(f"{name}: neither in the input sandbox nor in PATH")
    return str(Path(found).absolute())
