"""`pilotage config import` and `export`: formats of other systems; an import shows its effects first."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Group

from cs_config.editing.proposals import Proposal
from cs_config.formats import dirac_text, importers
from cs_config.formats.importers import ImportedConfiguration
from cs_config.source.diff import ABSENT
from pilotage.cli import options
from pilotage.cli.commands.config import edit, show
from pilotage.cli.commands.config.edit import Answer, ConfigChange, Guards
from pilotage.cli.commands.config.show import Message
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import CommandRefused, WrongUsage, harmless, one_line
from pilotage.client.api import ApiError, ServiceClient
from pilotage.plugins.formats import ce_ads, dirac_server
from pilotage.plugins.formats.ce_ads_import import AdProposal
from requirements.errors import format_count

_FORBIDDEN = 403


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """Options of the import commands."""

    apply: Annotated[
        bool, typer.Option("--apply", help="Store the result as the configuration in force.")
    ] = False
    message: Message = None
    guards: Guards = None
    against: Annotated[
        Path | None,
        options.option("FILE", "Compare with this file instead of the configuration in force.", "--file"),
    ] = None
    as_text: Annotated[bool, typer.Option("--yaml", help="Print the whole resulting configuration.")] = False

    def __post_init__(self) -> None:
        """Reject --apply with --file."""
        if self.apply and self.against is not None:
            raise WrongUsage("--apply changes what is in force, --file compares with a file: one of the two")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOutcome:
    """Outcome of an import."""

    applied: bool
    version: int  #: in force afterwards
    preview: Answer | None  #: None: compared with a file, nothing changes, or the caller may not change


_BYTE_ORDER_MARK: Final = "\ufeff"


def _import_files(
    format_name: str,
    files: Sequence[Path],
    wanted: ImportOptions,
    service: ServiceOptions,
    *,
    site: str | None = None,
) -> None:
    """Show what files in an installed format would change; with --apply, store it."""
    texts = {str(each): _read_text(each) for each in files}
    _import_texts(format_name, texts, ", ".join(each.name for each in files), wanted, service, site=site)


def _import_texts(
    format_name: str,
    texts: Mapping[str, str],
    name: str,
    wanted: ImportOptions,
    service: ServiceOptions,
    *,
    site: str | None = None,
) -> None:
    """Show what texts, by file, would change; with --apply, store it."""
    try:
        propose = importers.load_importer(format_name)
    except ValueError as error:
        raise CommandRefused(str(error)) from None
    config = edit.configuration_from(wanted.against, service)
    # Of editors of Windows.
    read = {file: text.removeprefix(_BYTE_ORDER_MARK) for file, text in texts.items()}
    found = propose(config, read, site=site)
    outcome = ImportOutcome(applied=False, version=config.version, preview=None)
    if wanted.against is None and found.proposal.differences:
        outcome = _preview_and_store(found.proposal, name, wanted, service)
    for note in found.notes if not service.as_json else ():
        typer.echo(f"pilotage: {one_line(str(note))}", err=True)
    if wanted.as_text and not service.as_json:
        typer.echo(found.proposal.after.source, nl=False)
    elif isinstance(found, AdProposal):
        _show_ads(found, outcome, service)
    else:
        _show_changes(found, outcome, service)


def _show_changes(found: ImportedConfiguration, outcome: ImportOutcome, service: ServiceOptions) -> None:
    changes = [each.as_json() for each in found.proposal.differences]
    data = {"changes": changes, "notes": [note.as_json() for note in found.notes], **asdict(outcome)}
    service.emit(data, lambda: edit.render_with_effects(changes, outcome.preview))
    if not service.as_json:
        notes = len(found.notes)
        left = f"; {format_count(notes, 'note')}"
        number = f"{format_count(len(changes), 'change')}{left if notes else ''}; {_stored(outcome)}"
        typer.echo(number if changes else f"nothing changes{left if notes else ''}")


def _read_text(file: Path) -> str:
    """The content of a file; `-` is standard input."""
    if str(file) == "-":
        return typer.get_text_stream("stdin").read()
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise CommandRefused(f"{file}: {error.strerror or error}") from None


def _preview_and_store(
    proposal: Proposal, name: str, wanted: ImportOptions, service: ServiceOptions
) -> ImportOutcome:
    """The effects of an import; with --apply, it is stored."""
    with service.connect() as client:
        change = _change_from_proposal(client, proposal)
        preview, version = _preview(client, change.body), change.version
        if wanted.apply:
            message = wanted.message or f"imported {name}"
            version = int(edit.store(client, change, message, wanted.guards)["version"])
    return ImportOutcome(applied=wanted.apply, version=version, preview=preview)


def _change_from_proposal(client: ServiceClient, proposal: Proposal) -> ConfigChange:
    """The change that stores a proposal; as differences, if the caller sees only a part of the tree."""
    whole = {"text": proposal.after.source, "source": proposal.after.file}
    body = edit.edits(proposal.differences) if client.config().get("text") is None else whole
    return ConfigChange(body=body, version=proposal.before.version, changed=True)


def _preview(client: ServiceClient, change: Mapping[str, object]) -> Answer | None:
    """The effects of a change; None: the caller is not allowed to change, and so not to preview."""
    try:
        return client.preview_config(change)
    except ApiError as error:
        if error.status != _FORBIDDEN:
            raise
        return None


def _stored(outcome: ImportOutcome) -> str:
    is_new = f"version {outcome.version} is in force"
    return is_new if outcome.applied else "nothing is stored, --apply does it"


def import_dirac(
    source: Annotated[
        str,
        options.argument(
            "FILE|URL",
            "DIRAC .cfg file, current layout or that of RFC #5; "
            "or a Configuration Server, https:// or dips://…/Configuration/Server.",
        ),
    ],
    *,
    certificate: Annotated[
        Path | None,
        options.option(
            "FILE", "For a server: client certificate or proxy with its key, PEM.", "--certificate"
        ),
    ] = None,
    authorities: Annotated[
        Path | None,
        options.option("PATH", "For a server: CA certificates, file or directory.", "--authorities"),
    ] = None,
    wanted: ImportOptions,
    service: ServiceOptions,
) -> None:
    """Show what a DIRAC configuration would change, and its effects on waiting jobs; with --apply, store it.

    Its options are merged into the configuration in force and win over it; options without an equivalent are
    listed. A node whose restriction cannot be translated is disabled (Enabled: false), else the import is
    refused.

    Example: `pilotage config import dirac dirac.cfg --apply`.
    """
    if dirac_server.is_server(source):
        text = dirac_server.fetch_configuration(source, certificate=certificate, authorities=authorities)
        _import_texts("dirac", {source: text}, source, wanted, service)
    elif certificate or authorities:
        raise WrongUsage("--certificate and --authorities are for a server, and this is a file")
    else:
        _import_files("dirac", [Path(source)], wanted, service)


def import_osg(
    files: Annotated[
        list[Path],
        options.argument("FILE…", "Factory configuration: XML, YAML, or a tree as in examples/osg."),
    ],
    *,
    wanted: ImportOptions,
    service: ServiceOptions,
) -> None:
    """Show what a glidein factory would change, and its effects on waiting jobs; with --apply, store it.

    An entry becomes a queue with the same name; settings without an equivalent are listed. An entry whose
    restriction cannot be translated is disabled (Enabled: false). In YAML, entries DEFAULT_ENTRY are no
    queues: they state what the others lack, also those of other files.

    Example: `pilotage config import osg topology.yaml --apply`.
    """
    _import_files("osg", files, wanted, service)


_SITE_HELP = "Site of CEs whose ads name none; a CE that exists already keeps its site."


def make_import(format_name: str) -> Callable[..., None]:
    """The command for an importer of another package, found by the entry point `pilotage.formats`."""

    def import_files(
        files: Annotated[list[Path], options.argument("FILE…", "Files to import; - is standard input.")],
        *,
        site: Annotated[str | None, options.option("SITE", _SITE_HELP)] = None,
        wanted: ImportOptions,
        service: ServiceOptions,
    ) -> None:
        _import_files(format_name, files, wanted, service, site=site)

    import_files.__doc__ = (
        f"Show what files in the format {format_name} would change; with --apply, store it.\n\n"
        f"Example: `pilotage config import {format_name} FILE --apply`."
    )
    return import_files


def import_classad(
    files: Annotated[
        list[Path], options.argument("FILE…", "CE ads, new or old ClassAd syntax; - is standard input.")
    ],
    *,
    site: Annotated[str | None, options.option("SITE", _SITE_HELP)] = None,
    wanted: ImportOptions,
    service: ServiceOptions,
) -> None:
    """Show what CE ads (GLUE 1) would change in the resource tree; with --apply, store it.

    Attributes become parameters of the queue. A queue whose restriction cannot be translated is disabled
    (Enabled: false).

    Example: `pilotage config import classad ce.ad --site LCG.CERN.ch`.
    """
    _import_files("classad", files, wanted, service, site=site)


def _show_ads(proposal: AdProposal, outcome: ImportOutcome, service: ServiceOptions) -> None:
    counts = _counts(proposal)
    data = {
        "changes": [each.as_json() for each in proposal.changes],
        "counts": counts,
        "new": [str(each) for each in proposal.new],
        "notes": [each.as_json() for each in proposal.notes],
        **asdict(outcome),
    }
    summary = f"queues: {counts['new']} new, {counts['changed']} changed, {counts['same']} as they are; "
    summary += (
        f"parameters: {counts['added']} added, {counts['other']} changed, {counts['removed']} removed; "
        f"{_stored(outcome)}"
        if proposal.changes
        else "nothing changes"
    )
    lines = harmless("\n".join(_proposal_lines(proposal)))
    service.emit(data, lambda: Group(lines, edit.render_effects(outcome.preview), summary))


def _proposal_lines(proposal: AdProposal) -> Iterator[str]:
    queue = None
    for change in proposal.changes:
        if change.queue != queue:
            queue = change.queue
            yield f"{queue}{' (new)' if queue in proposal.new else ''}"
        before, after = (ABSENT if each is None else each for each in (change.before, change.after))
        yield f"  {show.change_line(change.name, before, after)}"


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


_EXPORTED = "Site, Site/CE or Site/CE/Queue, also as Resources/Sites/… (default: everything)."


def export_classad(
    path: Annotated[str, typer.Argument(metavar="[PATH]", help=_EXPORTED, show_default=False)] = "",
    *,
    vo: Annotated[
        str, typer.Option(metavar="VO", help="Effective values for this VO.", show_default=False)
    ] = "",
    file: options.ConfigFile = None,
    service: ServiceOptions,
) -> None:
    """Print the queues as CE ads (GLUE 1), which `config import classad` reads.

    Example: `pilotage config export classad LCG.CERN.ch --vo cms`.
    """
    config = edit.configuration_from(file, service)
    found = ce_ads.export_ads(config, path, vo)
    data = {
        "ads": found.text,
        "queues": [str(queue) for queue in found.queues],
        "left_out": list(found.left_out),
        "narrowed": list(found.narrowed),
    }
    no_value = "kept out, an ad has no values of single VOs; --vo exports the queue as one of them gets it"
    notes = [f"{each}: left out, an ad has one value for all nodes of a queue" for each in found.left_out]
    notes += [f"{each}: {no_value}" for each in found.narrowed]
    _print_export(found.text, data, notes, service)


def export_dirac(
    *,
    with_disabled: Annotated[
        bool,
        typer.Option(
            "--with-disabled",
            help="Also sites, CEs and queues with Enabled: false, to which DIRAC would submit.",
        ),
    ] = False,
    file: options.ConfigFile = None,
    service: ServiceOptions,
) -> None:
    """Print the configuration as a DIRAC .cfg in the current layout; `config import dirac` reads it.

    Parts that the format cannot express, and disabled sites, CEs and queues, are listed on standard error.

    Example: `pilotage config export dirac --file dirac.cfg`.
    """
    config = edit.configuration_from(file, service)
    found = dirac_text.export_dirac(config.tree, with_disabled=with_disabled)
    left_out = list(found.left_out)
    _print_export(found.text, {"text": found.text, "left_out": left_out}, left_out, service)


def _print_export(text: str, data: object, notes: Iterable[str], service: ServiceOptions) -> None:
    if service.as_json:
        service.emit(data, str)
        return
    for each in notes:
        typer.echo(f"pilotage: {each}", err=True)
    typer.echo(text, nl=False)
