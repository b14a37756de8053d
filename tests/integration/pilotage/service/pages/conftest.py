"""A service for all tests of a file, and the browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.chromium import chromium, signed_in, windows
from tests.support.service import Service, running_on_sqlite

__all__ = ["chromium", "signed_in", "windows"]


@pytest.fixture(scope="module")
def service(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_on_sqlite(sqlite_template, tmp_path_factory.mktemp("service")) as service:
        yield service
