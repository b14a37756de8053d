"""Texts about errors that people read."""

import pytest

from requirements.errors import InvalidRequest, require_text


@pytest.mark.parametrize("blank", ["", " ", "\t\n", "\u00a0"])
def test_a_reason_has_more_than_blanks(blank: str):
    assert require_text("reason", f"{blank}the disk{blank}") == "the disk"
    with pytest.raises(InvalidRequest, match="reason: is blank, state a reason"):
        require_text("reason", blank)
