"""Handlers of somebody else's that break, hang or answer nonsense: it ends their grid job only."""

import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pilotage.fabric.manager.job_types import (
    Generic,
    LocalCommand,
    UnfitJob,
    call_handler,
    checked_command,
    checked_files,
)

HANDLER = Generic()


@pytest.mark.parametrize(
    "stated",
    [
        {"words": ()},
        {"words": "/bin/true"},
        {"words": (Path("/bin/true"),)},
        {"words": None},
        {"environment": None},
        {"environment": {"A": 5}},
        {"size": "many"},
        {"size": object()},
        {"size": -1},
        {"size": 10**30},
        {"details": {"a": None}},
        {"details": {"": 1}},
        {"details": {"a": "b\n"}},
        {"details": {"a": float("nan")}},
        {"details": dict.fromkeys(map(str, range(11)), 1)},
    ],
)
def test_a_command_that_neither_book_nor_script_can_take_is_refused(stated: Mapping[str, Any]) -> None:
    command = LocalCommand(**{"words": ("/bin/true",), **stated})
    with pytest.raises(UnfitJob, match=f"the handler Generic broke: TypeError.*{next(iter(stated))}"):
        call_handler(HANDLER, lambda: checked_command(command))


@pytest.mark.parametrize("files", [{"a": "text"}, {"a": 5}, {3: b""}, {"a/b": b""}, {"a\0": b""}, {"": b""}])
def test_files_that_cannot_be_brought_along_are_refused(files: Any) -> None:
    with pytest.raises(UnfitJob):
        call_handler(HANDLER, lambda: checked_files(files))


def test_what_is_as_it_should_be_is_taken_as_it_is() -> None:
    command = LocalCommand(
        words=("run", "1"), environment={"A": "b"}, size=0, details={"Run": 5, "Log": "https://x"}
    )
    assert call_handler(HANDLER, lambda: checked_command(command)) == command
    assert call_handler(HANDLER, lambda: checked_files({"part.json": b"{}"})) == {"part.json": b"{}"}


def test_a_handler_that_exits_ends_its_job_only() -> None:
    with pytest.raises(UnfitJob, match=r"the handler Generic broke: SystemExit\(3\)"):
        call_handler(HANDLER, lambda: sys.exit(3))


def test_a_handler_that_hangs_is_not_waited_for() -> None:
    hanging = threading.Event()
    try:
        with pytest.raises(UnfitJob, match=r"the handler Generic gave no answer within 0\.05 s"):
            call_handler(HANDLER, hanging.wait, patience=0.05)
    finally:
        hanging.set()
