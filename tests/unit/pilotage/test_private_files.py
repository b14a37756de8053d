"""Files of an installation are its own, whatever the umask of the process."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.fabric.batch import work_area
from pilotage.fabric.pilot import job_files
from pilotage.service.auth import keys
from taskqueue.blob_stores.directory import DirectoryStore
from taskqueue.db import database


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(directory: Path) -> set[str]:
    """The modes of a directory and of all in it."""
    return {oct(path.stat().st_mode & 0o777) for path in (directory, *directory.rglob("*"))}


def test_a_database_and_its_log_are_private(tmp_path: Path) -> None:
    engine = database.connect(f"sqlite:///{tmp_path / 'p.db'}")
    with database.writing(engine) as conn:
        conn.exec_driver_sql("CREATE TABLE t (x INTEGER)")
        assert {path.suffix for path in tmp_path.iterdir()} >= {".db", ".db-wal"}
        assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()} == {"0o600"}
    engine.dispose()


def test_archives_are_private(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "blobs")
    store.store(store.stage([b"archive"], limit=100))
    assert modes(tmp_path / "blobs") == {"0o700", "0o600"}


def test_a_signing_key_and_its_directory_are_private(tmp_path: Path) -> None:
    keys.load_or_create(tmp_path / "home" / "signing-key.pem")
    assert modes(tmp_path / "home") == {"0o700", "0o600"}


def test_files_of_batch_jobs_are_private(tmp_path: Path) -> None:
    job_files.write(str(tmp_path / "batch"), "stamp/job", b"#!/bin/sh\n", executable=True)
    job_files.write(str(tmp_path / "batch"), "stamp/order", b"{}")
    assert modes(tmp_path / "batch") == {"0o700", "0o600"}


def test_output_of_batch_jobs_is_private(tmp_path: Path) -> None:
    area = tmp_path / "area"
    job_files.write(str(area), "job", b"#!/bin/sh\necho begun\n", executable=True)
    subprocess.run(["sh", "-c", work_area.wrapper(str(area))], check=True)
    assert (area / "out").read_text() == "begun\n"
    assert modes(area) == {"0o700", "0o600"}
