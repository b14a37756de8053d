"""`pilotage config`: its subcommands, and among them those for the formats of other systems."""

from pathlib import Path
from typing import Annotated

import typer

from cs_config.formats import ce_ads, dirac_text
from pilotage.cli import options, output
from pilotage.cli.commands import config_change, config_import, config_request, config_show
from pilotage.cli.commands.config_change import Guards, Message
from pilotage.cli.commands.config_import import Against, Apply, AsText, ImportOptions

_PATH_HELP = "Site, Site/CE or Site/CE/Queue, also as Resources/Sites/… (default: everything)."


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands = typer.Typer(help="Check, show, change, import and export the configuration.")
    commands.command("check")(config_show.check)
    commands.command("show")(config_show.show)
    commands.command("set")(config_change.set_)
    commands.command("diff")(config_show.diff)
    commands.command("preview")(config_change.preview)
    commands.command("apply")(config_change.apply)
    commands.command("history")(config_show.history)
    commands.command("rollback")(config_show.rollback)
    imports = typer.Typer(help="Import configurations of other systems.")
    imports.command("classad")(config_import.import_classad)
    imports.command("dirac")(import_dirac)
    imports.command("osg")(import_osg)
    commands.add_typer(imports, name="import")
    exports = typer.Typer(help="Export the configuration to formats of other systems.")
    exports.command("classad")(export_classad)
    exports.command("dirac")(export_dirac)
    commands.add_typer(exports, name="export")
    app.add_typer(commands, name="config")


def export_classad(
    path: Annotated[str, typer.Argument(metavar="[PATH]", help=_PATH_HELP, show_default=False)] = "",
    *,
    vo: Annotated[
        str, typer.Option(metavar="VO", help="Effective values for this VO.", show_default=False)
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
        Path, typer.Argument(metavar="FILE", help="DIRAC .cfg file, current layout or that of RFC #5.")
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
    """Show what a DIRAC configuration would change, and its effects on waiting jobs; with --apply, store it.

    Its options are merged into the configuration in force and win over it; options without an equivalent are
    listed. A node whose restriction cannot be translated is disabled (Enabled: false), else the import is
    refused.
    """
    import_options = ImportOptions(
        apply=apply, message=message, guards=guards, against=against, as_text=as_text, as_json=as_json
    )
    config_import.import_file("dirac", file, import_options, home=home, url=url)


def export_dirac(
    *,
    file: config_request.InsteadOfRunning = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Print the configuration as a DIRAC .cfg in the current layout; `config import dirac` reads it.

    Parts that the format cannot express are listed on standard error.
    """
    config = config_request.configuration_from(file, home=home, url=url)
    found = dirac_text.export_dirac(config.tree)
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
        typer.Argument(
            metavar="FILE", help="Factory configuration: XML, YAML, or a tree as in examples/osg."
        ),
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
    """Show what a glidein factory would change, and its effects on waiting jobs; with --apply, store it.

    An entry becomes a queue with the same name; settings without an equivalent are listed. An entry whose
    restriction cannot be translated is disabled (Enabled: false).
    """
    import_options = ImportOptions(
        apply=apply, message=message, guards=guards, against=against, as_text=as_text, as_json=as_json
    )
    config_import.import_file("osg", file, import_options, home=home, url=url)
