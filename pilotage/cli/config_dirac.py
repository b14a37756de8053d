"""`pilotage config import dirac` and `export dirac`."""

from pathlib import Path
from typing import Annotated

import typer

from cs_config import cfg_export, cfg_import
from pilotage.cli import config_offer, options, output, running_configuration
from pilotage.cli.config_edit import Guards, Message
from pilotage.cli.config_offer import Against, Apply, AsText, Wishes


def dirac(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A .cfg of DIRAC, today's layout or the one of RFC #5.")
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
    """Show what a configuration of DIRAC would change, and do to waiting jobs; with --apply, change it.

    It is laid over what is in force: its options win, what it does not name stays; what has no place is told.
    A node whose restriction cannot be carried over is closed (Enabled: false), else the import is refused.
    """
    wishes = Wishes(
        apply=apply, message=message, guards=guards, against=against, as_text=as_text, as_json=as_json
    )
    config_offer.import_file(cfg_import.propose, file, wishes, home=home, url=url)


def export_dirac(
    *,
    file: running_configuration.InsteadOfIt = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Print the configuration as a .cfg of DIRAC, today's layout; `config import dirac` reads it.

    On standard error: what cannot be said there.
    """
    config = running_configuration.or_of(file, home=home, url=url)
    found = cfg_export.export(config.tree)
    if as_json:
        data = {"text": found.text, "left_out": list(found.left_out)}
        output.emit(data, as_json=True, render=str)
        return
    for each in found.left_out:
        typer.echo(f"pilotage: {each}", err=True)
    typer.echo(found.text, nl=False)
