"""`pilotage token` and `key`: tokens of this installation, and the keys that sign them."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from getpass import getuser
from typing import Annotated

import typer

from pilotage.cli import home_directory, options, output, settings
from pilotage.cli.errors import CommandRefused
from pilotage.cli.settings import Settings
from pilotage.service.auth import callers, keys
from pilotage.service.auth.callers import Grant, Role
from pilotage.service.auth.keys import KeyRing


def mint_token(chosen: Settings, grant: Grant) -> tuple[str, datetime]:
    """A token for the grant, and when it expires.

    By the clock of the database, as the service judges tokens; by that of this host while it is away.
    """
    # Imported late: commands for keys need no database.
    from pilotage.cli import engine
    from pilotage.service.auth.tokens import Tokens
    from taskqueue.db.clock import DatabaseClock

    home_directory.require_installation(chosen.home, chosen.key)
    seen = engine.read_last_seen(chosen)
    ring, now = keys.load_or_create(chosen.key), datetime.now(UTC)
    with suppress(CommandRefused), engine.open_engine(chosen.database_url, pool_size=1) as opened:
        now = DatabaseClock(opened).read()
    return Tokens(ring, incarnation=lambda: seen.incarnation if seen else 1).mint(grant, now=now)


@settings.command_with()
def token(
    chosen: Settings,
    *,
    as_json: bool,
    role: Annotated[
        str,
        options.option(
            "ROLE", "Role: user, vo_admin, site_admin, director, gateway, pilot, monitor or operator."
        ),
    ],
    vo: Annotated[str | None, options.option("VO", "VO; for directors and gateways VO1,VO2.")] = None,
    user: Annotated[
        str | None,
        options.option("NAME", "Owner of the token; for the role user, the default is your login name."),
    ] = None,
    group: Annotated[str | None, options.option("GROUP", "Owner group (default: <vo>_user).")] = None,
    site: Annotated[str | None, options.option("SITE", "Site, for roles that belong to one.")] = None,
    queue: Annotated[
        str | None,
        options.option("Site/CE/Queue", "Queue of a pilot (default: the first queue that it reports)."),
    ] = None,
    stamp: Annotated[str | None, options.option("STAMP", "Stamp of a pilot (default: a new one).")] = None,
    ttl: Annotated[float | None, options.option("S", "Lifetime in seconds (default: 1 day).")] = None,
) -> None:
    """Create a token with the signing key of this installation and print it.

    Everyone who can read the home directory can act as operator: protect it.

    Example: `pilotage token --role pilot --vo cms --queue LCG.CERN.ch/ce1/long`.
    """
    if role == Role.USER and user is None:
        user = getuser()
    grant = callers.grant(
        role=role, vo=vo, user=user, group=group, site=site, queue=queue, stamp=stamp, ttl=ttl
    )
    text, expires_at = mint_token(chosen, grant)
    data = {"token": text, "expires_at": expires_at.isoformat()}
    output.emit(data, as_json=as_json, render=lambda: text)


#: Default days that the previous key still verifies tokens: most tokens have expired by then.
_KEPT_DAYS = 30.0
_LONGEST_DAYS = 366.0


@settings.command_with()
def show_keys(chosen: Settings, *, as_json: bool) -> None:
    """List the keys that verify tokens, with their end dates.

    Example: `pilotage key list`.
    """
    home_directory.require_installation(chosen.home, chosen.key)
    _show(keys.load(chosen.key), as_json=as_json)


@settings.command_with()
def rotate(
    chosen: Settings,
    *,
    as_json: bool,
    keep: Annotated[
        float,
        typer.Option(
            min=0,
            max=_LONGEST_DAYS,
            metavar="DAYS",
            help="Tokens of the previous key stay valid for this long; 0: they become invalid now.",
        ),
    ] = _KEPT_DAYS,
) -> None:
    """Replace the key that signs tokens; running services reload it within seconds.

    If hosts do not share the key file, copy it to the other hosts now.

    Example: `pilotage key rotate`.
    """
    home_directory.require_installation(chosen.home, chosen.key)
    ring = keys.rotate(chosen.key, keep=timedelta(days=keep), now=datetime.now(UTC))
    _show(ring, as_json=as_json)


@settings.command_with()
def retire(
    chosen: Settings,
    *,
    as_json: bool,
    key_id: Annotated[str, options.argument("KEY", "Key name, see `pilotage key list`.")],
) -> None:
    """Reject all tokens of a previous key, for example after a leak.

    Example: `pilotage key retire 2026-04-01`.
    """
    home_directory.require_installation(chosen.home, chosen.key)
    ring = keys.retire(chosen.key, key_id, now=datetime.now(UTC))
    if ring is None:
        raise CommandRefused(
            f"{key_id}: no previous key has this name; `pilotage key rotate` replaces the signing key"
        )
    _show(ring, as_json=as_json)


def _show(ring: KeyRing, *, as_json: bool) -> None:
    rows: list[dict[str, object]] = [{"key": ring.signing.key_id, "signs": True, "until": None}]
    lines = [(ring.signing.key_id, "signs")]
    for key in ring.retiring:
        rows.append({"key": key.key_id, "signs": False, "until": key.until})
        if key.until:
            lines.append((key.key_id, f"verifies until {output.local_time(key.until.isoformat())}"))
    output.emit({"keys": rows}, as_json=as_json, render=lambda: output.table(("Key", "State"), lines))
