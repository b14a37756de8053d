"""The version of the configuration, by which clients decide whether to read it."""

import os
import zlib
from base64 import b64decode
from pathlib import Path

from pilotage.plugins.dirac.configuration_server import ConfigurationFile, ServedConfiguration


def _text(served: ServedConfiguration) -> str:
    return zlib.decompress(b64decode(served.data)).decode()


def test_an_older_file_in_its_place_is_a_newer_version(tmp_path: Path):
    file, backup = tmp_path / "cs.cfg", tmp_path / "backup.cfg"
    file.write_text("A\n{\n  x = new\n}\n")
    served = ConfigurationFile(file)
    first = served.current
    backup.write_text("A\n{\n  x = old\n}\n")
    os.utime(backup, (1e9, 1e9))
    backup.replace(file)
    assert "x = old" in _text(served.current)
    assert served.current.version > first.version


def test_a_version_is_never_lower_than_the_one_before(tmp_path: Path):
    file = tmp_path / "cs.cfg"
    file.write_text("A\n{\n  x = 1\n}\n")
    os.utime(file, (4e9, 4e9))
    served = ConfigurationFile(file)
    first = served.current
    file.write_text("A\n{\n  x = 2\n}\n")
    assert "x = 2" in _text(served.current)
    assert served.current.version > first.version
    assert served.current is served.current
