"""`pilotage config apply` and `history`."""

from pathlib import Path
from typing import Annotated

import typer

from cs_config import validate
from cs_config.errors import ConfigError
from pilotage.cli import options, output
from pilotage.cli.connection import connect


def apply(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="YAML with Resources, Operations and Registry.")
    ],
    *,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Why, for the history.")] = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Make a file the configuration in force; one that is wrong, or no change, leaves all as it is."""
    content = validate.read_bytes(file)
    found = validate.report(content, str(file))
    if found.configuration is None:
        raise ConfigError(found.errors)
    text = found.configuration.source
    with connect(home=home, url=url) as client:
        current = client.config()
        version = current["version"]
        changed = text != current.get("text")
        if changed:
            why = message or f"applied {file.name}"
            version = client.put_config(text=text, source=file.name, message=why, version=version)
    said = (
        f"version {version} is in force" if changed else f"nothing changed, version {version} stays in force"
    )
    output.emit({"version": version, "changed": changed}, as_json=as_json, render=lambda: said)


def history(
    *,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 20,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """List the versions of the configuration, the newest first."""
    with connect(home=home, url=url) as client:
        versions = client.config_versions(limit=limit)
    rows = (
        (v["version"], output.local_time(v["created_at"]), v["author"], v["source"], v["message"])
        for v in versions
    )
    headings = ("#Version", "Stored", "By", "From", "Why")
    output.emit({"versions": versions}, as_json=as_json, render=lambda: output.table(headings, rows))
