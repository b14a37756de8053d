"""A service for all tests of a file, and the browser."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskqueue import database
from tests.browser import chromium, signed_in, windows
from tests.running_service import Service, running

__all__ = ["chromium", "signed_in", "windows"]

CONFIG = """
Resources:
  Sites:
    LCG.A.org:
      VO: [cms, dune]
      CEs:
        ce1:
          MaxRAM: 4000
          Queues:
            long: {CPUTime: 100000}
            short: {CPUTime: 3600, VOs: {dune: {MaxRAM: 8000}}}
    LCG.B.org:
      VO: [cms]
      CPUModel: Intel Xeon
      CEs:
        ce2:
          MaxRAM: 16000
          Queues:
            all: {CPUTime: 100000}
Operations:
  Defaults:
    JobDescription:
      Memory: {type: number, resource: MaxRAM, min: 1}
Registry:
  VO: {cms: {}, dune: {}}
  Groups:
    cms_user: {VO: cms}
    dune_user: {VO: dune}
"""


@pytest.fixture(scope="module")
def service(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("service")
    shutil.copy(sqlite_template, directory / "test.db")
    engine = database.connect(f"sqlite:///{directory / 'test.db'}")
    with running(engine, directory, CONFIG) as service:
        yield service
    engine.dispose()
