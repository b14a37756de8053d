import gc

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
