"""`pilotage config import osg`."""

from pathlib import Path
from typing import Annotated

import typer

from cs_config import factory_import
from pilotage.cli import config_offer, options
from pilotage.cli.config_edit import Guards, Message
from pilotage.cli.config_offer import Against, Apply, AsText, Wishes


def osg(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Its XML or YAML, or a tree as in examples/osg."),
    ],
    *,
    apply: Apply = False,
    message: Message = None,
    guards: Guards = None,
    against: Against = None,
    as_text: AsText = False,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Show what the entries of a glidein factory would change, and do to waiting jobs.

    With --apply, change it.

    An entry becomes a queue of its name; what has no place here is told. An entry whose
    restriction cannot be carried over is closed (Enabled: false).
    """
    wishes = Wishes(
        apply=apply, message=message, guards=guards, against=against, as_text=as_text, as_json=as_json
    )
    config_offer.import_file(factory_import.propose, file, wishes, home=home, url=url)
