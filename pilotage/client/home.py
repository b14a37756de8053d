"""The home directory of an installation, and the names of its settings."""

from collections.abc import Mapping
from pathlib import Path

#: The settings file in the home directory.
SETTINGS_FILE = "pilotage.yaml"
#: Of the environment variables that hold settings.
PREFIX = "PILOTAGE_"


def default_home(environment: Mapping[str, str]) -> Path:
    """`$XDG_DATA_HOME/pilotage`, where the XDG default stands in for an unset variable."""
    data = environment.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "pilotage"
