"""`pilotage pilot`: a pilot here, now."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from pilotage.cli import client_env, options, settings
from pilotage.fabric.pilot import main as pilot_main

#: The pilot reads its own flags: it runs also where nothing of this is installed.
_ITS_OWN_FLAGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("pilot", context_settings=_ITS_OWN_FLAGS)(pilot)


def pilot(context: typer.Context, *, home: options.Home = None) -> None:
    """Run a pilot here, now: --site S --ce C --queue Q; see `pilotage pilot --help`."""
    raise typer.Exit(pilot_main.main(context.args, _environment(context.args, home)))


def _environment(words: Sequence[str], home: Path | None) -> Mapping[str, str]:
    """Our environment; what it does not say about the service comes from `client.env`.

    The home directory is named in it, so that the pilot can hide that from payloads.
    """
    if "PILOTAGE_URL" in os.environ or "--url" in words:
        return os.environ
    found = settings.load({"home": home}).home
    return {**client_env.read(found), **os.environ, "PILOTAGE_HOME": str(found)}
