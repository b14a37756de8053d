"""What `pilotage up` says when it is ready."""

import json
import os
import sys

from rich.panel import Panel

from cs_config.configuration import Configuration
from pilotage.cli import client_env, output, settings
from pilotage.cli.settings import Settings


def show(chosen: Settings, config: Configuration, url: str, *, as_json: bool) -> None:
    """Say where the service is and what to do next."""
    if as_json:
        facts = {"url": url, "home": str(chosen.home), "client_env": str(chosen.home / client_env.FILE)}
        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        output.console().print(Panel.fit("\n".join(_lines(chosen, config, url)), title="Pilotage"))
    sys.stdout.flush()


def _lines(chosen: Settings, config: Configuration, url: str) -> list[str]:
    lines = [f"[bold]{url}[/]  (interface: {url}/docs)", f"home: {output.escape(str(chosen.home))}"]
    if config.addresses:
        size = f"{len(config.addresses)} queues of {len(config.sites)} sites"
        lines.append(f"configuration: version {config.version}, {size}")
    else:
        lines.append("no queues yet: pilotage config apply FILE, or start with --resources FILE")
    if chosen.site is not None:
        lines.append(f"up to {chosen.pilots} pilots at {chosen.site} as jobs need them")
    home = "" if chosen.home == settings.default_home(os.environ) else f" --home {chosen.home}"
    lines += ["", f"pilotage login{home}   (a link to the web pages)"]
    lines += [f"pilotage job submit{home} FILE", f"pilotage job list{home}"]
    if chosen.site is None:
        lines.append(f"pilotage pilot{home} --site S --ce C --queue Q")
    return [*lines, "", "Ctrl-C ends it; started again it goes on."]
