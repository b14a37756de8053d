"""Random runs against the model, on both databases: two minutes by default, hours if wanted.

    PILOTAGE_MODEL_MINUTES=120 PILOTAGE_MODEL_SEED=7 ./dev test -n 0 -s tests/nightly/model

A run that differs is shrunk: the test prints the seed and the shortest list of commands that was found, and
writes it to a file that `PILOTAGE_MODEL_REPEAT=FILE` runs again.
"""

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.servers.postgres import Postgres
from tests.nightly.model import harness
from tests.nightly.model.commands import Drawing
from tests.nightly.model.harness import Requests
from tests.nightly.model.machine import Command, Difference, Machine

#: Runs on each database, and commands of each: about a minute on an idle machine. Their number is
#: bounded, not the time, so that a busy machine tests the same.
_RUNS, _COMMANDS = 10, 80
#: Seconds for shrinking.
_SHRINKING = 240
#: Seconds that the service has for what it does in the background, while shrinking: each list that still
#: differs waits for so long.
_SHORT_PATIENCE = 10


@pytest.fixture(params=["sqlite", "postgresql"])
def installed(request: pytest.FixtureRequest, short_directory: Path) -> Iterator[Requests]:
    postgres: Postgres | None = None
    if request.param == "postgresql":
        postgres = request.getfixturevalue("postgres")
    directory = Path(tempfile.mkdtemp(prefix="model-", dir=short_directory))
    with harness.services(directory, postgres) as requests:
        yield requests


def _minutes() -> float:
    """Of each database; 0: the number of runs decides."""
    return float(os.environ.get("PILOTAGE_MODEL_MINUTES", "0")) / 2


@pytest.mark.timeout(max(1800, 120 * _minutes() + 1800))
def test_the_service_does_what_the_model_says(installed: Requests) -> None:
    seed = os.environ.get("PILOTAGE_MODEL_SEED", "1")
    repeated = os.environ.get("PILOTAGE_MODEL_REPEAT")
    if repeated:
        difference = _difference(installed, json.loads(Path(repeated).read_text()), {}, Counter())
        assert difference is None, difference
        return
    pools: dict[Any, str] = {}
    done: Counter[str] = Counter()
    end, run = time.monotonic() + 60 * _minutes(), 0
    while run < _RUNS if not _minutes() else time.monotonic() < end:
        commands = Drawing(f"{seed}/{run}").commands(_COMMANDS)
        difference = _difference(installed, commands, pools, done)
        if difference is not None:
            shortest, difference = _shrink(installed, commands, pools, difference)
            pytest.fail(_report(f"seed {seed}, run {run}", shortest, difference))
        run += 1
    print(f"model: seed {seed}, {run} runs, {installed.calls} requests, {dict(done)}")  # noqa: T201
    for each in ("matches", "pools compared queue by queue", "nothing proved right", "previews", "finished"):
        assert done[each], f"no {each}: these runs test less than they should"


def _difference(
    installed: Requests,
    commands: list[Command],
    pools: dict[Any, str],
    done: Counter[str],
    *,
    patience: float = harness.PATIENCE,
) -> str | None:
    """Run commands on sites of new names; what differs, if anything does."""
    machine = Machine(installed, pools, patience=patience)
    try:
        for command in commands:
            machine.apply(command)
        machine.end()
    except Difference as difference:
        return str(difference)
    finally:
        machine.clean_up()
        done.update(machine.done)
    return None


def _shrink(
    installed: Requests, commands: list[Command], pools: dict[Any, str], difference: str
) -> tuple[list[Command], str]:
    """Leave out commands, fewer at a time, as long as something differs: the shortest list found."""
    deadline = time.monotonic() + _SHRINKING
    size = len(commands) // 2
    while size and time.monotonic() < deadline:
        start = 1  # the configuration stays
        while start < len(commands) and time.monotonic() < deadline:
            fewer = commands[:start] + commands[start + size :]
            found = _difference(installed, fewer, dict(pools), Counter(), patience=_SHORT_PATIENCE)
            if found is None:
                start += size
            else:
                commands, difference = fewer, found
        size //= 2
    return commands, difference


def _report(name: str, commands: list[Command], difference: str) -> str:
    with tempfile.NamedTemporaryFile("w", prefix="model-", suffix=".json", delete=False) as file:
        json.dump(commands, file, indent=1)
    lines = "\n".join(map(json.dumps, commands))
    return f"{name}: {difference}\n{len(commands)} commands, PILOTAGE_MODEL_REPEAT={file.name}:\n{lines}"
