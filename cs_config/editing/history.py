"""Who changed what: versions, and values with their authors."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Annotated

from pydantic import Field
from sqlalchemy import Connection

from cs_config.editing import reverts, show
from cs_config.editing.editor import ConfigEditor
from cs_config.editing.permissions import Rights
from cs_config.editing.proposals import Proposal
from cs_config.editing.reverts import Revert
from cs_config.editing.show import ShownLine
from cs_config.errors import PathNotFound
from cs_config.source import diff
from cs_config.source.diff import Difference
from cs_config.tree.address import node_depth
from cs_config.tree.configuration import Configuration
from cs_config.versions import store
from cs_config.versions.store import Version
from requirements.errors import InvalidRequest, NotAllowed, Problem
from requirements.values import fold

#: Versions that are searched for one answer.
_MOST_VERSIONS = 10_000
#: Most values in one answer, and below one path.
_MOST_VALUES = 2000
_MOST_BELOW = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry(Version):
    """A version with its visible changed paths."""

    paths: Annotated[
        list[str] | None,
        Field(description="Changed paths that the caller may see; null: too long ago."),
    ]
    reverts_at: Annotated[
        datetime | None,
        Field(description="Time at which its temporary values expire, as far as they are still in force."),
    ] = None


def list_versions(editor: ConfigEditor, *, limit: int, path: str = "") -> list[HistoryEntry]:
    """The latest versions that changed something visible at or around a path, newest first.

    A version that also changed hidden paths is shown without its message.
    """
    config, rights = editor.read(), editor.rights
    names = tuple(path.strip("/").split("/")) if path.strip("/") else ()
    with editor.transactions.reading() as conn:
        about = store.list_versions(conn, limit if rights.everything and not names else _MOST_VERSIONS)
        changes = store.list_changes_between(conn, about[0].version if about else 0)
        entries = (
            _visible_entry(config, rights, version, changed, names)
            for version, (_, changed) in zip(about, changes, strict=False)
        )
        due = {each.version: each.due for each in _visible_reverts(editor, conn)}
        found = islice((each for each in entries if each is not None), limit)
        return [replace(each, reverts_at=due.get(each.version)) for each in found]


def list_reverts(editor: ConfigEditor, path: str = "") -> list[Revert]:
    """The visible values at or around a path that give way to others, the next first.

    Of values within one another each, with its own time.
    """
    names = tuple(path.strip("/").split("/")) if path.strip("/") else ()
    with editor.transactions.reading() as conn:
        found = _visible_reverts(editor, conn)
    return sorted((each for each in found if _concerns(each.path, names)), key=lambda each: each.due)


def list_ended_returns(editor: ConfigEditor, proposal: Proposal) -> list[Revert]:
    """The visible temporary values that a proposal changes: what was before them does not come back."""
    changed = [tuple(path.split("/")) for path in diff.list_paths(proposal.differences)]
    with editor.transactions.reading() as conn:
        found = _visible_reverts(editor, conn) if changed else []
    return [each for each in found if any(_concerns(each.path, names) for names in changed)]


def _visible_reverts(editor: ConfigEditor, conn: Connection) -> list[Revert]:
    """The reverts of visible values, with those around them.

    Their problems may be at paths of others: only operators see them.
    """
    config, rights = editor.live.current, editor.rights
    found = [
        level
        for each in reverts.list_reverts(conn)
        if rights.sees_path(config, each.names)
        for level in each.pass_over_ended(each.due).levels
        if all(rights.sees_path(config, names) for names in diff.list_leaves(level.difference))
    ]
    if rights.everything:
        return found
    return [
        replace(each, problem="cannot be restored, operators see why") if each.problem else each
        for each in found
    ]


def _visible_entry(
    config: Configuration,
    rights: Rights,
    version: Version,
    changed: Sequence[str] | None,
    names: tuple[str, ...],
) -> HistoryEntry | None:
    if changed is None:
        return HistoryEntry(**asdict(version), paths=None) if rights.everything and not names else None
    paths = [each for each in changed if rights.sees_path(config, tuple(each.split("/")))]
    if names:
        paths = [each for each in paths if _concerns(each, names)]
    if not paths and (names or not rights.everything):
        return None
    hidden = len(paths) < len(changed) and not rights.everything
    shown = replace(version, message="") if hidden else version
    return HistoryEntry(**asdict(shown), paths=paths)


def _concerns(path: str, names: tuple[str, ...]) -> bool:
    """Whether a changed path is above, at or below `names`; case-insensitive."""
    pairs = zip(path.split("/"), names, strict=False)
    return all(fold(changed) == fold(wanted) for changed, wanted in pairs)


def compare(editor: ConfigEditor, before: int, after: int | None) -> tuple[int, tuple[Difference, ...]]:
    """The later version, and the visible differences; `after=None`: the newest."""
    current = editor.read_newest()
    with editor.transactions.reading() as conn:
        old = current if before == current.version else store.load_version(conn, before)
        new = current if after in (None, current.version) else store.load_version(conn, after)
    return new.version, diff.compare(editor.visible_tree(old), editor.visible_tree(new))


@dataclass(frozen=True, slots=True, kw_only=True)
class Blamed:
    """A value and its last change."""

    line: ShownLine
    since: Version | None  #: None: a default that is not written in the configuration


def blame_values(editor: ConfigEditor, config: Configuration, *, path: str, vo: str | None) -> list[Blamed]:
    """The visible values at and below a path (also the address of a queue), as they hold for a VO if given.

    Raises:
        NotAllowed: The VO is another's.
        PathNotFound: There is nothing visible.
        InvalidRequest: There are too many values.
    """
    _require_vo(editor.rights, config, path, vo)
    lines = _visible_lines(editor.rights, config, path, vo)
    if len(lines) > _MOST_VALUES:
        raise _too_many_values(path, f"{len(lines)}", _MOST_VALUES)
    with editor.transactions.reading() as conn:
        since = store.find_blame(
            conn, {place for line in lines for place in line.places}, newest=config.version
        )
    return [_blame(line, since) for line in lines]


def list_values(
    editor: ConfigEditor, config: Configuration, *, path: str, vo: str | None, inherited: bool, after: int
) -> tuple[Sequence[ShownLine], int | None]:
    """Visible values at and below a path, as `show.list_lines`, without the first `after` of them.

    With the number to go on after, if there are more. Errors as of `blame_values`.
    """
    _require_vo(editor.rights, config, path, vo or None)
    found = _visible_lines(editor.rights, config, path, vo, inherited=inherited)
    end = after + _MOST_VALUES
    return found[after:end], end if len(found) > end else None


def _too_many_values(path: str, number: str, most: int) -> InvalidRequest:
    message = f"{number} values are there, at most {most} can be shown: give a longer path"
    return InvalidRequest([Problem(path=path, message=message)])


def _require_vo(rights: Rights, config: Configuration, path: str, vo: str | None) -> None:
    """Allow only the author's VOs; at its sites, every VO."""
    names = show.split_path(config, path)
    is_own = bool(node_depth(names)) and names[2] in rights.sites
    if not (vo is None or rights.everything or is_own or fold(vo) in rights.sees):
        raise NotAllowed(f"{vo!r:.80} is not a VO of the token")


def _visible_lines(
    rights: Rights, config: Configuration, path: str, vo: str | None, *, inherited: bool = False
) -> Sequence[ShownLine]:
    if vo is None or show.split_path(config, path)[:1] != ("Operations",):
        # Before the lines are read: their suggestion could be a name of another VO.
        show.require_visible(config, path, partial(rights.sees_path, config))
    below = show.iterate_lines(config, path, vo, inherited=inherited)
    found = list(islice(below, _MOST_BELOW + 1))
    lines = [
        line
        for line in found
        if all(rights.sees_path(config, tuple(place.split("/"))) for place in line.places)
    ]
    if found and not lines:
        raise PathNotFound(path)
    if len(found) > _MOST_BELOW:
        raise _too_many_values(path, f"more than {_MOST_BELOW}", _MOST_BELOW)
    return lines


def _blame(line: ShownLine, since: Mapping[str, Version]) -> Blamed:
    versions = [since[place] for place in line.places if place in since]
    return Blamed(line=line, since=max(versions, key=lambda each: each.version, default=None))
