"""Import of files as versions of the configuration: once per content.

The caller owns the transaction.
"""

from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, bindparam, func, insert, select, update

from cs_config import validate
from cs_config.errors import VersionConflict
from cs_config.versions import store
from cs_config.versions.tables import config_imports, config_versions

#: Attempts of an import while others store versions too.
_TRIES = 10

LAST_IMPORT = select(config_imports.c.digest).where(config_imports.c.file == bindparam("of_file"))
_LATER_THAN_ITS_IMPORT = config_versions.c.version > (
    select(func.coalesce(func.max(config_imports.c.version), 0))
    .where(config_imports.c.file == bindparam("of_file"))
    .scalar_subquery()
)
#: The version made of a file by `config apply` since its last import.
APPLIED = select(func.max(config_versions.c.version)).where(
    config_versions.c.digest == bindparam("of_digest"),
    config_versions.c.source == bindparam("of_source"),
    _LATER_THAN_ITS_IMPORT,
)
RENEW_IMPORT = (
    update(config_imports)
    .where(config_imports.c.file == bindparam("of_file"))
    .values(digest=bindparam("new_digest"), version=bindparam("new_version"))
)
ADD_IMPORT = insert(config_imports)


def import_changed(conn: Connection, path: Path, *, author: str, now: datetime) -> int | None:
    """Make a file the current version, unless its content was imported from there or applied last.

    So a restart does not undo later edits over HTTP.

    Returns:
        The number of the new version; None if the file did not change.


    Raises:
        ConfigError: The file cannot be read or is wrong; nothing is stored.
        VersionConflict: Others keep storing versions.
    """
    text = validate.parse(validate.read_bytes(path), path.name).source
    for left in reversed(range(_TRIES)):
        try:
            return _import(conn, path, text, author=author, now=now)
        except VersionConflict:
            if not left:
                raise
    raise AssertionError("not reached")


def _import(conn: Connection, path: Path, text: str, *, author: str, now: datetime) -> int | None:
    # The version is read first: a concurrent import of the same file would have stored a newer one.
    current = store.current_version(conn)
    file = str(path.resolve())
    new_digest = store.text_digest(text)
    last = conn.execute(LAST_IMPORT, {"of_file": file}).scalar_one_or_none()
    if last == new_digest:
        return None
    applied = {"of_file": file, "of_digest": new_digest, "of_source": path.name}
    if (version := conn.execute(APPLIED, applied).scalar_one()) is not None:
        _remember_import(conn, file, new_digest, version)
        return None
    message = f"imported from {path.name}"
    version = store.store_text(
        conn, text, author=author, message=message, source=path.name, expected=current, now=now
    )
    _remember_import(conn, file, new_digest, version)
    return version


def _remember_import(conn: Connection, file: str, new_digest: str, version: int) -> None:
    values = {"of_file": file, "new_digest": new_digest, "new_version": version}
    if conn.execute(RENEW_IMPORT, values).rowcount == 0:
        conn.execute(ADD_IMPORT, {"file": file, "digest": new_digest, "version": version})
