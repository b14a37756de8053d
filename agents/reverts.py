"""Revert agent: restores the values of temporary changes of the configuration when their time is over."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Final

from sqlalchemy import Engine

from agents import leader
from agents.leader import Leadership
from cs_config.editing import proposals, reverts
from cs_config.editing.reverts import Revert
from cs_config.errors import ConfigError, VersionConflict
from cs_config.source import diff
from cs_config.tree.configuration import Configuration
from cs_config.versions import store
from requirements.errors import PilotageError
from taskqueue.db import database

log = logging.getLogger(__name__)

NAME: Final = "reverts"
_AUTHOR: Final = "pilotage"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevertsResult:
    """Temporary changes that were reverted, and those that could not be."""

    reverted: tuple[int, ...] = ()  #: their versions
    failed: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reverted or self.failed)


def cycle(engine: Engine, config: Configuration, *, now: datetime, holder: str) -> RevertsResult | None:
    """Restore what is due, one new version for each change; None while another process is the leader.

    What cannot be restored stays as it is until the configuration changes.
    """
    with leader.lead(engine, NAME, holder=holder, now=now) as leadership:
        if leadership is None:
            return None
        with database.reading(engine) as conn:
            due = [each.pass_over_ended(now) for each in reverts.list_reverts(conn) if each.due <= now]
        done: dict[bool, list[int]] = {True: [], False: []}
        for _, together in groupby(due, key=_change_and_rights):
            values = tuple(together)
            version = values[0].version
            try:
                succeeded = _revert(leadership, config, values)
            except VersionConflict:  # someone changes the configuration now; the next cycle tries again
                continue
            if succeeded is not None:
                done[succeeded].append(version)
        return RevertsResult(reverted=tuple(done[True]), failed=tuple(done[False]))


def _change_and_rights(value: Revert) -> tuple[object, ...]:
    return value.version, value.edits_all, value.vos, value.sites


def _revert(leadership: Leadership, known: Configuration, values: Sequence[Revert]) -> bool | None:
    """Restore the values of one change with the rights of its author; None: nothing to do.

    The rights and the whole configuration are checked as for any change. If not all can be restored together,
    each is tried alone.
    """
    [version] = {each.version for each in values}
    current = _read_newest(leadership.engine, known)
    if current is None or all(each.tried == current.version for each in values):
        return None
    in_force = reverts.select_in_force(current.tree, values)
    try:
        edits = reverts.list_edits(current.tree, in_force)
        restored = frozenset(each.path for each in values if each.lifts)
        rights = replace(values[0].rights(current.registry), restores=restored)
        proposal = proposals.propose_edits(current, current, edits, rights, restoring=True)
    except PilotageError as error:
        if len(values) > 1:
            results = [_revert(leadership, known, [each]) for each in values]
            return False not in results
        log.warning("the temporary change of version %d cannot be reverted: %s", version, error)
        with leadership.writing() as conn:
            reverts.record_problem(conn, values[0], str(error), tried=current.version)
        return False
    with leadership.writing() as conn:
        if not reverts.are_unchanged(conn, values):  # someone moved or made them anew meanwhile
            return None
        ended = {each.path for each in values}
        earlier = [each for each in reverts.list_reverts(conn) if each.path not in ended]
        if proposal.differences:
            store.store_checked(
                conn,
                proposal.after,
                author=_AUTHOR,
                message=f"end of the temporary change of version {version} by {values[0].author}",
                expected=current.version,
                now=leadership.now,
                changed=diff.list_paths(proposal.differences),
            )
        reverts.delete_values(conn, values)
        reverts.restore_around(conn, proposal, earlier, in_force)
    return True


def _read_newest(engine: Engine, known: Configuration) -> Configuration | None:
    """The newest version as written; None: this release cannot read it."""
    with database.reading(engine) as conn:
        number = store.current_version(conn)
        try:
            written = known.written or known
            return written if known.version == number else store.load_version(conn, number)
        except ConfigError as error:
            log.warning("version %d cannot be read: %s", number, error)
            return None
