"""`pilotage config export`: the tree in the words of other systems.

`pilotage config import dirac` and `export dirac`.

`pilotage config import osg`.
"""

from pathlib import Path
from typing import Annotated

import typer

from cs_config.formats import ce_ads, dirac_export, dirac_import, glidein_factory
from pilotage.cli import options, output
from pilotage.cli.commands import config_import, config_request
from pilotage.cli.commands.config_change import Guards, Message
from pilotage.cli.commands.config_import import Against, Apply, AsText, ImportOptions

_PATH_HELP = "A Site, Site/CE or Site/CE/Queue, also as Resources/Sites/…; everything if it is left out."


def export_classad(
    path: Annotated[str, typer.Argument(metavar="[PATH]", help=_PATH_HELP, show_default=False)] = "",
    *,
    vo: Annotated[
        str, typer.Option(metavar="VO", help="As this VO gets the queues.", show_default=False)
    ] = "",
    file: config_request.InsteadOfRunning = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Print the queues as CE ads (GLUE 1), which `config import classad` reads."""
    config = config_request.configuration_from(file, home=home, url=url)
    found = ce_ads.export_ads(config, path, vo)
    if as_json:
        data = {
            "ads": found.text,
            "queues": [str(queue) for queue in found.queues],
            "left_out": list(found.left_out),
            "narrowed": list(found.narrowed),
        }
        output.emit(data, as_json=True, render=str)
        return
    for each in found.left_out:
        typer.echo(f"pilotage: {each}: left out, an ad has one value for all nodes of a queue", err=True)
    for each in found.narrowed:
        message = "kept out, an ad has no values of single VOs; --vo exports the queue as one of them gets it"
        typer.echo(f"pilotage: {each}: {message}", err=True)
    typer.echo(found.text, nl=False)


def import_dirac(
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
    wishes = ImportOptions(
        apply=apply, message=message, guards=guards, against=against, as_text=as_text, as_json=as_json
    )
    config_import.import_file(dirac_import.propose_dirac, file, wishes, home=home, url=url)


def export_dirac(
    *,
    file: config_request.InsteadOfRunning = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Print the configuration as a .cfg of DIRAC, today's layout; `config import dirac` reads it.

    On standard error: what cannot be said there.
    """
    config = config_request.configuration_from(file, home=home, url=url)
    found = dirac_export.export_dirac(config.tree)
    if as_json:
        data = {"text": found.text, "left_out": list(found.left_out)}
        output.emit(data, as_json=True, render=str)
        return
    for each in found.left_out:
        typer.echo(f"pilotage: {each}", err=True)
    typer.echo(found.text, nl=False)


def import_osg(
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
    wishes = ImportOptions(
        apply=apply, message=message, guards=guards, against=against, as_text=as_text, as_json=as_json
    )
    config_import.import_file(glidein_factory.propose_factory, file, wishes, home=home, url=url)
