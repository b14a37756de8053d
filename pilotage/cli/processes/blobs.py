"""`pilotage blobs`: moves archives between a directory and S3."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import typer

from pilotage.cli import output, settings, wiring
from pilotage.cli.errors import REFUSED, CommandRefused
from pilotage.cli.settings import Settings
from requirements.errors import format_count
from taskqueue.blob_stores import moving
from taskqueue.blob_stores.moving import CopyResult


@settings.command_with()
def copy(chosen: Settings, *, as_json: bool) -> None:
    """Copy all archives from `other_blobs` to `blobs`, but for those that are there; also while jobs run.

    It can be stopped and run again at any time. Exit status 1 if an archive is corrupt: its bytes do not have
    the digest that it is stored under.

    Example: `pilotage blobs copy`.
    """
    if chosen.other_blobs is None:
        raise CommandRefused("the setting other_blobs names no store to copy from")
    source, target = wiring.open_place(chosen.other_blobs), wiring.open_place(chosen.blobs)
    done = CopyResult()
    later = datetime.now(UTC) + timedelta(days=1)  # the store may have another clock
    for done in moving.copy_all(source, target, before=later):  # noqa: B007 - the last one counts
        pass
    output.emit(asdict(done), as_json=as_json, render=lambda: _format(chosen, done))
    if done.corrupt:
        raise typer.Exit(REFUSED)


def _format(chosen: Settings, done: CopyResult) -> str:
    return (
        f"{chosen.other_blobs} -> {chosen.blobs}: {format_count(done.copied, 'archive')} copied "
        f"({done.bytes:,} bytes), {done.present} were there, {done.gone} were deleted meanwhile, "
        f"{done.corrupt} are corrupt"
    )
