"""`pilotage config import`: what descriptions of other systems would change in the tree."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group

from cs_config import ad_import, ce_ads, proposals, show
from cs_config.ad_import import Change, Proposal
from cs_config.ce_ads import CeAd
from pilotage.cli import config_offer, config_preview, options, output, running_configuration
from pilotage.cli.config_edit import Guards, Message
from pilotage.cli.config_offer import Against, Apply, AsText, Wishes
from pilotage.cli.connection import connect
from pilotage.cli.failures import one_line

_SITE_HELP = "Site of the CEs whose ads name none; a CE that is in the tree stays where it is."


def classad(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="CE ads, new or old syntax; - is standard input.")
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
    """Show what CE ads (GLUE 1) would change in the resource tree; with --apply, change it.

    Attributes become parameters of the queue. Nothing is stored if nothing would change. A queue
    whose restriction cannot be carried over is closed (Enabled: false).
    """
    wishes = Wishes(
        apply=apply, message=message, guards=guards, against=against, as_text=as_text, as_json=as_json
    )
    ads = {str(each): ce_ads.read(config_offer.text_of(each), str(each)) for each in files}
    config = running_configuration.or_of(against, home=home, url=url)
    proposal = ad_import.propose(config, ads, site=site)
    version, preview = config.version, None
    if against is None and proposal.changes:
        offer = wishes.offer(proposals.of_text(config, proposal.text), proposal.notes, _named(ads))
        with connect(home=home, url=url) as client:
            preview, version = config_offer.asked(client, offer, wishes)
    for note in proposal.notes if not as_json else ():
        typer.echo(f"pilotage: {one_line(str(note))}", err=True)
    if as_text and not as_json:
        typer.echo(proposal.text, nl=False)
        return
    said = _outcome(proposal, version, apply=apply)
    applied = apply and bool(proposal.changes)
    data = _as_json(proposal) | {"applied": applied, "version": version, "preview": preview}
    lines = output.escape("\n".join(_lines(proposal)))
    output.emit(data, as_json=as_json, render=lambda: Group(lines, config_preview.effects(preview), said))


def _named(ads: dict[str, tuple[CeAd, ...]]) -> str:
    return ", ".join(Path(name).name for name in ads)


def _lines(proposal: Proposal) -> Iterator[str]:
    queue = None
    for change in proposal.changes:
        if change.queue != queue:
            queue = change.queue
            yield f"{queue}{' (new)' if queue in proposal.new else ''}"
        yield f"  {_line(change)}"


def _line(change: Change) -> str:
    if change.after is None:
        return f"- {change.name} = {show.written(change.before)}"
    if change.before is None:
        return f"+ {change.name} = {show.written(change.after)}"
    return f"~ {change.name} = {show.written(change.after)} (was {show.written(change.before)})"


def _outcome(proposal: Proposal, version: int, *, apply: bool) -> str:
    counts = _counts(proposal)
    queues = f"{counts['new']} queues new, {counts['changed']} changed, {counts['same']} as they are"
    parameters = f"{counts['added']} parameters added, {counts['other']} changed, {counts['removed']} removed"
    if not proposal.changes:
        return f"{queues}; nothing changes"
    stored = f"version {version} is in force" if apply else "nothing is stored, --apply does it"
    return f"{queues}; {parameters}; {stored}"


def _counts(proposal: Proposal) -> dict[str, int]:
    changes = proposal.changes
    return {
        "new": len(proposal.new),
        "changed": len(proposal.changed),
        "same": len(proposal.same),
        "added": sum(1 for each in changes if each.before is None),
        "other": sum(1 for each in changes if each.before is not None and each.after is not None),
        "removed": sum(1 for each in changes if each.after is None),
    }


def _as_json(proposal: Proposal) -> dict[str, object]:
    return {
        "changes": [each.as_json() for each in proposal.changes],
        "counts": _counts(proposal),
        "new": [str(each) for each in proposal.new],
        "notes": [each.as_json() for each in proposal.notes],
    }
