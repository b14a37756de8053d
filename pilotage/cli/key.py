"""`pilotage key`: the keys that sign this installation's tokens."""

from datetime import datetime, timedelta
from typing import Annotated

import typer

from pilotage.cli import home_directory, options, output, settings
from pilotage.cli.failures import Refused
from pilotage.cli.settings import Settings
from pilotage.service import key_file
from pilotage.service.keys import KeyRing
from pilotage.service.parts import utc_now

#: Days that the earlier key verifies unless it is said otherwise: most tokens have ended by then.
_KEPT_DAYS = 30.0
_LONGEST_DAYS = 366.0


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands = typer.Typer(help="The keys that sign tokens: list them, replace the one that signs.")
    commands.command("list")(show)
    commands.command("rotate")(rotate)
    commands.command("retire")(retire)
    app.add_typer(commands, name="key")


def show(*, as_json: options.AsJson = False, home: options.Home = None) -> None:
    """List the keys that verify tokens, and until when."""
    _show(key_file.load(_installation(home).key), as_json=as_json)


def rotate(
    *,
    keep: Annotated[
        float,
        typer.Option(
            min=0,
            max=_LONGEST_DAYS,
            metavar="DAYS",
            help="Tokens of the earlier key stay good so long; 0: they end now.",
        ),
    ] = _KEPT_DAYS,
    as_json: options.AsJson = False,
    home: options.Home = None,
) -> None:
    """Have a new key sign tokens from now on; running services notice within seconds.

    Where hosts do not share the key's file, copy it to the others right after.
    """
    chosen = _installation(home)
    ring = key_file.rotate(chosen.key, keep=timedelta(days=keep), now=utc_now())
    _show(ring, as_json=as_json)


def retire(
    key_id: Annotated[str, typer.Argument(metavar="KEY", help="Its name, as `pilotage key list` shows it.")],
    *,
    as_json: options.AsJson = False,
    home: options.Home = None,
) -> None:
    """Accept no token of an earlier key any more, as when it has leaked."""
    ring = key_file.retire(_installation(home).key, key_id, now=utc_now())
    if ring is None:
        raise Refused(f"{key_id}: no earlier key; the one that signs is replaced by `pilotage key rotate`")
    _show(ring, as_json=as_json)


def _installation(home: options.Home) -> Settings:
    chosen = settings.load({"home": home})
    home_directory.require_installation(chosen.home, chosen.key)
    return chosen


def _show(ring: KeyRing, *, as_json: bool) -> None:
    rows = [{"key": ring.signing.key_id, "signs": True, "until": None}] + [
        {"key": key.key_id, "signs": False, "until": key.until} for key in ring.retiring
    ]
    output.emit({"keys": rows}, as_json=as_json, render=lambda: output.table(("Key", "State"), _lines(ring)))


def _lines(ring: KeyRing) -> list[tuple[str, str]]:
    return [(ring.signing.key_id, "signs")] + [
        (key.key_id, f"verifies until {_day(key.until)}") for key in ring.retiring if key.until
    ]


def _day(when: datetime) -> str:
    return str(output.local_time(when.isoformat()))
