"""Facts about the node: memory, processors, operating system, GPUs, and the power of a processor.

Names of facts that jobs refer to are agreed between users and site: these are the ones that every pilot
reports; a site can add more by probes or a file.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
from collections.abc import Mapping
from pathlib import Path

from pilotage.fabric.pilot.node.gpus import measure_gpus

_OS_RELEASE = Path("/etc/os-release")
#: Prefix of the common name of compatible Red Hat systems: `platform:el9`.
_PLATFORM = "platform:"


def measure_os(os_release: Path = _OS_RELEASE) -> dict[str, object]:
    """`OS` such as `el9` or `debian12`, `OSName`, `OSVersion`, from os-release; unknown ones are left out."""
    try:
        lines = os_release.read_text(encoding="utf-8", errors="replace").splitlines()
        # Values are quoted as in a shell.
        words = shlex.split("\n".join(line for line in lines if "=" in line), comments=True)
    except (OSError, ValueError):
        return {}
    said = dict(word.split("=", 1) for word in words if "=" in word)
    name, version, platform = (said.get(key, "") for key in ("ID", "VERSION_ID", "PLATFORM_ID"))
    short = platform[len(_PLATFORM) :] if platform.startswith(_PLATFORM) else f"{name}{version}"
    found = {"OS": short, "OSName": name, "OSVersion": version}
    return {key: value for key, value in found.items() if value}


#: A long fact, a hundred words and more.
FLAGS = "CPUFlags"
_CPUINFO = Path("/proc/cpuinfo")
#: Maximum number of processor flags and length of one; beyond them the file has another meaning.
_MOST_FLAGS = 500
_LONGEST_FLAG = 40
#: Characters of one text that services read.
_LONGEST_TEXT = 4096


def measure_facts(cpuinfo: Path = _CPUINFO, environment: Mapping[str, str] = os.environ) -> dict[str, object]:
    """Facts by name; unknown ones are left out. A broken GPU driver may take 20 seconds."""
    found: dict[str, object] = {
        "Memory": machine_memory(),
        "Cores": os.cpu_count(),
        "Architecture": platform.machine() or None,
        **_processor_facts(cpuinfo),
        **measure_os(),
        **measure_gpus(environment),
    }
    return {name: value for name, value in found.items() if value is not None}


def merge_facts(*layers: Mapping[str, object]) -> dict[str, object]:
    """Merge facts; of names that differ only in case, the later one wins."""
    found: dict[str, tuple[str, object]] = {}
    for layer in layers:
        found.update({name.casefold(): (name, value) for name, value in layer.items()})
    return dict(found.values())


def reportable_facts(facts: Mapping[str, object], parameters: Mapping[str, object]) -> dict[str, object]:
    """The facts as they are sent; names of the queue's parameters are in lower case.

    The processor's flags are a list only where the queue has a parameter for them, with which expressions
    compare it. Elsewhere they are one text: a service, which reads them with each request, takes 1 us for it
    instead of 13. It refuses longer texts, not longer lists.
    """
    found = {name: value for name, value in facts.items() if value is not None}
    flags = found.get(FLAGS)
    if isinstance(flags, list) and f"nodeattributes/{FLAGS.lower()}" not in parameters:
        text = " ".join(map(str, flags))
        found[FLAGS] = text if len(text) <= _LONGEST_TEXT else flags
    return found


def machine_memory() -> int | None:
    """Memory of this machine in MB."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    except (ValueError, OSError):
        return None


def read_facts(path: Path) -> dict[str, object]:
    """Read the facts from a file with a JSON object; raises ValueError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--facts {path}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"--facts {path}: {type(found).__name__}, allowed is an object: name to value")  # noqa: TRY004  # of wrong usage, as all else here
    return found


def _processor_facts(cpuinfo: Path) -> dict[str, object]:
    """Model and flags, if they are the same for all processors."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    models, seen = set(), set()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            models.add(" ".join(value.split()))
        elif name.strip() in ("flags", "Features"):
            seen.add(value)
    flags = sorted(set(seen.pop().split())) if len(seen) == 1 else []
    is_sane = flags and len(flags) <= _MOST_FLAGS and all(len(flag) <= _LONGEST_FLAG for flag in flags)
    return {"CPUModel": models.pop() if len(models) == 1 else None, FLAGS: flags if is_sane else None}
