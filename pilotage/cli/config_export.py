"""`pilotage config export`: the tree in the words of other systems."""

from typing import Annotated

import typer

from cs_config import ad_export
from pilotage.cli import options, output, running_configuration

_PATH_HELP = "A Site, Site/CE or Site/CE/Queue, also as Resources/Sites/…; everything if it is left out."


def classad(
    path: Annotated[str, typer.Argument(metavar="[PATH]", help=_PATH_HELP, show_default=False)] = "",
    *,
    vo: Annotated[
        str, typer.Option(metavar="VO", help="As this VO gets the queues.", show_default=False)
    ] = "",
    file: running_configuration.InsteadOfIt = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Print the queues as CE ads (GLUE 1), which `config import classad` reads."""
    config = running_configuration.or_of(file, home=home, url=url)
    found = ad_export.export(config, path, vo)
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
