"""`pilotage job import`: descriptions from files of other systems, with a report of what was left out."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
import yaml

from pilotage.cli import options, settings
from pilotage.cli.settings import Settings
from pilotage.plugins.formats import batch_scripts, submit_files
from pilotage.plugins.formats.job_import import ImportedJobs, read_text

_FILES_COME_BACK = "only files that OutputSandbox names come back, with the standard output and error"


@settings.command_with()
def import_htcondor(
    _chosen: Settings,
    file: Annotated[Path, options.argument("FILE", "Submit file.")],
    *,
    as_json: bool,
) -> None:
    """Translate a submit file of HTCondor into descriptions, and name what was left out.

    Submit them in the same directory: `… | pilotage job submit -`.

    Example: `pilotage job import htcondor job.sub`.
    """
    _print(
        submit_files.read_submit_file(read_text(file), name=str(file), directory=file.parent),
        as_json=as_json,
    )


@settings.command_with()
def import_sbatch(
    _chosen: Settings,
    file: Annotated[Path, options.argument("FILE", "Script with #SBATCH lines.")],
    arguments: Annotated[list[str] | None, options.argument("ARG", "Argument of the script.")] = None,
    *,
    as_json: bool,
) -> None:
    """Translate a batch script of Slurm into a description, and name what was left out.

    Submit it in the directory of the script: `… | pilotage job submit -`.

    Example: `pilotage job import sbatch job.sh`.
    """
    _print(
        batch_scripts.read_batch_script(read_text(file), name=str(file), arguments=arguments or ()),
        as_json=as_json,
    )


def _print(found: ImportedJobs, *, as_json: bool) -> None:
    """Print the descriptions, and on standard error what was left out."""
    written: object = found.descriptions if len(found.descriptions) > 1 else found.descriptions[0]
    typer.echo(json.dumps(written) if as_json else yaml.safe_dump(written, sort_keys=False).rstrip())
    for line in found.left_out:
        typer.echo(f"left out: {line}", err=True)
    if not all(map(_keeps_files, found.descriptions)):
        typer.echo(f"note: {_FILES_COME_BACK}", err=True)


def _keeps_files(description: Mapping[str, object]) -> bool:
    return "OutputSandbox" in description
