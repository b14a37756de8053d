"""`pilotage config set` and `apply`: change what is in force."""

from pathlib import Path
from typing import Annotated

import typer

from pilotage.cli import config_lines, config_wanted, options, output
from pilotage.cli.config_wanted import Wanted
from pilotage.cli.connection import connect
from pilotage.fabric.client import Client

Message = Annotated[str | None, typer.Option("--message", "-m", help="Why, for the history.")]
Guards = Annotated[
    list[str] | None,
    typer.Option(
        "--guard",
        metavar="CONDITION",
        help="Change nothing unless this is true of the preview, as stuck_jobs=0 or running_jobs<=10; "
        "may be repeated. The names are those of `config preview --json` under totals.",
    ),
]
Edits = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PATH=VALUE…",
        help="From the top, as Resources/Sites/LCG.CERN.ch/MaxRAM=8000; a value as in the file: 8000, "
        "\\[el8, el9], {Policy: level0}, null.",
        show_default=False,
    ),
]
Removed = Annotated[
    list[str] | None, typer.Option("--remove", metavar="PATH", help="Take this away; may be repeated.")
]


def set_(
    edits: Edits = None,
    *,
    removed: Removed = None,
    message: Message = None,
    guards: Guards = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Change single values of what is in force; comments stay, and so do changes of others elsewhere.

    VO admins change VOs/<vo> and Operations/<vo>, site admins their site outside VOs, operators all.
    """
    with connect(home=home, url=url) as client:
        wanted = config_wanted.of_words(client, edits or (), removed or ())
        answer = _edited(client, wanted, message or "", guards)
    output.emit(answer, as_json=as_json, render=lambda: output.escape("\n".join(_told(answer))))


def apply(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="YAML with Resources, Operations and Registry.")
    ],
    *,
    message: Message = None,
    guards: Guards = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Make a file the configuration in force; one that is wrong, or no change, leaves all as it is.

    VO and site admins apply what is another in their sections.
    """
    why = message or f"applied {file.name}"
    with connect(home=home, url=url) as client:
        wanted = config_wanted.of_file(client, file)
        version = _applied(client, wanted, why, guards) if wanted.changed else wanted.version
    changed = wanted.changed
    said = (
        f"version {version} is in force" if changed else f"nothing changed, version {version} stays in force"
    )
    output.emit({"version": version, "changed": changed}, as_json=as_json, render=lambda: said)


def _applied(client: Client, wanted: Wanted, message: str, guards: list[str] | None) -> int:
    if not wanted.is_text:
        return int(_edited(client, wanted, message, guards)["version"])
    text, source = str(wanted.body["text"]), str(wanted.body["source"])
    return client.put_config(
        text=text, source=source, message=message, version=wanted.version, guards=guards or ()
    )


def _edited(client: Client, wanted: Wanted, message: str, guards: list[str] | None) -> config_lines.Answer:
    body = {**wanted.body, "message": message, **({"guard": guards} if guards else {})}
    return client.patch_config(body, version=wanted.version)


def _told(answer: config_lines.Answer) -> list[str]:
    if not answer["changes"]:
        return [f"nothing changed, version {answer['version']} stays in force"]
    return [*config_lines.lines(answer["changes"]), f"version {answer['version']} is in force"]
