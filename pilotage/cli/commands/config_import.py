"""`pilotage config import`: changes proposed by files of other systems, their preview, and storing them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group

from cs_config.formats import ce_ads_import, importers
from cs_config.formats.ce_ads_import import AdProposal, ParameterChange
from cs_config.versions import patch, show
from cs_config.versions.proposals import Proposal
from pilotage.cli import options, output
from pilotage.cli.commands import config_change, config_request
from pilotage.cli.commands.config_change import Guards, Message
from pilotage.cli.commands.config_request import Answer
from pilotage.cli.connection import connect
from pilotage.cli.errors import CommandRefused, WrongUsage, one_line
from pilotage.fabric.client import ApiError, Client
from requirements.errors import Problem

_FORBIDDEN = 403


Apply = Annotated[bool, typer.Option("--apply", help="Store the result as the configuration in force.")]
Against = Annotated[
    Path | None,
    typer.Option(
        "--file", metavar="FILE", help="Compare with this file instead of the configuration in force."
    ),
]
AsText = Annotated[bool, typer.Option("--yaml", help="Print the whole resulting configuration.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedImport:
    """A changed configuration, as an import proposes it."""

    proposal: Proposal
    notes: Sequence[Problem]  #: parts that could not be translated
    message: str  #: for the history


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """Options of the import commands."""

    apply: bool
    message: str | None
    guards: Sequence[str] | None
    against: Path | None  #: file to compare with, instead of the configuration of the service
    as_text: bool
    as_json: bool

    def __post_init__(self) -> None:
        """Reject --apply with --file."""
        if self.apply and self.against is not None:
            raise WrongUsage("--apply changes what is in force, --file compares with a file: one of the two")

    def offer(self, proposal: Proposal, notes: Sequence[Problem], name: str) -> ProposedImport:
        """The proposal with its message for the history, by default the name of the import."""
        return ProposedImport(proposal=proposal, notes=notes, message=self.message or f"imported {name}")


def import_file(
    format_name: str,
    file: Path,
    import_options: ImportOptions,
    *,
    home: Path | None,
    url: str | None,
) -> None:
    """Show what a file of another system would change, in an installed format; with --apply, store it."""
    config = config_request.configuration_from(import_options.against, home=home, url=url)
    found = importers.installed_importers()[format_name](config, {str(file): read_text(file)})
    present_import(
        import_options.offer(found.proposal, found.notes, file.name), import_options, home=home, url=url
    )


def read_text(file: Path) -> str:
    """The content of a file; `-` is standard input.

    Raises:
        Refused: It cannot be read.
    """
    if str(file) == "-":
        return typer.get_text_stream("stdin").read()
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise CommandRefused(f"{file}: {error.strerror or error}") from None


def present_import(
    offer: ProposedImport, import_options: ImportOptions, *, home: Path | None, url: str | None
) -> None:
    """Print the changes of an import and their effects; with --apply, store them."""
    for note in offer.notes if not import_options.as_json else ():
        typer.echo(f"pilotage: {one_line(str(note))}", err=True)
    if import_options.as_text and not import_options.as_json:
        typer.echo(offer.proposal.after.source, nl=False)
        return
    preview, version = None, offer.proposal.before.version
    if import_options.against is None and offer.proposal.differences:
        with connect(home=home, url=url) as client:
            preview, version = preview_and_store(client, offer, import_options)
    applied = import_options.apply and bool(offer.proposal.differences)
    changes = config_request.list_changes(offer.proposal.differences)
    data = {
        "changes": changes,
        "notes": [note.as_json() for note in offer.notes],
        "applied": applied,
        "version": version,
        "preview": preview,
    }
    output.emit(
        data,
        as_json=import_options.as_json,
        render=lambda: config_change.render_with_effects(changes, preview),
    )
    if not import_options.as_json:
        typer.echo(_outcome_line(offer, version, applied=applied))


def preview_and_store(
    client: Client, offer: ProposedImport, import_options: ImportOptions
) -> tuple[Answer | None, int]:
    """The effects of an import, and the version in force afterwards; with --apply, the import is stored."""
    proposal = offer.proposal
    whole = client.config().get("text") is not None
    values, removed = patch.edits_from_differences(proposal.differences)
    change = {"text": proposal.after.source} if whole else {"set": values, "remove": removed}
    preview = _preview(client, change)
    version = proposal.before.version
    if import_options.apply and whole:
        version = client.put_config(
            text=proposal.after.source,
            source=proposal.after.file,
            message=offer.message,
            version=version,
            guards=import_options.guards or (),
        )
    elif import_options.apply:
        guards = {"guard": list(import_options.guards)} if import_options.guards else {}
        body = {**change, "message": offer.message, **guards}
        version = int(client.patch_config(body, version=version)["version"])
    return preview, version


def _preview(client: Client, change: Mapping[str, object]) -> Answer | None:
    """The effects of a change; None: the caller is not allowed to change, and so not to preview."""
    try:
        return client.preview_config(change)
    except ApiError as error:
        if error.status != _FORBIDDEN:
            raise
        return None


def _outcome_line(offer: ProposedImport, version: int, *, applied: bool) -> str:
    left = f"; {len(offer.notes)} things were not carried over" if offer.notes else ""
    if not offer.proposal.differences:
        return f"nothing changes{left}"
    number = len(offer.proposal.differences)
    stored = f"version {version} is in force" if applied else "nothing is stored, --apply does it"
    return f"{number} changes{left}; {stored}"


_SITE_HELP = "Site of CEs whose ads name none; a CE that exists already keeps its site."


def import_classad(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE…", help="CE ads, new or old ClassAd syntax; - is standard input."),
    ],
    *,
    site: Annotated[str | None, typer.Option(metavar="SITE", help=_SITE_HELP)] = None,
    apply: Apply = False,
    message: Message = None,
    guards: Guards = None,
    against: Against = None,
    as_text: AsText = False,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Show what CE ads (GLUE 1) would change in the resource tree; with --apply, store it.

    Attributes become parameters of the queue. A queue whose restriction cannot be translated is disabled
    (Enabled: false).
    """
    import_options = ImportOptions(
        apply=apply, message=message, guards=guards, against=against, as_text=as_text, as_json=as_json
    )
    texts = {str(each): read_text(each) for each in files}
    config = config_request.configuration_from(against, home=home, url=url)
    proposal = ce_ads_import.propose_ads(config, texts, site=site)
    version, preview = config.version, None
    if against is None and proposal.changes:
        offer = import_options.offer(proposal.proposal, proposal.notes, _name_files(files))
        with connect(home=home, url=url) as client:
            preview, version = preview_and_store(client, offer, import_options)
    for note in proposal.notes if not as_json else ():
        typer.echo(f"pilotage: {one_line(str(note))}", err=True)
    if as_text and not as_json:
        typer.echo(proposal.text, nl=False)
        return
    outcome = _import_line(proposal, version, apply=apply)
    applied = apply and bool(proposal.changes)
    data = _as_json(proposal) | {"applied": applied, "version": version, "preview": preview}
    lines = output.escape("\n".join(_proposal_lines(proposal)))
    output.emit(
        data, as_json=as_json, render=lambda: Group(lines, config_change.render_effects(preview), outcome)
    )


def _name_files(files: Sequence[Path]) -> str:
    return ", ".join(each.name for each in files)


def _proposal_lines(proposal: AdProposal) -> Iterator[str]:
    queue = None
    for change in proposal.changes:
        if change.queue != queue:
            queue = change.queue
            yield f"{queue}{' (new)' if queue in proposal.new else ''}"
        yield f"  {_change_line(change)}"


def _change_line(change: ParameterChange) -> str:
    if change.after is None:
        return f"- {change.name} = {show.format_value(change.before)}"
    if change.before is None:
        return f"+ {change.name} = {show.format_value(change.after)}"
    return f"~ {change.name} = {show.format_value(change.after)} (was {show.format_value(change.before)})"


def _import_line(proposal: AdProposal, version: int, *, apply: bool) -> str:
    counts = _counts(proposal)
    queues = f"{counts['new']} queues new, {counts['changed']} changed, {counts['same']} as they are"
    parameters = f"{counts['added']} parameters added, {counts['other']} changed, {counts['removed']} removed"
    if not proposal.changes:
        return f"{queues}; nothing changes"
    stored = f"version {version} is in force" if apply else "nothing is stored, --apply does it"
    return f"{queues}; {parameters}; {stored}"


def _counts(proposal: AdProposal) -> dict[str, int]:
    changes = proposal.changes
    return {
        "new": len(proposal.new),
        "changed": len(proposal.changed),
        "same": len(proposal.same),
        "added": sum(1 for each in changes if each.before is None),
        "other": sum(1 for each in changes if each.before is not None and each.after is not None),
        "removed": sum(1 for each in changes if each.after is None),
    }


def _as_json(proposal: AdProposal) -> dict[str, object]:
    return {
        "changes": [each.as_json() for each in proposal.changes],
        "counts": _counts(proposal),
        "new": [str(each) for each in proposal.new],
        "notes": [each.as_json() for each in proposal.notes],
    }
