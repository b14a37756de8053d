"""Which version made a path what it is: who, when, and from which file."""

from collections.abc import Iterable, Mapping

from sqlalchemy import Connection

from cs_config import versions
from cs_config.versions import Version

_FIRST = 1


def of(conn: Connection, paths: Iterable[str], *, newest: int) -> Mapping[str, Version]:
    """For each path the latest version that changed it or a section around it.

    Args:
        conn: Any connection.
        paths: From the top, spelled as they are.
        newest: The version that the paths are of.
    """
    left = {path: _around(path) for path in paths}
    found: dict[str, Version] = {}
    for number, noted in versions.changes_downwards(conn, newest, oldest=_FIRST + 1):
        if not left:
            break
        changed = frozenset(noted or ())
        made = [path for path, around in left.items() if around & changed]
        if made:
            found |= dict.fromkeys(made, versions.about(conn, number))
            left = {path: around for path, around in left.items() if path not in found}
    # The first version made all that there was; to compare it with nothing would take longer than all else.
    if left and _FIRST <= newest <= versions.current_version(conn):
        found |= dict.fromkeys(left, versions.about(conn, _FIRST))
    return found


def _around(path: str) -> frozenset[str]:
    """The path and the sections that it stands in."""
    names = path.split("/")
    return frozenset("/".join(names[:length]) for length in range(1, len(names) + 1))
