"""Opens the configured database; an unreachable one becomes an error in one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from pilotage.cli.errors import CommandRefused
from pilotage.cli.settings import InvalidSettings
from requirements.errors import Problem
from taskqueue.db import database, sql
from taskqueue.schema.tables import jobs


@contextmanager
def open_engine(url: str, *, pool_size: int = 5) -> Iterator[Engine]:
    """An engine for a short command."""
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
    """An engine; the caller disposes of it."""
    try:
        return database.connect(url, pool_size=pool_size)
    except (ValueError, ArgumentError, NoSuchModuleError) as error:
        raise InvalidSettings([Problem(path="database_url", message=str(error))]) from None


def upgrade_schema(url: str, *, first_job_id: int = 1) -> None:
    """Create the tables, or upgrade them to this release; new jobs get ids from `first_job_id` on."""
    engine = make_engine(url, pool_size=1)
    try:
        with translate_unreachable(url):
            database.upgrade(url)
            if first_job_id > 1:
                with database.writing(engine) as conn:
                    sql.raise_ids(conn, jobs, first_job_id)
    finally:
        engine.dispose()


@contextmanager
def translate_unreachable(url: str) -> Iterator[None]:
    """Translate the driver's errors about an unreachable database."""
    try:
        yield
    except database.UNAVAILABLE as error:
        cause = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise CommandRefused(f"the database {hide_password(url)} cannot be used: {cause}") from None


def may_have_password(url: str) -> bool:
    """Whether a URL holds a password, as its user part or as a query option; True if it is invalid."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return True
    return parsed.password is not None or bool(_password_options(parsed))


def hide_password(url: str) -> str:
    """The URL without its password."""
    parsed = make_url(url)
    return parsed.difference_update_query(_password_options(parsed)).render_as_string(hide_password=True)


def _password_options(url: URL) -> list[str]:
    return [name for name in url.query if "password" in name]
