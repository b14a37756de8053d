"""`pilotage site`: what sites advertise, and how their throttles stand."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from pilotage.cli import listing, options, output, site_limits, site_watch
from pilotage.cli.connection import connect
from pilotage.cli.failures import WrongUsage

Json = Mapping[str, Any]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    sites = typer.Typer(help="Sites: advertisements, throttles, limits and bans.")
    sites.command("list")(list_sites)
    sites.command("show")(show)
    sites.command("advertise")(advertise)
    sites.command("ban")(ban)
    sites.command("allow")(allow)
    sites.command("limits")(site_limits.limits)
    app.add_typer(sites, name="site")


def list_sites(
    *,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """List the sites with what limits matches there."""
    with connect(home=home, url=url) as client:
        found = listing.read("sites", lambda most, last: client.sites(limit=most, after=last))
    found.emit(_table, as_json=as_json)


def show(
    site: options.Site,
    *,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Show limits, counters, reservations and the last advertisements of a site."""
    with connect(home=home, url=url) as client:
        found = client.site(site)
    output.emit(found, as_json=as_json, render=lambda: _details(found))


def advertise(
    site: Annotated[str, typer.Argument(metavar="SITE[/CE[/QUEUE]]", help="Whose jobs are counted.")],
    state: Annotated[
        list[str] | None,
        typer.Argument(metavar="K=V", help="CurrentJobs=12 CurrentSubmittingJobs=1 …", show_default=False),
    ] = None,
    *,
    watch: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="Run it again and again; it prints K=V lines or a JSON object."),
    ] = None,
    every: Annotated[float, typer.Option(metavar="S", min=0.1, help="Seconds between its runs.")] = 300,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Say how many jobs a site, CE or queue has; once, or again and again from what a command counts.

    With --watch a watermark is fetched before each run, so that what was matched meanwhile is told apart
    exactly. Given by hand, or by a plain script, it counts as taken after the advertisement before.
    """
    if (watch is None) == (not state):
        raise WrongUsage("state K=V, or a command with --watch, which prints them")
    with connect(home=home, url=url) as client:
        if watch is not None:
            site_watch.watch(client, site, watch, every=every)
            return
        answer = client.advertise(site, site_watch.pairs(state or []))
    site_watch.warn(answer)
    output.emit(answer, as_json=as_json, render=lambda: f"{site}: advertised")


def ban(
    site: options.Site,
    *,
    reason: Annotated[str, typer.Option(metavar="R", help="Why; people are shown it.")],
    until: Annotated[
        datetime | None, typer.Option(metavar="T", help="End, local time; without it until it is allowed.")
    ] = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Give a site no jobs but those of the type Test."""
    end = None if until is None else until.astimezone().isoformat()
    with connect(home=home, url=url) as client:
        found = client.ban(site, reason=reason, until=end)
    output.emit(found, as_json=as_json, render=lambda: f"{site}: banned")


def allow(
    site: options.Site,
    *,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Give a site jobs again."""
    with connect(home=home, url=url) as client:
        found = client.allow(site)
    output.emit(found, as_json=as_json, render=lambda: f"{site}: allowed")


def _table(sites: Sequence[Json]) -> RenderableType:
    rows = (
        (
            each["scope"],
            "banned" if site["ban"] else None,
            each["policy"],
            each["open"] and not site["ban"],
            each["room"],
            each["reserved"],
            f"banned: {site['ban']['reason']}" if site["ban"] else each["why"],
        )
        for site in sites
        for each in site["throttles"] or [_unlimited(site["site"])]
    )
    return output.table(("Site/CE/Queue", "Ban", "Policy", "Open", "#Room", "#Reserved", "Why"), rows)


def _unlimited(site: str) -> Json:
    return {"scope": site, "policy": None, "open": True, "room": None, "reserved": None, "why": None}


def _details(site: Json) -> RenderableType:
    hidden = {"reservations", "advertisement"}
    shown = [
        output.facts({name: value for name, value in each.items() if name not in hidden}, title=each["scope"])
        for each in site["throttles"]
    ]
    if site["ban"]:
        shown.insert(0, output.facts(site["ban"], title=f"{site['site']} is banned"))
    return Group(*shown) if shown else f"{site['site']}: no ban, no throttle"
