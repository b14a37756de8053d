"""Options that many commands share."""

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Home = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Home directory of the installation (default: PILOTAGE_HOME or $XDG_DATA_HOME/pilotage).",
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The service (default: PILOTAGE_URL or client.env in the home directory). "
        "The token comes from PILOTAGE_TOKEN or client.env.",
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Database (default: PILOTAGE_DATABASE_URL or SQLite in the home directory)."
    ),
]
DatabaseDirectUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Direct connection to the same database, if --database-url goes through pgbouncer "
        "(default: PILOTAGE_DATABASE_DIRECT_URL).",
    ),
]
RedisUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Redis (default: PILOTAGE_REDIS_URL); without it, optimizers run in the service."
    ),
]
LogLevel = Annotated[
    str | None, typer.Option(metavar="LEVEL", help="Log level: debug, info, warning (default) or error.")
]
Host = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Address to listen on (default: PILOTAGE_HOST or 127.0.0.1)."),
]
Port = Annotated[
    int | None,
    typer.Option(metavar="N", help="Port to listen on (default: PILOTAGE_PORT or 8750); 0: any free port."),
]
TlsCertificate = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Serve HTTPS with this certificate and its chain, PEM (default: PILOTAGE_TLS_CERTIFICATE); "
        "reloaded when the file changes.",
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Private key of the certificate, if not in the same file (default: PILOTAGE_TLS_KEY).",
    ),
]
Resources = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Configuration file to import at start, if it changed since the last import."
    ),
]
JobIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Job ids or ranges such as 12-40.", show_default=False),
]
JobId = Annotated[int, typer.Argument(metavar="ID", help="Job id.")]
Site = Annotated[str, typer.Argument(metavar="SITE", help="Site, such as LCG.CERN.ch.")]
Queue = Annotated[
    str, typer.Argument(metavar="Site/CE/Queue", help="Batch queue, such as LCG.CERN.ch/ce01.cern.ch/long.")
]
StatusFilter = Annotated[
    str | None, typer.Option("--status", metavar="S1,S2", help="Only jobs with one of these statuses.")
]
VoFilter = Annotated[str | None, typer.Option("--vo", metavar="VO", help="Only jobs of this VO.")]
OwnerFilter = Annotated[str | None, typer.Option("--owner", metavar="NAME", help="Only jobs of this owner.")]
SiteFilter = Annotated[str | None, typer.Option("--site", metavar="SITE", help="Only jobs at this site.")]
PoolFilter = Annotated[str | None, typer.Option("--pool", metavar="ID", help="Only jobs of this SubmitPool.")]
