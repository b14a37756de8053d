"""Reverts of temporary changes: values that an agent restores at a given time, unless they changed before.

One row for each path. Every new version deletes the rows of the paths that it changes (`store`), so a row
stands for a value that is in force. A further temporary change of a path restores the value before, with its
own time if that is later; temporary values whose time is over by then are passed over.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from cs_config.editing.patch import Edit, apply_edits, find_entry
from cs_config.editing.permissions import Rights, rights_on
from cs_config.editing.proposals import Proposal
from cs_config.options import bounds
from cs_config.options.registry import Registry
from cs_config.source.diff import ABSENT, Difference, Entry, is_equal, list_leaves
from cs_config.source.sections import Tree
from cs_config.versions.store import DELETE_REVERT
from cs_config.versions.tables import config_reverts as table
from requirements.errors import InvalidRequest, Problem
from requirements.values import fold

#: Later than all.
_END = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Revert:
    """A value that holds until a given time."""

    path: str
    version: int  #: that made the change
    due: datetime
    author: str
    edits_all: bool  #: the author's rights at that time: everything, or
    vos: frozenset[str]  #: the parts of these VOs and
    sites: frozenset[str]  #: of these sites
    depth: int  #: names of the section that the change made; as many as the path has: it made none
    before: Entry  #: to be restored; ABSENT: the path is to be removed
    after: Entry  #: in force until then
    lifts: bool = False  #: it may lift a limit of a VO: the value before was not another author's to restore
    tried: int = 0  #: version that the value could not be restored in
    problem: str = ""  #: why
    around: "Revert | None" = None  #: of the value to be restored, if that is temporary, too

    @property
    def levels(self) -> "tuple[Revert, ...]":
        """It and those around it, from the inside."""
        return (self, *(self.around.levels if self.around else ()))

    def pass_over_ended(self, moment: datetime) -> "Revert":
        """It without those around it whose time is over by then: what was before these is restored."""
        ended = self.around
        if ended is None or ended.due > moment:
            return self
        gives_way = self.due < ended.due  # to that one, whose author restores what was before
        entitled = ended if gives_way else self
        shorter = replace(
            self,
            before=ended.before,
            depth=ended.depth,
            edits_all=entitled.edits_all,
            vos=entitled.vos,
            sites=entitled.sites,
            lifts=self.lifts and ended.lifts and (gives_way or ended.author == self.author),
            around=ended.around,
        )
        return shorter.pass_over_ended(moment)

    @property
    def outlasting(self) -> "Revert":
        """It as if it lasted longer than all those around it: it restores what was before these."""
        return replace(replace(self, due=_END).pass_over_ended(_END), due=self.due)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the path."""
        return tuple(self.path.split("/"))

    @property
    def difference(self) -> Difference:
        """The change that is reverted."""
        return Difference(names=self.names, before=self.before, after=self.after)

    def is_changed_by(self, author: str, rights: Rights) -> bool:
        """Whether an author may move or cancel it: the same, or one with all rights that its author had."""
        if author == self.author or rights.everything:
            return True
        return not self.edits_all and self.vos <= rights.vos and self.sites <= rights.sites

    def rights(self, registry: Registry) -> Rights:
        """The author's rights, in a configuration with these owner groups."""
        return rights_on(registry, everything=self.edits_all, vos=self.vos, sites=self.sites)


ALL = select(table).order_by(table.c.version, table.c.path)
ADD = insert(table)
DELETE_OF_VERSION = DELETE_REVERT.where(table.c.version == bindparam("of_version"))
REPLACE = update(table).where(
    table.c.path == bindparam("of_path"), table.c.version == bindparam("of_version")
)
SET_PROBLEM = REPLACE.values(tried=bindparam("new_tried"), problem=bindparam("new_problem"))


def list_reverts(conn: Connection) -> list[Revert]:
    """All reverts to come, by version and path."""
    return [_read(dict(row)) for row in conn.execute(ALL).mappings()]


def _read(row: dict[str, Any]) -> Revert:
    found: Revert | None = None
    for each in reversed(json.loads(row.pop("around") or "[]")):
        each |= {"path": row["path"], "due": datetime.fromisoformat(each["due"])}
        found = _read_level(each, found)
    if found is None:
        return _read_level(row, None)
    return replace(found, due=row["due"], tried=row["tried"], problem=row["problem"])


def _read_level(row: dict[str, Any], around: Revert | None) -> Revert:
    texts = (row.pop(side) for side in ("before", "after"))
    before, after = (ABSENT if text is None else json.loads(text) for text in texts)
    rights = json.loads(row.pop("rights"))
    return Revert(
        **row,
        before=before,
        after=after,
        edits_all=rights["everything"],
        vos=frozenset(rights["vos"]),
        sites=frozenset(rights["sites"]),
        lifts=rights.get("lifts", False),
        around=around,
    )


def _write(value: Revert) -> dict[str, object]:
    """The row of a revert, the reverse of `_read`.

    With values around it, the row itself restores what was before all of them: so does a process of 1.0.0,
    which does not read the others and would leave one of them in force for good.
    """
    levels = [_write_level(each) | {"due": each.due.isoformat()} for each in value.levels]
    for each in levels:
        del each["path"]
    return {**_write_level(value.outlasting), "around": json.dumps(levels) if value.around else None}


def _write_level(value: Revert) -> dict[str, object]:
    rights = {"everything": value.edits_all, "vos": sorted(value.vos), "sites": sorted(value.sites)}
    return {
        "path": value.path,
        "version": value.version,
        "due": value.due,
        "author": value.author,
        "rights": json.dumps(rights | {"lifts": value.lifts}),
        "depth": value.depth,
        "before": _as_text(value.before),
        "after": _as_text(value.after),
        "tried": value.tried,
        "problem": value.problem,
    }


def select_in_force(tree: Tree, values: Iterable[Revert]) -> list[Revert]:
    """Those whose values are still in force."""
    return [each for each in values if is_equal(find_entry(tree, each.names), each.after)]


def list_own_returns(conn: Connection, tree: Tree, author: str, rights: Rights) -> list[Revert]:
    """Of the values in force that an author, or one with no further rights, has set for a time: what returns.

    Of values within one another the outermost before which there is none of somebody else.
    """
    found = []
    for each in select_in_force(tree, list_reverts(conn)):
        own = takewhile(lambda level: level.lifts and level.is_changed_by(author, rights), each.levels)
        found += list(own)[-1:]
    return found


def list_returns_of_others(
    conn: Connection, tree: Tree, author: str, rights: Rights, due: datetime | None
) -> list[Revert]:
    """What returns before a time (None: ever) of values in force that others have set, with further rights.

    Of values within one another the outermost that ends until then.
    """
    found = []
    for each in select_in_force(tree, list_reverts(conn)):
        ended = [level for level in each.levels if due is None or level.due < due]
        if not all(level.is_changed_by(author, rights) for level in ended):
            found.append(replace(each, before=ended[-1].before, depth=ended[-1].depth))
    return found


def list_edits(tree: Tree, values: Sequence[Revert]) -> list[Edit]:
    """The edits that restore values that are in force, and remove new sections that are empty then."""
    changed = (each for each in values if not is_equal(each.before, each.after))
    edits = [Edit(names=each.names, value=each.before) for each in changed]
    restored = apply_edits(tree, tree, edits, versions=(0, 0))
    made = {each.names[:depth] for each in values for depth in range(each.depth, len(each.names))}
    for names in sorted(made, key=len, reverse=True):
        if find_entry(restored, names) == {}:
            edits.append(Edit(names=names, value=ABSENT))
            restored = apply_edits(restored, restored, edits[-1:], versions=(0, 0))
    return edits


def _split(found: Difference) -> Iterator[Difference]:
    """A difference as one for each value, so that others may change other values of a new section.

    A null beside a section counts as an empty section.
    """
    if isinstance(found.before, dict) or isinstance(found.after, dict):
        before, after = (ABSENT if side is None else side for side in (found.before, found.after))
        found = replace(found, before=before, after=after)
    sides = found.before, found.after
    if not all(side is ABSENT or isinstance(side, dict) for side in sides):
        yield found
        return
    for names in list_leaves(found):
        below = names[len(found.names) :]
        before, after = (find_entry(side, below) if isinstance(side, dict) else ABSENT for side in sides)
        yield Difference(names=names, before=before, after=after)


def add(
    conn: Connection,
    proposal: Proposal,
    earlier: Sequence[Revert],
    *,
    version: int,
    due: datetime,
    author: str,
    rights: Rights,
) -> datetime | None:
    """Note that the values of a proposal, stored as this version, hold until `due`; the first time that ends.

    `earlier`: the reverts before it was stored. Raises InvalidRequest if the author has too many.
    """
    parts = _list_parts(proposal, earlier)
    replaced = _find_around(proposal.before.tree, [part.names for part, _ in parts], earlier)
    made = [
        Revert(
            path=part.path,
            version=version,
            due=due,
            author=author,
            edits_all=rights.everything,
            vos=rights.vos,
            sites=rights.sites,
            depth=depth,
            before=part.before,
            after=find_entry(proposal.after.tree, part.names),
            lifts=True,
            around=replaced.get(part.names),
        ).pass_over_ended(due)
        for part, depth in parts
    ]
    _check_number(conn, made, author)
    stored = [left for each in made if (left := _without_return(each)) is not None]
    stored += _list_kept(conn, proposal, earlier, changed=[each.names for each in made])
    for each in stored:
        conn.execute(ADD, _write(each))
    return min((each.due for each in stored), default=None)


def _list_parts(proposal: Proposal, earlier: Sequence[Revert]) -> list[tuple[Difference, int]]:
    """The parts of a change that are restored each by itself, with the depth of the section that it made.

    What changes within the value of an earlier revert is a change of that value.
    """
    reverted = {each.names for each in earlier}
    found: dict[tuple[str, ...], tuple[Difference, int]] = {}
    for difference in proposal.differences:
        for part in _split(difference):
            names, depth = part.names, len(part.names)
            if difference.before is ABSENT:
                depth = len(difference.names)
            for around in (names[:length] for length in range(1, len(names))):
                if around in reverted:
                    before, after = (
                        find_entry(each.tree, around) for each in (proposal.before, proposal.after)
                    )
                    part, depth = Difference(names=around, before=before, after=after), len(around)
                    break
            found[part.names] = (part, depth)
    return list(found.values())


def _list_kept(
    conn: Connection, proposal: Proposal, earlier: Sequence[Revert], *, changed: Sequence[tuple[str, ...]]
) -> Iterator[Revert]:
    """Reverts of values that are absent before and after, within a section that is made or removed."""
    left = {each.path for each in list_reverts(conn)}
    joined = {names[:length] for names in changed for length in range(1, len(names) + 1)}
    for each in earlier:
        is_changed = each.names in joined or any(each.names[: len(names)] == names for names in changed)
        if each.path in left or is_changed:
            continue
        before, after = (find_entry(side.tree, each.names) for side in (proposal.before, proposal.after))
        if before is ABSENT and after is ABSENT:
            yield each


def _find_around(
    tree: Tree, changed: Iterable[tuple[str, ...]], earlier: Sequence[Revert]
) -> Mapping[tuple[str, ...], Revert]:
    """The earlier reverts of paths that change, and one for all below such a path."""
    wanted = set(changed)
    found: dict[tuple[str, ...], Revert] = {}
    below: dict[tuple[str, ...], list[Revert]] = {}
    for each in earlier:
        for length in range(1, len(each.names)):
            if each.names[:length] in wanted:
                below.setdefault(each.names[:length], []).append(each)
        if each.names in wanted:
            found[each.names] = each
    return {**found, **{names: _join(tree, names, values) for names, values in below.items()}}


def _join(tree: Tree, names: tuple[str, ...], below: Sequence[Revert]) -> Revert:
    """One revert of a section for those of its values, with the time of the first of them."""
    first = min(below, key=lambda each: each.due)
    whole = [each.outlasting for each in below]
    restored = apply_edits(tree, tree, list_edits(tree, select_in_force(tree, whole)), versions=(0, 0))
    return replace(
        first,
        path="/".join(names),
        depth=min(len(names), *(each.depth for each in below)),
        before=find_entry(restored, names),
        after=find_entry(tree, names),
        lifts=all(each.lifts and each.author == first.author for each in whole),
        tried=0,
        problem="",
        around=None,
    )


def _without_return(value: Revert) -> Revert | None:
    """It, if it changes something: a return to the value before is not temporary, but that value may be."""
    return value.around if is_equal(value.before, value.after) else value


def resume(conn: Connection, tree: Tree, earlier: Sequence[Revert], *, version: int) -> datetime | None:
    """Note the reverts of values that a return to a version gave way to; the first time that ends.

    `earlier`: the reverts before the tree was stored.
    """
    left = {each.path for each in list_reverts(conn)}
    found = []
    for each in earlier:
        restored = find_entry(tree, each.names)
        around = (level for level in each.levels[1:] if level.version <= version)
        level = next((level for level in around if is_equal(level.after, restored)), None)
        if level is not None and each.path not in left:
            found.append(level)
            conn.execute(ADD, _write(level))
    return min((each.due for each in found), default=None)


def _check_number(conn: Connection, made: Sequence[Revert], author: str) -> None:
    """Refuse more temporary values of an author, or within one another, than are allowed."""
    levels = [level for each in list_reverts(conn) for level in each.levels]
    levels += [level for each in made for level in each.levels[1:]]
    number = sum(level.author == author for level in levels)
    if len(made) + number > bounds.TEMPORARY_VALUES:
        seen = f"{number} of your values are temporary now, and this makes {len(made)} more so"
        message = f"{seen}; allowed are {bounds.TEMPORARY_VALUES}"
        raise InvalidRequest([Problem(path="revert_after", message=message)])
    deep = next((each.path for each in made if len(each.levels) > bounds.TEMPORARY_LEVELS), None)
    if deep is not None:
        message = (
            f"{deep} has {bounds.TEMPORARY_LEVELS} temporary values within one another, as many as allowed"
        )
        raise InvalidRequest(
            [Problem(path="revert_after", message=f"{message}: let one of them last longer")]
        )


def restore_around(
    conn: Connection, proposal: Proposal, earlier: Sequence[Revert], values: Sequence[Revert]
) -> None:
    """Note the reverts of restored values that are temporary themselves, and those that a section had."""
    for each in list(_list_kept(conn, proposal, earlier, changed=[each.names for each in values])):
        conn.execute(ADD, _write(each))
    for each in values:
        if each.around is not None:
            conn.execute(ADD, _write(each.around))


def _as_text(entry: Entry) -> str | None:
    return None if entry is ABSENT else json.dumps(entry)


def set_due(
    conn: Connection, paths: Iterable[str], due: datetime | None, author: str, rights: Rights
) -> datetime | None:
    """Move the reverts at or below paths to another time, or cancel them (None); the first that is left.

    Those of another author who had further rights stay as they are.
    """
    wanted = [f"{fold(path)}/" for path in paths]
    left: list[datetime] = []
    for each in list_reverts(conn):
        if not any(f"{fold(each.path)}/".startswith(path) for path in wanted):
            continue
        if not each.is_changed_by(author, rights):
            left.append(each.due)
        elif due is None:
            conn.execute(DELETE_REVERT, {"of_path": each.path})
        else:
            row = {"of_path": each.path, "of_version": each.version}
            moved = _without_return(replace(each, due=due).pass_over_ended(due))
            if moved is None:
                conn.execute(DELETE_OF_VERSION, row)
            else:
                conn.execute(REPLACE, {**row, **_write(moved)})
                left.append(moved.due)
    return min(left, default=None)


def are_unchanged(conn: Connection, values: Iterable[Revert]) -> bool:
    """Whether these reverts are all there, with the same time."""
    there = {(each.path, each.version, each.due) for each in list_reverts(conn)}
    return all((each.path, each.version, each.due) in there for each in values)


def delete_values(conn: Connection, values: Iterable[Revert]) -> None:
    """Delete these reverts; not others of the same paths."""
    for each in values:
        conn.execute(DELETE_OF_VERSION, {"of_path": each.path, "of_version": each.version})


def record_problem(conn: Connection, value: Revert, problem: str, *, tried: int) -> None:
    """Store why a value could not be restored in the version `tried`."""
    new = {"new_tried": tried, "new_problem": problem}
    conn.execute(SET_PROBLEM, {"of_path": value.path, "of_version": value.version, **new})
