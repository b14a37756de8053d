"""A campaign without libfaketime says which fault it leaves out."""

from pathlib import Path

import pytest

from tests.acceptance.campaign.__main__ import warn_of_clocks


def test_a_campaign_logs_that_it_changes_no_clocks(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    library = tmp_path / "libfaketime.so.1"
    warn_of_clocks(library)
    assert caplog.messages == [f"clocks are not changed: there is no {library} (Debian's libfaketime)"]
    caplog.clear()
    library.touch()
    warn_of_clocks(library)
    assert not caplog.messages
