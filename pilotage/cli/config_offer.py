"""A proposed configuration: shown with what it would do, and stored if that is asked for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from cs_config import edits
from cs_config.configuration import Configuration
from cs_config.overlay import Imported
from cs_config.proposals import Proposal
from pilotage.cli import config_preview, config_wanted, output, running_configuration
from pilotage.cli.config_lines import Answer
from pilotage.cli.connection import connect
from pilotage.cli.failures import Refused, WrongUsage, one_line
from pilotage.fabric.client import ApiError, Client
from requirements.problem import Problem

_FORBIDDEN = 403


Apply = Annotated[bool, typer.Option("--apply", help="Make it the configuration in force.")]
Against = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="Compare with this file instead of asking the service."),
]
AsText = Annotated[bool, typer.Option("--yaml", help="Print the whole configuration that would result.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What an import makes of the configuration."""

    proposal: Proposal
    notes: Sequence[Problem]  #: what could not be carried over
    message: str  #: for the history


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What is to be done with an import.

    Raises:
        WrongUsage: It cannot be.
    """

    apply: bool
    message: str | None
    guards: Sequence[str] | None
    against: Path | None  #: a file that it is compared with: there is no service to ask
    as_text: bool
    as_json: bool

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.apply and self.against is not None:
            raise WrongUsage("--apply changes what is in force, --file compares with a file: one of the two")

    def offer(self, proposal: Proposal, notes: Sequence[Problem], name: str) -> Offer:
        """What an import of something of that name proposes, under the message that is wished."""
        return Offer(proposal=proposal, notes=notes, message=self.message or f"imported {name}")


def import_file(
    propose: Callable[[Configuration, str, str], Imported],
    file: Path,
    wishes: Wishes,
    *,
    home: Path | None,
    url: str | None,
) -> None:
    """Show what a file of another system would change, as `propose` reads it; do it if that is wished."""
    config = running_configuration.or_of(wishes.against, home=home, url=url)
    found = propose(config, text_of(file), str(file))
    present(wishes.offer(found.proposal, found.notes, file.name), wishes, home=home, url=url)


def text_of(file: Path) -> str:
    """The content of a file; `-` is standard input.

    Raises:
        Refused: It cannot be read.
    """
    if str(file) == "-":
        return typer.get_text_stream("stdin").read()
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise Refused(f"{file}: {error.strerror or error}") from None


def present(offer: Offer, wishes: Wishes, *, home: Path | None, url: str | None) -> None:
    """Show what an offer changes and would do; store it if that is wished."""
    for note in offer.notes if not wishes.as_json else ():
        typer.echo(f"pilotage: {one_line(str(note))}", err=True)
    if wishes.as_text and not wishes.as_json:
        typer.echo(offer.proposal.after.source, nl=False)
        return
    preview, version = None, offer.proposal.before.version
    if wishes.against is None and offer.proposal.differences:
        with connect(home=home, url=url) as client:
            preview, version = asked(client, offer, wishes)
    applied = wishes.apply and bool(offer.proposal.differences)
    changes = config_wanted.changes(offer.proposal.differences)
    data = {
        "changes": changes,
        "notes": [note.as_json() for note in offer.notes],
        "applied": applied,
        "version": version,
        "preview": preview,
    }
    output.emit(data, as_json=wishes.as_json, render=lambda: config_preview.told(changes, preview))
    if not wishes.as_json:
        typer.echo(_outcome(offer, version, applied=applied))


def asked(client: Client, offer: Offer, wishes: Wishes) -> tuple[Answer | None, int]:
    """What an offer would do, and the version in force afterwards: it is stored if that is wished."""
    proposal = offer.proposal
    whole = client.config().get("text") is not None
    values, removed = edits.of_differences(proposal.differences)
    change = {"text": proposal.after.source} if whole else {"set": values, "remove": removed}
    preview = _preview(client, change)
    version = proposal.before.version
    if wishes.apply and whole:
        version = client.put_config(
            text=proposal.after.source,
            source=proposal.after.file,
            message=offer.message,
            version=version,
            guards=wishes.guards or (),
        )
    elif wishes.apply:
        guards = {"guard": list(wishes.guards)} if wishes.guards else {}
        body = {**change, "message": offer.message, **guards}
        version = int(client.patch_config(body, version=version)["version"])
    return preview, version


def _preview(client: Client, change: Mapping[str, object]) -> Answer | None:
    """What a change would do; None: it is not for us to know, who may change nothing."""
    try:
        return client.preview_config(change)
    except ApiError as error:
        if error.status != _FORBIDDEN:
            raise
        return None


def _outcome(offer: Offer, version: int, *, applied: bool) -> str:
    left = f"; {len(offer.notes)} things were not carried over" if offer.notes else ""
    if not offer.proposal.differences:
        return f"nothing changes{left}"
    number = len(offer.proposal.differences)
    stored = f"version {version} is in force" if applied else "nothing is stored, --apply does it"
    return f"{number} changes{left}; {stored}"
