"""Configuration/Server: a configuration of DIRAC, from a file, for installations without DIRAC's own server.

It is served as the file has it, since clients read much that has no place in our tree. Its version is the
time of the file's last change, also where an older file takes its place.

Source: DIRAC 9.1, `TornadoConfigurationHandler.py`.
"""

import logging
import threading
import zlib
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cs_config.errors import ConfigError
from cs_config.formats import dirac_text
from cs_config.source.sections import merge_sections, to_plain
from pilotage.plugins.dirac import jencode
from pilotage.plugins.dirac.jencode import Result
from pilotage.plugins.dirac.peers import DiracCall, Method

_log = logging.getLogger(__name__)

#: Versions are compared as texts.
_VERSION: Final = "%Y-%m-%d %H:%M:%S.%f"
#: Nanoseconds between two versions at least.
_STEP: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedConfiguration:
    """One version of the configuration."""

    version: str
    data: str  #: text of the CFG, compressed by zlib, in base 64


class ConfigurationFile:
    """A file with a configuration of DIRAC, which is read again when it changes."""

    def __init__(self, path: Path) -> None:
        """Read the file; `OSError`, `ConfigError`."""
        self._path = path
        self._lock = threading.Lock()
        self._changed = self._version = self._read_time()
        self._current = self._load(self._version)

    @property
    def current(self) -> ServedConfiguration:
        """The newest readable version."""
        with self._lock:
            try:
                if (changed := self._read_time()) != self._changed:
                    self._changed = changed
                    # Clients take only newer versions, whatever happens to the clock.
                    version = max(changed, self._version + _STEP)
                    self._current, self._version = self._load(version), version
            except (OSError, UnicodeError, ConfigError) as fault:
                _log.warning("%s cannot be read, its last version is served: %s", self._path, fault)
            return self._current

    def _read_time(self) -> int:
        # A file that is moved here keeps the time of its content, which may be long ago.
        facts = self._path.stat()
        return max(facts.st_mtime_ns, facts.st_ctime_ns)

    def _load(self, moment: int) -> ServedConfiguration:
        version = datetime.fromtimestamp(moment / 1e9, UTC).strftime(_VERSION)
        own = dirac_text.read_text(f"DIRAC\n{{\nConfiguration\n{{\nVersion = {version}\n}}\n}}", "")
        given = dirac_text.read_text(self._path.read_text(), str(self._path), repeated={})
        tree: Any = to_plain(merge_sections(own, given))
        text = "\n".join(dirac_text.write_text(tree)) + "\n"
        return ServedConfiguration(version=version, data=b64encode(zlib.compress(text.encode(), 9)).decode())


def _served(call: DiracCall) -> ServedConfiguration:
    file: ConfigurationFile = call.request.app.state.configuration
    return file.current


def get_version(call: DiracCall) -> Result:
    """The version."""
    return jencode.ok(_served(call).version)


def get_data(call: DiracCall) -> Result:
    """The whole configuration."""
    return jencode.ok(_served(call).data)


def get_data_if_newer(call: DiracCall, version: str) -> Result:
    """The whole configuration, unless the client has it already."""
    served = _served(call)
    newer = {"data": served.data} if version < served.version else {}
    return jencode.ok({"newestVersion": served.version, **newer})


def is_writable(call: DiracCall) -> Result:  # noqa: ARG001
    """False: the configuration is changed in its file, not here."""
    return jencode.ok(False)  # noqa: FBT003  (DIRAC's)


METHODS: Final[Mapping[str, Method]] = {
    "getVersion": get_version,
    "getCompressedData": get_data,
    "getCompressedDataIfNewer": get_data_if_newer,
    "writeEnabled": is_writable,
}
