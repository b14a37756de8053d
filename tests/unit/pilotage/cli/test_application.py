import gc
import subprocess
import sys

import pytest
import typer

from pilotage.cli import application


def test_no_garbage_is_collected_while_a_command_is_imported() -> None:
    seen = []

    def make() -> typer.Typer:
        seen.append(gc.isenabled())
        return application.overview()

    with pytest.raises(SystemExit):
        application.run(make, ["--version"], name="pilotage")
    assert seen == [False]
    assert gc.isenabled(), "long-running processes collect it"


_COUNTING = """
import gc, sys
from pilotage.cli import application
sys.argv = ["pilotage", "--version"]
try:
    application.main()
except SystemExit:
    print(gc.get_freeze_count() > 10_000)
"""


def test_modules_of_a_process_of_its_own_are_left_out_of_collections() -> None:
    done = subprocess.run([sys.executable, "-c", _COUNTING], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True"
