"""What a node runs, as it calls itself (os-release)."""

from __future__ import annotations

import shlex
from pathlib import Path

_OS_RELEASE = Path("/etc/os-release")
#: What the family of Red Hat calls one and the same: `platform:el9`.
_PLATFORM = "platform:"


def measured(os_release: Path = _OS_RELEASE) -> dict[str, object]:
    """`OS` such as `el9` or `debian12`, `OSName`, `OSVersion`; what it does not say is left out."""
    said = _said(os_release)
    name, version, platform = (said.get(key, "") for key in ("ID", "VERSION_ID", "PLATFORM_ID"))
    short = platform[len(_PLATFORM) :] if platform.startswith(_PLATFORM) else f"{name}{version}"
    found = {"OS": short, "OSName": name, "OSVersion": version}
    return {key: value for key, value in found.items() if value}


def _said(os_release: Path) -> dict[str, str]:
    """The assignments; their values are quoted as in a shell."""
    try:
        lines = os_release.read_text(encoding="utf-8", errors="replace").splitlines()
        words = shlex.split("\n".join(line for line in lines if "=" in line), comments=True)
    except (OSError, ValueError):
        return {}
    return dict(word.split("=", 1) for word in words if "=" in word)
