import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from pilotage.cli import engine as cli_engine
from pilotage.cli import wiring
from pilotage.cli.errors import CommandRefused
from pilotage.cli.settings import Settings


def test_a_database_that_goes_away_while_a_process_starts_is_an_error_in_one_line(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/pilotage.db"
    cli_engine.upgrade_schema(url)
    settings = Settings.model_construct(home=tmp_path, database_url=url)

    def start() -> None:
        with wiring.open_current_engine(settings) as engine, engine.connect() as connection:
            connection.execute(text("ATTACH DATABASE '/proc/nowhere/x.db' AS away"))

    with pytest.raises(CommandRefused, match="cannot be used: unable to open database"):
        start()


def test_a_process_of_agents_loads_no_web_framework() -> None:
    check = "import sys, pilotage.cli.processes.agent\nassert 'fastapi' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
