"""`pilotage config import osg`."""

from pathlib import Path
from typing import Annotated

import typer

from cs_config import factory_import, validate
from pilotage.cli import config_import, config_offer, options, running_configuration
from pilotage.cli.config_dirac import Against, Apply, AsText
from pilotage.cli.config_edit import Guards, Message
from pilotage.cli.config_offer import Offer, Wishes
from pilotage.cli.failures import WrongUsage


def osg(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="XML of a glidein factory, with its <entry> elements.")
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

    An entry becomes a queue of its name; what has no place here is told.
    """
    if apply and against is not None:
        raise WrongUsage("--apply changes what is in force, --file compares with a file: one of the two")
    config = validate.load_file(against) if against else running_configuration.fetch(home=home, url=url)
    found = factory_import.propose(config, config_import.text_of(file), str(file))
    offer = Offer(proposal=found.proposal, notes=found.notes, message=message or f"imported {file.name}")
    wishes = Wishes(
        apply=apply, guards=guards or (), as_text=as_text, as_json=as_json, offline=against is not None
    )
    config_offer.present(offer, wishes, home=home, url=url)
