"""`pilotage site limits`: what jobs a site takes at a time, and how much of that is used."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType

from pilotage.cli import options, output
from pilotage.cli.connection import connect

Json = Mapping[str, Any]


def limits(
    site: options.Site,
    *,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Show what jobs a site takes at a time, by kind and by throttle, and how much of that is used.

    Running limits and matching delays stand in the operations options, throttles at the site's own node.
    """
    with connect(home=home, url=url) as client:
        found = client.site(site)
    chosen = {name: found[name] for name in ("site", "ban", "limits", "throttles")}
    output.emit(chosen, as_json=as_json, render=lambda: _table(chosen))


def _table(site: Json) -> RenderableType:
    rows = list(_rows(site))
    banned = f"{site['site']} is banned: {site['ban']['reason']}" if site["ban"] else None
    headings = ("Site/CE/Queue", "Of", "VO", "Allowed", "Now", "Closed")
    return output.table(headings, rows, title=banned) if rows else banned or f"{site['site']}: no limit"


def _rows(site: Json) -> Iterator[tuple[object, ...]]:
    for each in site["limits"]:
        allowed, now = _running(each) if each["option"] == "RunningLimit" else _delayed(each)
        what = f"{each['attribute']} {each['value']}"
        yield each["scope"], what, each["vo"], allowed, now, "full" if each["full"] else None
    for each in site["throttles"]:
        room = "any" if each["room"] is None else f"room for {each['room']}"
        yield each["scope"], f"throttle {each['policy']}", None, each["limits"], room, each["why"]


def _running(limit: Json) -> tuple[str, str]:
    return f"{limit['most']} at a time", f"{limit['there']} there"


def _delayed(delay: Json) -> tuple[str, str]:
    return f"one in {delay['seconds']:g} s, {delay['burst']} at once", f"{int(delay['tokens'])} at once"
