"""`pilotage config import dirac` and `export dirac`."""

from pathlib import Path
from typing import Annotated

import typer

from cs_config import cfg_export, cfg_import, validate
from pilotage.cli import config_import, config_offer, options, output, running_configuration
from pilotage.cli.config_edit import Guards, Message
from pilotage.cli.config_offer import Offer, Wishes
from pilotage.cli.failures import WrongUsage

Against = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="Compare with this file instead of asking the service."),
]
Apply = Annotated[bool, typer.Option("--apply", help="Make it the configuration in force.")]
AsText = Annotated[bool, typer.Option("--yaml", help="Print the whole configuration that would result.")]


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
    """
    if apply and against is not None:
        raise WrongUsage("--apply changes what is in force, --file compares with a file: one of the two")
    config = validate.load_file(against) if against else running_configuration.fetch(home=home, url=url)
    found = cfg_import.propose(config, config_import.text_of(file), str(file))
    offer = Offer(proposal=found.proposal, notes=found.notes, message=message or f"imported {file.name}")
    wishes = Wishes(
        apply=apply, guards=guards or (), as_text=as_text, as_json=as_json, offline=against is not None
    )
    config_offer.present(offer, wishes, home=home, url=url)


def export_dirac(
    *,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Look into this file instead of asking the service.")
    ] = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Print the configuration as a .cfg of DIRAC, today's layout; `config import dirac` reads it.

    On standard error: what cannot be said there.
    """
    config = validate.load_file(file) if file else running_configuration.fetch(home=home, url=url)
    found = cfg_export.export(config.tree)
    if as_json:
        data = {"text": found.text, "left_out": list(found.left_out)}
        output.emit(data, as_json=True, render=str)
        return
    for each in found.left_out:
        typer.echo(f"pilotage: {each}", err=True)
    typer.echo(found.text, nl=False)
