"""What `pilotage up` prints at its start."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pilotage.cli.processes import up

WARNING = "their jobs can reach Redis, which needs no password"


@pytest.mark.parametrize(
    ("site", "redis_url", "warns"),
    [
        ("LCG.A.org", "redis://127.0.0.1", True),
        ("LCG.A.org", "redis://:secret@127.0.0.1", False),
        ("LCG.A.org", "unix:///run/redis.sock", False),
        ("LCG.A.org", None, False),
        (None, "redis://127.0.0.1", False),
    ],
)
def test_local_pilots_beside_a_redis_without_a_password_are_warned_of(
    site: str | None, redis_url: str | None, warns: bool
) -> None:
    chosen: Any = SimpleNamespace(home=Path("/home"), site=site, pilots=2, redis_url=redis_url)
    config = SimpleNamespace(addresses=(), version=1)
    parts: Any = SimpleNamespace(live=SimpleNamespace(current=config), optimizer_queue=lambda: None)
    lines = up._banner_lines(chosen, parts, "http://127.0.0.1:8750")
    assert any(line.startswith(WARNING) for line in lines) is warns
