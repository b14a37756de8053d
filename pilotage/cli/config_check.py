"""`pilotage config check`."""

from pathlib import Path
from typing import Annotated

import typer

from cs_config import validate
from cs_config.configuration import Configuration
from cs_config.errors import ConfigError
from pilotage.cli import options, output
from pilotage.cli.failures import WRONG, one_line


def check(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="YAML with Resources, Operations and Registry.")
    ],
    *,
    as_json: options.AsJson = False,
) -> None:
    """Look through a file, without a service: all that is wrong, with line and what would be right.

    Status 2 if anything is; warnings alone leave it 0.
    """
    found = validate.report(validate.read_bytes(file), str(file))
    if as_json:
        output.emit(_as_json(found), as_json=True, render=str)
    if found.errors and not as_json:
        raise ConfigError(found.errors)
    for problem in found.warnings if not as_json else ():
        typer.echo(f"pilotage: warning: {one_line(str(problem))}", err=True)
    if found.configuration is None:
        raise typer.Exit(WRONG)
    if not as_json:
        typer.echo(f"{file}: {_size(found.configuration)}; nothing is wrong")


def _as_json(found: validate.Report) -> dict[str, object]:
    return {
        "valid": found.configuration is not None,
        "problems": [problem.as_json() for problem in found.errors],
        "warnings": [problem.as_json() for problem in found.warnings],
    }


def _size(config: Configuration) -> str:
    ces = {(address.site, address.ce) for address in config.addresses}
    return f"{len(config.sites)} sites, {len(ces)} CEs, {len(config.addresses)} queues, {len(config.vos)} VOs"
