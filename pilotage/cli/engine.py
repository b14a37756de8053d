"""Opening the database that the settings name, and saying in one line when it is away."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from pilotage.cli.errors import CommandRefused
from pilotage.cli.settings import InvalidSettings
from requirements.errors import Problem
from taskqueue.db import database


@contextmanager
def open_engine(url: str, *, pool_size: int = 5) -> Iterator[Engine]:
    """An engine for a command that does one thing.

    Raises:
        InvalidSettings: The URL names no database of ours.
        Refused: The database is away.
    """
    engine = make_engine(url, pool_size=pool_size)
    file = engine.url.database or ""
    if engine.dialect.name == "sqlite" and not Path(file).exists():
        raise CommandRefused(f"the database {file} does not exist; `pilotage db upgrade` makes it")
    try:
        with translate_unreachable(url):
            yield engine
    finally:
        engine.dispose()


def make_engine(url: str, *, pool_size: int) -> Engine:
    """An engine; the caller disposes of it.

    Raises:
        InvalidSettings: The URL names no database of ours.
    """
    try:
        return database.connect(url, pool_size=pool_size)
    except (ValueError, ArgumentError, NoSuchModuleError) as error:
        raise InvalidSettings([Problem(path="database_url", message=str(error))]) from None


def upgrade_schema(url: str) -> None:
    """Make the tables, or bring them to what this release needs.

    Raises:
        InvalidSettings: The URL names no database of ours.
        Refused: The database is away.
    """
    make_engine(url, pool_size=1).dispose()
    with translate_unreachable(url):
        database.upgrade(url)


@contextmanager
def translate_unreachable(url: str) -> Iterator[None]:
    """Turn the driver's account of an unreachable database into a message for people.

    Raises:
        Refused: The database is away.
    """
    try:
        yield
    except database.UNAVAILABLE as error:
        cause = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise CommandRefused(f"the database {hide_password(url)} cannot be used: {cause}") from None


def may_have_password(url: str) -> bool:
    """Whether a URL says one, before its host or after it; so may one that cannot be read."""
    try:
        said = make_url(url)
    except (ArgumentError, ValueError):
        return True
    return said.password is not None or bool(_password_options(said))


def hide_password(url: str) -> str:
    """The URL without its password."""
    said = make_url(url)
    return said.difference_update_query(_password_options(said)).render_as_string(hide_password=True)


def _password_options(said: URL) -> list[str]:
    """The names of what a URL says after its host, of those that are secrets."""
    return [name for name in said.query if "password" in name]
