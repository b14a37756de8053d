"""Options that many commands share."""

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output, for machines.")]
Home = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Home directory of the installation (else PILOTAGE_HOME, else $XDG_DATA_HOME/pilotage).",
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The service (else PILOTAGE_URL, else client.env in the home directory). "
        "The token comes from PILOTAGE_TOKEN, else client.env.",
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Database (else PILOTAGE_DATABASE_URL, else SQLite in the home directory)."
    ),
]
DatabaseDirectUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The same database without the pooler, where the other URL leads through pgbouncer "
        "(else PILOTAGE_DATABASE_DIRECT_URL).",
    ),
]
RedisUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Redis (else PILOTAGE_REDIS_URL); none: optimizers run in the service."),
]
LogLevel = Annotated[
    str | None, typer.Option(metavar="LEVEL", help="debug, info, warning (default) or error.")
]
Host = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Listen here (else PILOTAGE_HOST, else 127.0.0.1).")
]
Port = Annotated[
    int | None,
    typer.Option(metavar="N", help="Listen here (else PILOTAGE_PORT, else 8750); 0: any free one."),
]
TlsCertificate = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Speak TLS with this certificate and its chain, PEM (else PILOTAGE_TLS_CERTIFICATE); "
        "read anew when it was renewed.",
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Its key, unless it is in the same file (else PILOTAGE_TLS_KEY)."),
]
Resources = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Configuration that is imported at start, if it changed since its last import."
    ),
]
JobIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Job ids, also ranges such as 12-40.", show_default=False),
]
JobId = Annotated[int, typer.Argument(metavar="ID", help="The job's id.")]
Site = Annotated[str, typer.Argument(metavar="SITE", help="The site, as LCG.CERN.ch.")]
Queue = Annotated[
    str, typer.Argument(metavar="Site/CE/Queue", help="The batch queue, as LCG.CERN.ch/ce01.cern.ch/long.")
]
StatusFilter = Annotated[
    str | None, typer.Option("--status", metavar="S1,S2", help="Only jobs with this status.")
]
VoFilter = Annotated[str | None, typer.Option("--vo", metavar="VO", help="Only jobs of this VO.")]
OwnerFilter = Annotated[str | None, typer.Option("--owner", metavar="NAME", help="Only jobs of this owner.")]
SiteFilter = Annotated[str | None, typer.Option("--site", metavar="SITE", help="Only jobs at this site.")]
PoolFilter = Annotated[str | None, typer.Option("--pool", metavar="ID", help="Only jobs of this SubmitPool.")]
