"""What the pilot can say for sure about the node that it runs on.

Names that mean something to jobs are a matter between their users and the site: these are the ones that
every pilot says, and a file may say more.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from pilotage.fabric.pilot import gpus, operating_system

#: Told only where the queue asks for it: it is long, and pilots ask for work again and again.
LONG = "CPUFlags"
_CPUINFO = Path("/proc/cpuinfo")
#: Flags of a processor, and characters of one; beyond that it is something else.
_MOST_FLAGS = 500
_LONGEST_FLAG = 40


def measured(cpuinfo: Path = _CPUINFO) -> dict[str, object]:
    """Name to value; what cannot be found out is left out. A broken GPU driver may take 20 seconds."""
    found: dict[str, object] = {
        "Memory": memory(),
        "Cores": os.cpu_count(),
        "Architecture": platform.machine() or None,
        **_of_processors(_text(cpuinfo)),
        **operating_system.measured(),
        **gpus.measured(),
    }
    return {name: value for name, value in found.items() if value is not None}


def merged(*layers: Mapping[str, object]) -> dict[str, object]:
    """All facts; of those that only differ by capitals the later one wins."""
    found: dict[str, tuple[str, object]] = {}
    for layer in layers:
        found.update({name.casefold(): (name, value) for name, value in layer.items()})
    return dict(found.values())


def told(facts: Mapping[str, object], parameters: Mapping[str, object]) -> dict[str, object]:
    """The facts without what is long and not asked for.

    Args:
        facts: All that there are.
        parameters: Of the queue, by name in lower case.
    """
    asked = f"nodeattributes/{LONG.lower()}" in parameters
    return {name: value for name, value in facts.items() if value is not None and (asked or name != LONG)}


def memory() -> int | None:
    """MB of memory that this machine has."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    except (ValueError, OSError):
        return None


def read(path: Path) -> dict[str, object]:
    """The facts in a file: a JSON object.

    Raises:
        ValueError: It cannot be read, or holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--facts {path}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"--facts {path}: {type(found).__name__}, allowed is an object: name to value")  # noqa: TRY004  # of wrong usage, as all else here
    return found


def _text(cpuinfo: Path) -> str:
    try:
        return cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _of_processors(text: str) -> dict[str, object]:
    """What all processors have in common."""
    models, flags = set(), set()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            models.add(" ".join(value.split()))
        elif name.strip() in ("flags", "Features"):
            flags.add(value)
    return {"CPUModel": models.pop() if len(models) == 1 else None, LONG: _flags(flags)}


def _flags(seen: set[str]) -> list[str] | None:
    if len(seen) != 1:
        return None
    flags = sorted(set(seen.pop().split()))
    sane = flags and len(flags) <= _MOST_FLAGS and all(len(flag) <= _LONGEST_FLAG for flag in flags)
    return flags if sane else None
